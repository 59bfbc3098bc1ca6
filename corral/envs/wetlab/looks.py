"""What a chemist sees: colours, amounts, flames, smells. Tables and pure functions; no engine.

Simplifications, declared: a mixture of precipitates is seen as one entry per colour, but black hides every lighter
colour of less than `MASKING` times its amount; a coloured solution is the list of its visible colours; only the amounts
in `AMOUNTS` are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

from corral.envs.wetlab.engine import INERT, base, database

MASKING = 3.0

AMOUNTS = ((1e-2, "heavy"), (2e-3, "moderate"), (1e-4, "slight"))
"""Moles of solid per litre of the mixture from which on an amount has this name; less is not seen."""

SOLIDS = {
    "black": ("PbS", "HgS", "CuS", "Ag2S", "NiS", "CoS", "Hg2S", "Hg", "Hg2O"),
    "white": (
        "ZnS", "Pb(OH)2", "Al(OH)3", "Zn(OH)2", "Cd(OH)2", "Mg(OH)2", "Ca(OH)2", "Ba(OH)2", "Sn(OH)2", "Sb(OH)3",
        "PbCO3", "ZnCO3", "CdCO3", "CaCO3", "SrCO3", "BaCO3", "MgCO3:3H2O", "PbSO4", "BaSO4", "SrSO4", "CaSO4:2H2O",
        "Ag2SO4", "Hg2SO4", "AgCl", "PbCl2", "PbBr2", "Hg2Cl2", "Hg2Br2", "PbClOH", "Pb3(PO4)2", "Zn3(PO4)2",
        "Cd3(PO4)2", "MgHPO4", "CaHPO4", "SrHPO4", "BaHPO4", "AlPO4", "AgSCN", "MgNH4PO4", "CaC2O4", "BaC2O4",
    ),
    "yellow": ("CdS", "AgI", "PbI2", "PbCrO4", "BaCrO4", "SrCrO4", "CaCrO4", "Ag3PO4", "HgO", "Ag2CO3", "Hg2CO3"),
    "cream": ("AgBr",),
    "yellowish white": ("FePO4",),
    "yellow-green": ("Hg2I2",),
    "orange": ("Sb2S3",),
    "scarlet": ("HgI2",),
    "brick red": ("Ag2CrO4", "Hg2CrO4"),
    "rose red": ("Ni(HDmg)2",),
    "flesh pink": ("MnS",),
    "pink": ("Co(OH)2",),
    "violet-pink": ("CoCO3", "CoHPO4"),
    "buff": ("Mn(OH)2", "MnCO3", "MnHPO4"),
    "brown": ("SnS", "Ag2O", "CuCrO4"),
    "red-brown": ("Fe(OH)3",),
    "brown-black": ("MnO2",),
    "grey-green": ("Cr(OH)3",),
    "green": ("Ni(OH)2", "NiCO3", "Ni3(PO4)2"),
    "pale blue": ("Cu(OH)2",),
    "blue-green": ("CuCO3", "Cu2(OH)2CO3", "Cu3(PO4)2"),
}  # fmt: skip

COLOUR_OF = {solid: colour for colour, solids in SOLIDS.items() for solid in solids}

_COPPER_AMMINES = ("CuNhH3+2", "Cu(NhH3)2+2", "Cu(NhH3)3+2", "Cu(NhH3)4+2")
_NICKEL_AMMINES = ("Ni(NhH3)2+2", "Ni(NhH3)3+2", "Ni(NhH3)4+2", "Ni(NhH3)5+2", "Ni(NhH3)6+2")
_COBALT_AMMINES = (
    "Co(NhH3)2+2", "Co(NhH3)3+2", "Co(NhH3)4+2", "Co(NhH3)5+2", "Co(NhH3)6+2",
)  # fmt: skip
_THIOCYANATES = ("FeScn+2", "Fe(Scn)2+")

_COMPLEXES = (
    ("Fe", "blood red", _THIOCYANATES, 2e-5),
    ("Cu", "deep blue", _COPPER_AMMINES, 2e-4),
    ("Ni", "blue-violet", _NICKEL_AMMINES, 1e-3),
    ("Co", "straw-coloured", _COBALT_AMMINES, 1e-3),
    ("Cr", "emerald green", ("Cr(OH)4-",), 5e-4),
    ("Crvi", "orange", ("Crvi2O7-2",), 1e-3),
)
_PLAIN = (
    ("Cu", "pale blue", 2e-3),
    ("Ni", "green", 2e-3),
    ("Co", "pink", 2e-3),
    ("Fe", "pale yellow", 1e-3),
    ("Cr", "grey-violet", 1e-3),
    ("Crvi", "yellow", 1e-4),
)

_FLAMES = (
    ("Sr", "crimson"), ("Ca", "brick red"), ("Ba", "apple green"), ("Cu", "blue-green"), ("K", "pale lilac"),
)  # fmt: skip
_FLAME_LEAST = 2e-4
"""Moles per litre of the vessel that colour a flame."""

VAPOURS = {
    "NH3(g)": "turns moist red litmus blue, pungent",
    "H2S(g)": "blackens lead acetate paper, smells of rotten eggs",
    "CO2(g)": "odourless, clouds limewater",
}
_GAS_LEAST = {"NH3(g)": 2e-7, "H2S(g)": 2e-7, "CO2(g)": 1e-5}
"""Moles of gas that are noticed: test papers are sensitive, limewater is not."""


class Precipitate(TypedDict):
    """One colour of solid, as seen."""

    colour: str
    amount: str


def amount(moles: float, litres: float) -> str | None:
    """How much solid this looks like; None when it is not seen."""
    concentration = moles / litres
    return next((name for least, name in AMOUNTS if concentration >= least), None)


def precipitates(solids: Mapping[str, float], litres: float) -> list[Precipitate]:
    """The solids by colour, most first."""
    by_colour: dict[str, float] = {}
    for solid, moles in solids.items():
        colour = COLOUR_OF[solid]
        by_colour[colour] = by_colour.get(colour, 0.0) + moles
    hidden = MASKING * by_colour.get("black", 0.0) if amount(by_colour.get("black", 0.0), litres) else 0.0
    by_colour = {c: moles for c, moles in by_colour.items() if c == "black" or moles >= hidden}
    ranked = sorted(by_colour.items(), key=lambda item: (-item[1], item[0]))
    return [{"colour": c, "amount": seen} for c, moles in ranked if (seen := amount(moles, litres))]


def coloured_species(totals: Iterable[str], solids: Iterable[str]) -> list[str]:
    """The dissolved species whose concentration decides on a colour, for a mixture of these elements."""
    phases = database().phases
    there = {base(e) for e in totals} | {base(e) for s in solids for e in (phases.get(s) or INERT[s])}
    needs = {"Cu": "Nh", "Ni": "Nh", "Co": "Nh", "Fe": "Scn"}
    return [
        name
        for element, _, names, _ in _COMPLEXES
        if element in there and needs.get(element, element) in there
        for name in names
    ]


def solution_colour(totals: Mapping[str, float], species: Mapping[str, float], litres: float) -> str:
    """The colours of the clear solution, joined by "and"; "colourless" when there is none."""
    seen: list[str] = []
    tinted: set[str] = set()
    for element, colour, names, least in _COMPLEXES:
        if sum(species.get(name, 0.0) for name in names) >= least:
            seen.append(colour)
            tinted.add(element)
    for element, colour, least in _PLAIN:
        if element not in tinted and totals.get(element, 0.0) / litres >= least:
            seen.append(colour)
    return " and ".join(seen) or "colourless"


def flame(amounts: Mapping[str, float], litres: float) -> str:
    """The colour that a flame takes: sodium hides every other one."""
    strong = {e for e, moles in amounts.items() if moles / litres >= _FLAME_LEAST}
    if "Na" in strong:
        return "intense yellow"
    return next((colour for element, colour in _FLAMES if element in strong), "no colour")


def flame_through_cobalt_glass(amounts: Mapping[str, float], litres: float) -> str:
    """The same through blue glass, which takes the yellow away: only potassium shows."""
    return "crimson-violet" if amounts.get("K", 0.0) / litres >= _FLAME_LEAST else "no colour"


def vapours(gases: Mapping[str, float]) -> list[str]:
    """What escaping gases do to the nose and to test papers."""
    return [effect for gas, effect in VAPOURS.items() if gases.get(gas, 0.0) >= _GAS_LEAST[gas]]
