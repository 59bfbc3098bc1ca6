"""One separation as a chain of tasks: groups I to V one after the other, and a report. Pure; no engine.

Each stage gets the liquid that the stage before it left, takes its own group out, names the group's ions, and leaves
the rest for the next one. The sample itself travels from environment to environment, hidden from agents (see
`stages`): so a careless separation shows in every later stage, and nobody can talk a wrong sample right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.envs.wetlab.tasks import GROUPS, WetlabTask, acid_sample, score_ions, some, task_rng

REST = "rest"
"""The vessel that a stage leaves to the next one."""

REPORT = "l3-chain-report"
SAMPLE_ML = 20.0
RESERVE_ML = 5.0
"""What was kept of the unknown for the report."""

_DESCRIBED = "nitrates, each ion 0.02-0.05 M, in 0.3 M nitric acid"
_KINDS = "; ".join(f"{group}: {', '.join(ions)}" for group, ions in GROUPS.items())


def chain_tasks(seed: int = 0) -> dict[str, WetlabTask]:
    """The stages in order, and the report: two ions in each group."""
    rng = task_rng(seed, "l3-chain")
    there = {group: tuple(some(rng, ions, 2)) for group, ions in GROUPS.items()}
    every = tuple(ion for ions in there.values() for ion in ions)
    sample = acid_sample(rng, every)
    tasks: dict[str, WetlabTask] = {}
    for n, (group, ions) in enumerate(GROUPS.items(), 1):
        name, before = f"l3-chain-{n}", (f"l3-chain-{n - 1}",) if n > 1 else ()
        described = f"the liquid that stage {list(GROUPS)[n - 2]} left" if before else f"an unknown: {_DESCRIBED}"
        tasks[name] = WetlabTask(name, 3, "stage", there[group], ions, sample, SAMPLE_ML, described, before)
    possible = tuple(ion for ions in GROUPS.values() for ion in ions)
    report = WetlabTask(REPORT, 3, "report", every, possible, sample, RESERVE_ML, _DESCRIBED, tuple(tasks))
    return {**tasks, REPORT: report}


def group_of(task: WetlabTask) -> str:
    """The group that a stage is about."""
    return next(group for group, ions in GROUPS.items() if ions == task.possible)


def is_last(group: str) -> bool:
    """Whether no stage follows."""
    return group == list(GROUPS)[-1]


def stage_prompt(task: WetlabTask, volume_ml: float) -> str:
    """What a stage is asked, with so much in its sample."""
    group = group_of(task)
    leave = (
        "It is the last stage: nothing needs to be left."
        if is_last(group)
        else f'Take the whole group out and leave the liquid with all other ions in a vessel named "{REST}": the next '
        "stage gets what is in it when you answer, and nothing else. Without it, this stage scores 0."
    )
    return (
        f'You are at the bench of an analytical laboratory. The vessel "sample" holds {volume_ml:.1f} mL of '
        f"{task.described}. You do stage {group} of its separation; the groups are {_KINDS}. Find out which ions of "
        f"group {group} are in it. {leave} Answer with the ions of group {group}, in any order, written like "
        '"K+, Na+"; what is left of earlier groups does not count.\n\n'
        f"Possible ions: {', '.join(task.possible)}.\n\n"
        "reagents() lists what is on the shelf; confirm what you think you see."
    )


def report_prompt(task: WetlabTask, named: Mapping[str, Sequence[str]]) -> str:
    """What the report is asked; ``named`` is what the stages named, by group."""
    found = "; ".join(f"{group}: {', '.join(ions)}" for group, ions in named.items())
    return (
        "A separation of an unknown in stages is finished; you write its report. The stages named, by group: "
        f'{found}. The vessel "sample" holds {task.volume_ml:g} mL that were kept of the unknown ({task.described}), '
        "for what you doubt. Answer with all ions of these groups that the unknown contains, in any order, written "
        'like "K+, Na+".\n\n'
        f"Possible ions: {', '.join(task.possible)}."
    )


def score_stage(named: Sequence[str], task: WetlabTask) -> tuple[float, dict[str, float]]:
    """F1 over the group's ions. Ions of earlier groups, which a separation never removes whole, are passed over."""
    groups = list(GROUPS.values())
    earlier = {ion for ions in groups[: groups.index(task.possible)] for ion in ions}
    return score_ions([ion for ion in named if ion not in earlier], task.answer)


def score_report(named: Sequence[str], truth: Sequence[str]) -> tuple[float, dict[str, float]]:
    """The mean over the groups of F1, times the share of named ions that belong to a group at all."""
    parts = {group: _score_group(named, truth, ions) for group, ions in GROUPS.items()}
    known = sum(ion in ions for ion in named for ions in GROUPS.values())
    share = known / len(named) if named else 0.0
    return share * sum(parts.values()) / len(parts), {**parts, "of these groups": share}


def _score_group(named: Sequence[str], truth: Sequence[str], ions: Sequence[str]) -> float:
    return score_ions([ion for ion in named if ion in ions], [ion for ion in truth if ion in ions])[0]
