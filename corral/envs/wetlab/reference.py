"""The reference experiments that decide on the right order: run when an answer is scored, on a fresh sample."""

from __future__ import annotations

from collections.abc import Sequence

from corral.envs.wetlab import column
from corral.envs.wetlab.bench import Vessel
from corral.envs.wetlab.engine import Engine
from corral.envs.wetlab.stock import ion_totals, solution_totals

TIE_ML = 0.75
"""Titrant (0.1 M) between two beginnings that count as simultaneous."""
TIE_PORES = 0.1
"""Pore volumes between two breakthroughs that count as simultaneous."""


def precipitation(sample: Vessel, ions: Sequence[str], volume_ml: float = 210.0, steps: int = 420) -> dict[str, float]:
    """The volume of 0.1 M sodium hydroxide at which a hundredth of each ion has come down."""
    engine, step_l = Engine(), volume_ml / steps / 1000
    portion = solution_totals({"Na+": 0.1}, step_l)
    totals, solids, water = dict(sample["totals"]), dict(sample["solids"]), sample["water_kg"]
    metals = {ion: next(iter(ion_totals(ion))) for ion in ions}
    there = {ion: totals[metal] for ion, metal in metals.items()}
    at: dict[str, float] = {}
    for step in range(1, steps + 1):
        totals = {e: totals.get(e, 0.0) + portion.get(e, 0.0) for e in {**totals, **portion}}
        water += step_l
        done = engine.equilibrate(totals, solids, water)
        totals, solids = done.totals, done.solids
        for ion, metal in metals.items():
            if ion not in at and totals.get(metal, 0.0) < 0.99 * there[ion]:
                at[ion] = round(step * volume_ml / steps, 3)
        if len(at) == len(ions):
            break
    return {ion: at.get(ion, volume_ml) for ion in ions}


def breakthrough(sample: Vessel, ions: Sequence[str], cells: int = 20, pores: int = 7) -> dict[str, float]:
    """The pore volumes after which each ion has reached half of its feed concentration."""
    effluent = column.breakthrough(sample, "cation resin", cells, cells * pores)
    at: dict[str, float] = {}
    for ion in ions:
        element = next(iter(ion_totals(ion)))
        half = sample["totals"][element] / sample["water_kg"] / 2
        passed = [i for i, mix in enumerate(effluent, 1) if mix[element] >= half]
        at[ion] = (passed[0] if passed else len(effluent) + 1) / cells
    return at
