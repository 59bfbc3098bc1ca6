"""Ions, stock solutions and the reagent shelf: names as a chemist writes them, and the totals that they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache

from corral.envs.wetlab.engine import DATA

_SPECIAL: dict[str, dict[str, float]] = {
    "H+": {}, "OH-": {}, "NO3-": {"N": 1}, "NH3": {"Nh": 1}, "NH4+": {"Nh": 1}, "S-2": {"Sii": 1}, "H2S": {"Sii": 1},
    "HAc": {"Acetate": 1}, "Ac-": {"Acetate": 1}, "SO4-2": {"S": 1}, "CO3-2": {"C": 1}, "HCO3-": {"C": 1},
    "PO4-3": {"P": 1}, "HPO4-2": {"P": 1}, "CrO4-2": {"Crvi": 1}, "SCN-": {"Scn": 1}, "Dmg-": {"Dmg": 1},
    "Ox-2": {"Ox": 1}, "Hg2+2": {"Hg(1)": 2}, "Hg+2": {"Hg(2)": 1},
}  # fmt: skip
"""Totals of the ions that are not simply their own element. H+ and OH- follow from charge balance."""

SHELF = (
    "water", "HCl 1M", "HCl 6M", "HNO3 1M", "HNO3 6M", "H2SO4 1M", "NaOH 0.1M", "NaOH 1M", "NaOH 6M", "NH3 1M",
    "NH3 6M", "buffer NH3/NH4Cl 1/2M", "buffer NH3/NH4Cl 0.4/2M", "buffer HAc/NaAc 1/1M", "Na2CO3 0.1M",
    "(NH4)2S 0.5M + NH3 1M", "(NH4)2CO3 0.5M", "KI 0.1M", "K2CrO4 0.1M", "Na2SO4 0.1M", "Na2SO4 0.02M", "KSCN 0.1M",
    "DMG 0.05M", "Na2HPO4 0.1M", "(NH4)2C2O4 0.1M", "NaCl 0.02M", "KBr 0.1M", "Ag+ nitrate 0.1M",
    "Ba+2 nitrate 0.02M", "Pb+2 nitrate 0.1M", "Fe+3 nitrate 0.02M",
)  # fmt: skip
"""The reagents of the bench, by name."""

ELEMENT_ION = re.compile(r"([A-Z][a-z]?)(?:[+-]\d?)$")


@cache
def stock() -> Mapping[str, Mapping[str, float]]:
    """The stock solutions of ``stock.json``: mol/L by ion; and water."""
    return {"water": {}, **json.loads((DATA / "stock.json").read_text("utf-8"))}


def ion_totals(ion: str) -> dict[str, float]:
    """The moles of each element in one mole of an ion."""
    if ion in _SPECIAL:
        return dict(_SPECIAL[ion])
    match = ELEMENT_ION.match(ion)
    if match is None:
        raise ValueError(f"unknown ion {ion!r}")
    return {match[1]: 1.0}


def solution_totals(ions: Mapping[str, float], litres: float) -> dict[str, float]:
    """Moles by element of so many litres of a solution given as mol/L by ion."""
    totals: dict[str, float] = {}
    for ion, molarity in ions.items():
        for element, n in ion_totals(ion).items():
            totals[element] = totals.get(element, 0.0) + n * molarity * litres
    return totals
