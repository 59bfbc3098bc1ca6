"""A packed column, computed with PHREEQC's TRANSPORT: many cells in a row, the feed shifted through them.

The resin is a sulfonic one in its sodium form. Its exchange constants are those of ``phreeqc.dat`` (USGS PHREEQC
3.8.6; log K at 25 C against Na+), named as in ``wetlab.dat``. It takes up no H+, and only the ions listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.envs.wetlab.engine import TOLERANCE, Engine, NoEquilibrium, check_amount, check_count, check_mixture

EXCHANGE = {
    "Na+ + X- = NaX": 0.0,
    "K+ + X- = KX": 0.7,
    "Li+ + X- = LiX": -0.08,
    "NhH4+ + X- = NhH4X": 0.6,
    "Ca+2 + 2 X- = CaX2": 0.8,
    "Mg+2 + 2 X- = MgX2": 0.6,
    "Sr+2 + 2 X- = SrX2": 0.91,
    "Ba+2 + 2 X- = BaX2": 0.91,
    "Mn+2 + 2 X- = MnX2": 0.52,
    "Cu+2 + 2 X- = CuX2": 0.6,
    "Zn+2 + 2 X- = ZnX2": 0.8,
    "Cd+2 + 2 X- = CdX2": 0.8,
    "Pb+2 + 2 X- = PbX2": 1.05,
    "Al+3 + 3 X- = AlX3": 0.41,
}

CAPACITY = {"cation resin": 0.05, "sand": 0.0}
"""Moles of exchange sites per litre of the water in the packing."""

PORE_ML = 10.0
"""The water in the packing."""

BED_WATER = {"Na": 0.1, "N": 0.1}
"""What the column is rinsed with before: mol/L."""

MAX_CELLS, MAX_SHIFTS = 40, 240


def breakthrough(feed: Mapping[str, Any], packing: str, cells: int, shifts: int) -> list[dict[str, float]]:
    """The effluent's composition (mol/L by element), shift by shift; one shift is ``PORE_ML / cells``."""
    if packing not in CAPACITY:
        raise ValueError(f"there is no packing {packing!r}; there are {', '.join(CAPACITY)}")
    check_count(cells, "cells", MAX_CELLS)
    check_count(shifts, "shifts", MAX_SHIFTS)
    totals, _, water = check_mixture(feed["totals"], {}, feed["water_kg"])
    concentrations = {e: n / water for e, n in totals.items()}
    ph = check_amount(feed["pH"], "pH", least=-2, most=16)
    names = sorted({*concentrations, *BED_WATER})
    rows = Engine().run(_input(concentrations, ph, packing, cells, shifts, names))
    effluent = [row for row in rows if row["step"] > 0]
    if len(effluent) != shifts:
        raise NoEquilibrium("the column did not run to its end")
    return [{e: row[e] for e in names} for row in effluent]


def _input(feed: Mapping[str, float], ph: float, packing: str, cells: int, shifts: int, names: list[str]) -> str:
    species = "".join(f" {reaction}\n log_k {log_k}\n" for reaction, log_k in EXCHANGE.items())
    sites = CAPACITY[packing]
    exchanger = f"EXCHANGE 1-{cells}\n -equilibrate 1\n X {sites}\n" if sites else ""
    return (
        f"KNOBS\n -convergence_tolerance {TOLERANCE}\n"
        f"EXCHANGE_MASTER_SPECIES\n X X-\nEXCHANGE_SPECIES\n X- = X-\n log_k 0\n{species}"
        f"SOLUTION 0\n units mol/kgw\n pH {ph!r} charge\n pe 4\n{_amounts(feed)}"
        f"SOLUTION 1-{cells}\n units mol/kgw\n pH 7 charge\n pe 4\n{_amounts(BED_WATER)}{exchanger}END\n"
        f"SELECTED_OUTPUT 1\n -reset false\n -step true\n -totals {' '.join(names)}\n"
        f"TRANSPORT\n -cells {cells}\n -shifts {shifts}\n -flow_direction forward\n -boundary_conditions flux flux\n"
        f" -lengths {0.1 / cells!r}\n -dispersivities 0.001\n -punch_cells {cells}\n -punch_frequency 1\nEND\n"
    )


def _amounts(concentrations: Mapping[str, float]) -> str:
    return "".join(f" {e} {c!r}\n" for e, c in sorted(concentrations.items()))
