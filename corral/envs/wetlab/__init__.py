"""wetlab: qualitative inorganic analysis, with the chemistry computed by PHREEQC.

An agent gets an unknown sample on a bench, mixes it with reagents, looks (precipitates, colours, gases, pH, flames)
and names the ions. Nothing is scripted but a few declared rules (see `bench`); the equilibria are PHREEQC's.

One task by hand::

    from corral.envs.wetlab import build_envs
    env = build_envs()["l2-group-1"].new_instance()
    print(env.get_task_prompt())
    env.bench.split("sample", "a", 2)
    env.bench.add("a", "HCl 6M", 0.5)
    # {'vessel': 'a', 'volume_ml': 2.5, 'solution': 'colourless',
    #  'precipitates': [{'colour': 'white', 'amount': 'heavy'}, {'colour': 'black', 'amount': 'slight'}], 'gas': []}
    env.state.submitted_answer = "Ag+, Pb+2"
    print(env.score(), env.state.feedback)  # 0.5: precision and recall are a half each

Modules: `engine` (PHREEQC, the database), `stock` (ions and reagents), `looks` (what is seen), `bench` (vessels and
operations), `column` (the packed column), `tasks`, `answers`, `environment`, `chain` and `stages` (a separation as a
chain of tasks), `agents` with its `hands` (a scripted expert and a careless one, for baselines). Needs the extra
``corral[wetlab]``; importing this package imports none of it.

Data, in ``data/``: ``wetlab.dat`` is a modified part of ``minteq.v4.dat`` of USGS PHREEQC 3.8.6 and not a USGS product
(its header says what was changed, ``USGS-NOTICE`` is the notice that goes with it); ``added-constants.json`` lists the
reactions added to it, each with log K and source; ``stock.json`` holds the stock solutions. The exchange constants in
`column` are those of ``phreeqc.dat`` of the same release. The known limits of the database, and the facts it was
checked against, are in ``tests/envs/wetlab_facts.json``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.errors import NotInstalled

if TYPE_CHECKING:
    from corral.environment import Environment

__all__ = ["build_envs"]


def build_envs(seed: int = 0) -> dict[str, Environment]:
    """The benchmark's environments by task id. Loads the engine, once, for every trial forked from here.

    NotInstalled where the engine is not installed.
    """
    try:
        from corral.envs.wetlab.engine import database
    except ImportError as error:
        raise NotInstalled("the wetlab environments", "PHREEQC", "wetlab", error) from error
    from corral.envs.wetlab.chain import chain_tasks
    from corral.envs.wetlab.environment import WetlabEnvironment
    from corral.envs.wetlab.stages import ReportEnvironment, StageEnvironment
    from corral.envs.wetlab.tasks import default_tasks

    database()
    kinds = {"stage": StageEnvironment, "report": ReportEnvironment}
    chain = chain_tasks(seed)
    environments: dict[str, Environment] = {}
    for name, task in (default_tasks(seed) | chain).items():
        environments[name] = kinds.get(task.kind, WetlabEnvironment)(task)
    for name in chain:
        environments[name].component = tuple(chain)
    return environments
