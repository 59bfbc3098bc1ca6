"""The problems: what is in the sample, what is asked, and how an answer is scored. Drawn by seed; no engine.

The default plan has three levels: one ion; a group of ions, or an order of precipitation; many ions, or the order of
breakthrough from a column. Ids do not tell the answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CATIONS = (
    "Ag+", "Pb+2", "Hg2+2", "Hg+2", "Cu+2", "Cd+2", "Fe+3", "Al+3", "Cr+3", "Ni+2", "Co+2", "Mn+2", "Zn+2", "Ba+2",
    "Sr+2", "Ca+2", "Mg+2", "NH4+", "K+", "Na+",
)  # fmt: skip
ANIONS = ("Cl-", "Br-", "I-", "SO4-2", "CO3-2", "PO4-3", "CrO4-2", "SCN-")
GROUPS = {
    "I": ("Ag+", "Pb+2", "Hg2+2"),
    "II": ("Hg+2", "Cu+2", "Cd+2"),
    "III": ("Fe+3", "Al+3", "Cr+3"),
    "IV": ("Ni+2", "Co+2", "Mn+2", "Zn+2"),
    "V": ("Ba+2", "Sr+2", "Ca+2"),
}
HYDROXIDES = ("Fe+3", "Al+3", "Cr+3", "Cu+2", "Zn+2", "Ni+2", "Co+2", "Mn+2", "Mg+2")
COLUMN = ("K+", "Mn+2", "Cu+2", "Ca+2", "Pb+2")

Kind = Literal["ions", "anion", "titration", "column", "stage", "report"]


@dataclass(frozen=True)
class WetlabTask:
    """One problem. ``sample`` is mol/L by ion; the engine brings it to equilibrium when the trial starts."""

    id: str
    level: int
    kind: Kind
    answer: tuple[str, ...]
    """The ions to name. For an order, the reference experiment decides on the order."""
    possible: tuple[str, ...]
    sample: Mapping[str, float]
    volume_ml: float
    described: str
    """What the agent is told of the sample."""
    parents: tuple[str, ...] = ()
    """The tasks that come before it in a chain."""


def charge(ion: str) -> int:
    """The charge of an ion by its name: 2 for ``Pb+2``."""
    match = re.search(r"([+-])(\d?)$", ion)
    if match is None:
        raise ValueError(f"{ion!r} has no charge")
    return int(match[1] + (match[2] or "1"))


def acid_sample(rng: random.Random, ions: Sequence[str], *, acid: float = 0.3) -> dict[str, float]:
    """Nitrates of ``ions``, 0.02-0.05 M each, in nitric acid."""
    sample = {ion: round(rng.uniform(0.02, 0.05), 4) for ion in ions}
    return {**sample, "NO3-": round(acid + sum(charge(i) * c for i, c in sample.items()), 6)}


def default_tasks(seed: int = 0) -> dict[str, WetlabTask]:
    """The benchmark: the same tasks for the same seed."""
    tasks: list[WetlabTask] = []
    for n, ion in enumerate(("Ag+", "Pb+2", "Al+3", "Ba+2", "NH4+"), 1):
        tasks.append(_unknown(f"l1-cation-{n}", 1, task_rng(seed, f"l1-cation-{n}"), (ion,), CATIONS))
    for n, ion in enumerate(("Cl-", "SO4-2", "I-"), 1):
        tasks.append(_salt(f"l1-salt-{n}", task_rng(seed, f"l1-salt-{n}"), ion))
    for n, group in enumerate(GROUPS.values(), 1):
        rng = task_rng(seed, f"l2-group-{n}")
        tasks.append(_unknown(f"l2-group-{n}", 2, rng, some(rng, group, rng.randint(2, len(group))), group))
    for n in (1, 2):
        tasks.append(_titration(f"l2-titration-{n}", 2, task_rng(seed, f"l2-titration-{n}"), 4))
    rng = task_rng(seed, "l3-one-per-group")
    tasks.append(_unknown("l3-one-per-group", 3, rng, [rng.choice(g) for g in GROUPS.values()], CATIONS))
    for name, count in (("l3-eight-ions", 8), ("l3-ten-ions", 10)):
        rng = task_rng(seed, name)
        tasks.append(_unknown(name, 3, rng, some(rng, CATIONS, count), CATIONS))
    tasks.append(_titration("l3-titration", 3, task_rng(seed, "l3-titration"), 6))
    for n, matrix in enumerate(("nitrate", "acetate", "chloride"), 1):
        tasks.append(_column(f"l3-column-{n}", task_rng(seed, f"l3-column-{n}"), matrix))
    return {task.id: task for task in tasks}


def prompt(task: WetlabTask) -> str:
    """What the agent is asked."""
    asked = {
        "ions": "Find out which of the possible ions it contains. Answer with the ions, in any order, such as "
        '"Ag+, Pb+2". Nitrate and acid do not count.',
        "anion": 'Find out which anion it contains. Answer with the anion, such as "Br-".',
        "titration": "Find out which metal ions it contains and in which order their hydroxides come down when sodium "
        "hydroxide is run in. Answer with the ions in that order, the first one first, such as "
        '"Fe+3, Cu+2". (titrate is made for this; one run needs the whole sample.)',
        "column": "Find out which of the possible ions it contains and in which order they break through (half of the "
        "feed's concentration in the effluent) when it is fed to the cation resin. Answer with the ions "
        'in that order, the first one first, such as "K+, Pb+2". (run_column is made for this; its pore volume is '
        "10 mL, and six pore volumes bring everything through.)",
    }[task.kind]
    return (
        f'You are at the bench of an analytical laboratory. The vessel "sample" holds {task.volume_ml:g} mL of '
        f"{task.described}. {asked}\n\n"
        f"Possible ions: {', '.join(task.possible)}.\n\n"
        "reagents() lists what is on the shelf; keep some of the sample back, and confirm what you think you see."
    )


def score_ions(named: Sequence[str], truth: Sequence[str]) -> tuple[float, dict[str, float]]:
    """F1 over ions, with precision and recall."""
    hits = len(set(named) & set(truth))
    precision = hits / len(set(named)) if named else 0.0
    recall = hits / len(set(truth))
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return f1, {"precision": precision, "recall": recall, "f1": f1}


def score_order(named: Sequence[str], at: Mapping[str, float], tie: float) -> tuple[float, dict[str, float]]:
    """The share of pairs in the right order, times the precision; 1.0 only for all of the ions, no other, in order.

    ``at`` says when each ion came; of two that came closer than ``tie`` either may be named first.
    """
    _, parts = score_ions(named, list(at))
    place = {ion: i for i, ion in reversed(list(enumerate(named)))}
    pairs = [(a, b) for a in at for b in at if at[a] < at[b]]
    right = [
        (a, b) for a, b in pairs if a in place and b in place and (place[a] < place[b] or at[b] - at[a] < tie)
    ]  # fmt: skip
    order = len(right) / len(pairs) if pairs else parts["recall"]
    return parts["precision"] * order, {**parts, "order": order}


def task_rng(seed: int, name: str) -> random.Random:
    """The random source of one task."""
    return random.Random(f"wetlab {seed} {name}")


def some(rng: random.Random, ions: Sequence[str], count: int) -> list[str]:
    """So many of ``ions``, drawn at random, in their own order."""
    chosen = set(rng.sample(ions, count))
    return [ion for ion in ions if ion in chosen]


def _unknown(
    name: str, level: int, rng: random.Random, ions: Sequence[str], possible: tuple[str, ...]
) -> WetlabTask:  # fmt: skip
    described = "an unknown: nitrates, each ion 0.02-0.05 M, in 0.3 M nitric acid"
    return WetlabTask(name, level, "ions", tuple(ions), possible, acid_sample(rng, ions), 20.0, described)


def _salt(name: str, rng: random.Random, anion: str) -> WetlabTask:
    c = round(rng.uniform(0.02, 0.05), 4)
    sample = {anion: c, "K+": round(-charge(anion) * c, 6)}
    return WetlabTask(name, 1, "anion", (anion,), ANIONS, sample, 20.0, "a solution of one potassium salt in water")


def _titration(name: str, level: int, rng: random.Random, count: int) -> WetlabTask:
    ions = some(rng, HYDROXIDES, count)
    described = f"a mixture of {count} nitrates, each ion 0.02-0.05 M, in 0.3 M nitric acid"
    return WetlabTask(name, level, "titration", tuple(ions), HYDROXIDES, acid_sample(rng, ions), 20.0, described)


def _column(name: str, rng: random.Random, matrix: str) -> WetlabTask:
    # Acetate and chloride hold lead in solution, so the order is another one; copper would come together with lead.
    metal, buffer, sort = {
        "nitrate": ("Cu+2", {}, "0.1 M sodium nitrate"),
        "chloride": ("Mn+2", {"Cl-": 0.1}, "0.1 M sodium chloride"),
        "acetate": ("Mn+2", {"Ac-": 0.03}, "0.07 M sodium nitrate and 0.03 M sodium acetate"),
    }[matrix]
    ions = ("K+", metal, "Ca+2", "Pb+2")
    traces = {ion: round(rng.uniform(0.0008, 0.0012), 6) for ion in ions}
    free = 0.001  # of acid
    nitrate = 0.1 + free - sum(buffer.values()) + sum(charge(i) * c for i, c in traces.items())
    sample = {**traces, "Na+": 0.1, **buffer, "NO3-": round(nitrate, 8)}
    described = f"a brine: {sort} with a little acid, and about 0.001 M each of some other metals' nitrates"
    return WetlabTask(name, 3, "column", ions, COLUMN, sample, 100.0, described)
