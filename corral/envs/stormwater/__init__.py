"""stormwater: sewers and ponds to be sized, with the flow computed by EPA SWMM (through pyswmm).

An agent looks at a drainage network, changes what may be changed (a pipe's diameter, a pond's outlet, its area), runs
the design storm, reads depths and flows, and hands in the cheapest design that meets what is required.

One task by hand::

    from corral.envs.stormwater import build_envs
    env = build_envs()["storm-pond"].new_instance()
    print(env.get_task_prompt())

Modules: `inp` (SWMM's input files as text), `solver` (the one place that loads pyswmm), `tasks` (the problems, their
costs and scores), `environment`, `agents` (a scripted expert and a naive one, for baselines). Needs the extra
``corral[stormwater]``; importing this package imports none of it.

The networks in ``data/`` were made for Corral: no real place, no real data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corral.errors import NotInstalled

if TYPE_CHECKING:
    from corral.environment import Environment

__all__ = ["build_envs"]


def build_envs() -> dict[str, Environment]:
    """The environments by task id. Loads SWMM, once, for every trial forked from here.

    NotInstalled where SWMM is not installed.
    """
    try:
        import corral.envs.stormwater.solver  # noqa: F401
    except ImportError as error:
        raise NotInstalled("the stormwater environments", "SWMM", "stormwater", error) from error
    from corral.envs.stormwater.environment import StormwaterEnvironment
    from corral.envs.stormwater.tasks import TASKS

    return {name: StormwaterEnvironment(task) for name, task in TASKS.items()}
