"""Two scripted agents: an expert that follows the hydrogen sulfide scheme, and a careless one. Baselines, no models.

Both are deterministic and see nothing but the prompt and what the tools answer. ``lab.call(tool, **arguments)`` calls a
tool. The expert separates before it concludes and confirms every ion by a reaction of its own; the careless one adds
group reagents to the sample as it is and takes each colour for the best known ion that has it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from corral.envs.wetlab.hands import Hands, Lab, clearly, colours

if TYPE_CHECKING:
    from corral.agents import ScriptedAgent
    from corral.types import TrialContext


def expert(lab: Lab, prompt: str) -> str:
    """Solve any task of the benchmark."""
    hands = Hands(lab)
    possible = _possible(prompt)
    if "which anion" in prompt:
        return ", ".join(_anion(hands))
    if "hydroxides come down" in prompt:
        return ", ".join(_titration(hands, possible))
    if "break through" in prompt:
        return ", ".join(_column(hands, possible))
    if "You do stage" in prompt:
        return ", ".join(ion for ion in _stage(hands, prompt) if ion in possible)
    if "The stages named" in prompt:
        return _named(prompt)
    return ", ".join(dict.fromkeys(ion for ion in _scheme(hands) if ion in possible))


def careless(lab: Lab, prompt: str) -> str:
    """Give a quick answer: group reagents on the raw sample, first guess, nothing confirmed."""
    hands = Hands(lab)
    possible = _possible(prompt)
    if "which anion" in prompt:
        seen = hands.try_on("sample", 1, ("Ag+ nitrate 0.1M", 1))
        return "Cl-" if colours(seen) else "SO4-2"
    if "hydroxides come down" in prompt:
        events = lab.call("titrate", vessel="sample", titrant="NaOH 6M", volume_ml=6, steps=6)["events"]
        found = [_FIRST_GUESS.get(e["seen"].removeprefix("a ").split(" precipitate")[0]) for e in events]
        return ", ".join(dict.fromkeys(ion for ion in found if ion in possible))
    if "break through" in prompt:
        lab.call("run_column", sample="sample", packing="cation resin", cells=10, shifts=20)
        return "Pb+2, Ca+2, K+"
    if "The stages named" in prompt:
        return _named(prompt)
    found = []
    share = 0.5 if "You do stage" in prompt else 1.0
    for reagent in ("HCl 6M", "NH3 6M", "NaOH 6M", "(NH4)2S 0.5M + NH3 1M", "(NH4)2CO3 0.5M"):
        seen = hands.try_on("sample", share, (reagent, share))
        found += [_GUESSES[reagent].get(colour, "") for colour in (*colours(seen), seen["solution"])]
    if 'named "rest"' in prompt:  # It leaves the sample as it is.
        lab.call("centrifuge", vessel="sample", liquid="rest", solid=hands.label())
    return ", ".join(dict.fromkeys(ion for ion in found if ion in possible))


def expert_agent(context: TrialContext | None = None, *, think_time: float = 0.0) -> ScriptedAgent:
    """A factory for the runner: the expert."""
    from corral.agents import ScriptedAgent

    return ScriptedAgent(expert, model="expert", think_time=think_time)


def careless_agent(context: TrialContext | None = None, *, think_time: float = 0.0) -> ScriptedAgent:
    """A factory for the runner: the careless one."""
    from corral.agents import ScriptedAgent

    return ScriptedAgent(careless, model="careless", think_time=think_time)


_FIRST_GUESS = {
    "red-brown": "Fe+3", "white": "Al+3", "pale blue": "Cu+2", "green": "Ni+2", "pink": "Co+2", "grey-green": "Cr+3",
}  # fmt: skip
_GUESSES: dict[str, dict[str, str]] = {
    "HCl 6M": {"white": "Ag+", "green": "Ni+2", "pink": "Co+2"},
    "NH3 6M": {"red-brown": "Fe+3", "white": "Al+3", "deep blue": "Cu+2", "black": "Hg2+2"},
    "NaOH 6M": {"red-brown": "Fe+3", "white": "Mg+2", "brown": "Ag+", "yellow": "Hg+2"},
    "(NH4)2S 0.5M + NH3 1M": {"black": "Cu+2", "yellow": "Cd+2", "white": "Zn+2"},
    "(NH4)2CO3 0.5M": {"white": "Ca+2"},
}


def _possible(prompt: str) -> list[str]:
    match = re.search(r"Possible ions: (.*)\.", prompt)
    return match[1].split(", ") if match else []


# The scheme. Every step takes the liquid that the one before it left, and gives the ions found and its own liquid.


def _scheme(hands: Hands) -> list[str]:
    found = _first_looks(hands)
    liquid = hands.portion("sample", 12)
    for step in (_group_1, _group_2, _group_3, _group_4, _group_5, _magnesium):
        ions, liquid = step(hands, liquid)
        found += ions
    return found


def _first_looks(hands: Hands) -> list[str]:
    tube = hands.portion("sample", 1)
    found = []
    if "yellow" in hands.lab.call("flame_test", vessel=tube):
        found.append("Na+")
    if "violet" in hands.lab.call("flame_test_cobalt_glass", vessel=tube):
        found.append("K+")
    hands.add(tube, ("NaOH 6M", 2))
    if any("litmus" in effect for effect in hands.boil_down(tube, 2.5)["gas"]):
        found.append("NH4+")
    return found


def _group_1(hands: Hands, liquid: str) -> tuple[list[str], str]:
    found: list[str] = []
    hands.add(liquid, ("HCl 6M", 2))
    liquid, solid, _ = hands.spin(liquid)
    for _ in range(2):  # Lead chloride dissolves in much water, the others do not.
        if solid is None:
            return found, liquid
        hands.add(solid, ("water", 25))
        washings, solid, _ = hands.spin(solid)
        if "yellow" in colours(hands.add(washings, ("K2CrO4 0.1M", 1))) and "Pb+2" not in found:
            found.append("Pb+2")
    if solid is None:
        return found, liquid
    if "black" in colours(hands.add(solid, ("NH3 6M", 4))):
        found.append("Hg2+2")
    extract, _, _ = hands.spin(solid)
    if clearly(hands.add(extract, ("HNO3 6M", 6)), "white"):
        found.append("Ag+")
    return found, liquid


def _group_2(hands: Hands, liquid: str) -> tuple[list[str], str]:
    found: list[str] = []
    # 15.6 mmol of acid in 14 mL: down to 0.6 M, where zinc stays in solution and cadmium does not.
    hands.add(liquid, ("NH3 6M", 1.1))
    hands.lab.call("bubble_h2s", vessel=liquid)
    liquid, solid, _ = hands.spin(liquid)
    if solid is None:
        return found, liquid
    if clearly(hands.lab.call("digest_nitric", vessel=solid, volume_ml=4), "black"):
        found.append("Hg+2")
    extract, _, _ = hands.spin(solid)
    hands.up_to_ph(extract, 1, ("NH3 6M", 0.25))
    if clearly(hands.add(extract, ("H2SO4 1M", 2)), "white"):
        found.append("Pb+2")
    extract, _, _ = hands.spin(extract)
    if "deep blue" in hands.add(extract, ("NH3 6M", 4))["solution"]:
        found.append("Cu+2")
    extract, _, _ = hands.spin(extract)
    hands.down_to_ph(extract, 1, "HCl 6M", 0.5)
    hands.lab.call("bubble_h2s", vessel=extract)
    _, sulfides, _ = hands.spin(extract)
    if sulfides is not None:
        hands.add(sulfides, ("HCl 6M", 4))  # Cadmium sulfide dissolves, copper's does not.
        extract, _, _ = hands.spin(sulfides)
        hands.add(extract, ("water", 10), ("NH3 6M", 3.3))
        if clearly(hands.lab.call("bubble_h2s", vessel=extract), "yellow"):
            found.append("Cd+2")
    return found, liquid


def _group_3(hands: Hands, liquid: str) -> tuple[list[str], str]:
    found: list[str] = []
    hands.boil_down(liquid, 14)
    hands.add(liquid, ("buffer NH3/NH4Cl 0.4/2M", 5))
    hands.up_to_ph(liquid, 8, ("NH3 6M", 0.3), ("NH3 1M", 0.4))
    liquid, solid, _ = hands.spin(liquid)
    if solid is None:
        return found, liquid
    hands.add(solid, ("NaOH 6M", 4))
    hands.lab.call("oxidise_h2o2", vessel=solid)
    extract, rest, _ = hands.spin(solid)
    if rest is not None:
        hands.add(rest, ("HNO3 6M", 3))
        if "blood red" in hands.add(rest, ("KSCN 0.1M", 1))["solution"]:
            found.append("Fe+3")
    hands.down_to_ph(extract, 2, "HNO3 6M", 0.5)
    seen = hands.add(extract, ("buffer NH3/NH4Cl 1/2M", 6), ("NH3 6M", 1))
    if clearly(seen, "white"):
        found.append("Al+3")
    if "yellow" in seen["solution"]:
        found.append("Cr+3")
    return found, liquid


def _group_4(hands: Hands, liquid: str) -> tuple[list[str], str]:
    found: list[str] = []
    hands.add(liquid, ("(NH4)2S 0.5M + NH3 1M", 8))
    liquid, solid, _ = hands.spin(liquid)
    if solid is None:
        return found, liquid
    hands.lab.call("digest_nitric", vessel=solid, volume_ml=3)
    hands.add(solid, ("water", 5))
    extract, _, _ = hands.spin(solid)
    tube = hands.portion(extract, 1)
    hands.up_to_ph(tube, 9, ("NH3 6M", 0.5))
    if clearly(hands.add(tube, ("DMG 0.05M", 7)), "rose red"):
        found.append("Ni+2")
    tube, _, _ = hands.spin(tube)
    if "black" in colours(hands.add(tube, ("(NH4)2S 0.5M + NH3 1M", 1))):
        found.append("Co+2")
    tube = hands.portion(extract, 3)
    hands.add(tube, ("NaOH 6M", 4))
    hands.lab.call("oxidise_h2o2", vessel=tube)
    zincate, rest, _ = hands.spin(tube)
    if clearly(hands.add(zincate, ("(NH4)2S 0.5M + NH3 1M", 2)), "white"):
        found.append("Zn+2")
    if rest is not None and clearly(hands.add(rest, ("HNO3 6M", 3)), "brown-black"):
        found.append("Mn+2")
    return found, liquid


def _group_5(hands: Hands, liquid: str) -> tuple[list[str], str]:
    found: list[str] = []
    hands.down_to_ph(liquid, 2, "HCl 6M", 0.5)
    hands.boil_down(liquid, 15)
    liquid, _, _ = hands.spin(liquid)
    hands.up_to_ph(liquid, 9, ("NH3 6M", 0.5))
    hands.add(liquid, ("(NH4)2CO3 0.5M", 8))
    liquid, solid, _ = hands.spin(liquid)
    if solid is None:
        return found, liquid
    hands.add(solid, ("buffer HAc/NaAc 1/1M", 6), ("water", 6))
    if clearly(hands.add(solid, ("K2CrO4 0.1M", 8)), "yellow"):
        found.append("Ba+2")
    extract, _, _ = hands.spin(solid)
    if colours(hands.try_on(extract, 5, ("Na2SO4 0.02M", 5))).get("white"):
        found.append("Sr+2")
    if clearly(hands.try_on(extract, 5, ("(NH4)2C2O4 0.1M", 4)), "white"):
        found.append("Ca+2")
    return found, liquid


def _magnesium(hands: Hands, liquid: str) -> tuple[list[str], str]:
    seen = hands.try_on(liquid, 5, ("NH3 6M", 1), ("Na2HPO4 0.1M", 4))
    return (["Mg+2"] if clearly(seen, "white") else []), liquid


def _stage(hands: Hands, prompt: str) -> list[str]:
    """One step of the scheme on what the step before left."""
    group = prompt.split("You do stage ")[1].split()[0]
    liquid = hands.portion("sample", 12) if group == "I" else "sample"
    ions, rest = _STAGES[group](hands, liquid)
    hands.lab.call("centrifuge", vessel=rest, liquid="rest", solid=hands.label())
    return ions


_STAGES = {"I": _group_1, "II": _group_2, "III": _group_3, "IV": _group_4, "V": _group_5}


def _named(prompt: str) -> str:
    """What the stages of a separation named, by a report's prompt."""
    return ", ".join(re.findall(r"[A-Z][a-z]?\d?[+]\d?", prompt.split("by group: ")[1].split(". The vessel")[0]))


def _anion(hands: Hands) -> list[str]:
    sour = hands.try_on("sample", 2, ("HNO3 1M", 2))
    if any("limewater" in effect for effect in sour["gas"]):
        return ["CO3-2"]
    if sour["solution"] in ("yellow", "orange"):
        return ["CrO4-2"]
    if colours(hands.try_on("sample", 2, ("HNO3 1M", 1), ("Ba+2 nitrate 0.02M", 2))):
        return ["SO4-2"]
    if "blood red" in hands.try_on("sample", 2, ("HNO3 1M", 1), ("Fe+3 nitrate 0.02M", 2))["solution"]:
        return ["SCN-"]
    silver = colours(hands.try_on("sample", 2, ("HNO3 1M", 1), ("Ag+ nitrate 0.1M", 1)))
    for colour, ion in (("white", "Cl-"), ("cream", "Br-"), ("yellow", "I-")):
        if colour in silver:
            return [ion]
    return ["PO4-3"] if "yellow" in colours(hands.try_on("sample", 2, ("Ag+ nitrate 0.1M", 1))) else []


_HYDROXIDES = {
    "red-brown": "Fe+3", "grey-green": "Cr+3", "pale blue": "Cu+2", "green": "Ni+2", "pink": "Co+2", "buff": "Mn+2",
}  # fmt: skip


def _titration(hands: Hands, possible: list[str]) -> list[str]:
    seen = hands.lab.call("titrate", vessel="sample", titrant="NaOH 0.1M", volume_ml=220, steps=400)
    found: list[str] = []
    for event in seen["events"]:
        if "begins" not in event["seen"]:
            continue
        colour = event["seen"].removeprefix("more of ").removeprefix("a ").split(" precipitate")[0]
        white = "Al+3" if event["pH"] < 5.5 else "Zn+2" if event["pH"] < 9 else "Mg+2"
        found.append(_HYDROXIDES.get(colour, white))
    return [ion for ion in dict.fromkeys(found) if ion in possible]


def _column(hands: Hands, possible: list[str]) -> list[str]:
    there = [ion for ion in possible if _spot(hands, "sample", ion)]
    made = hands.lab.call("run_column", sample="sample", packing="cation resin", cells=40, shifts=240)
    fractions = sorted(made["fractions"])
    first: dict[str, int] = {}
    for ion in there:
        low, high = 0, len(fractions)
        while low < high:  # It is in none before it breaks through, and in all after.
            middle = (low + high) // 2
            low, high = (low, middle) if _spot(hands, fractions[middle], ion) else (middle + 1, high)
        first[ion] = low
    return sorted(there, key=lambda ion: first[ion])


def _spot(hands: Hands, vessel: str, ion: str) -> bool:
    """A test for one ion beside the others that the column's task may hold."""
    if ion == "K+":
        return "violet" in hands.lab.call("flame_test_cobalt_glass", vessel=vessel)
    tests = {
        "Cu+2": (("NH3 6M", 0.05),),
        "Ca+2": (("buffer HAc/NaAc 1/1M", 0.05), ("(NH4)2C2O4 0.1M", 0.05)),
        "Pb+2": (("K2CrO4 0.1M", 0.05),),
        "Mn+2": (("NaOH 1M", 0.05),),
    }
    tube = hands.portion(vessel, 0.2)
    seen = hands.add(tube, *tests[ion])
    if ion == "Mn+2":
        seen = hands.lab.call("oxidise_h2o2", vessel=tube)
    hands.lab.call("discard", vessel=tube)
    if ion == "Cu+2":
        return "deep blue" in seen["solution"]
    return {"Ca+2": "white", "Pb+2": "yellow", "Mn+2": "brown-black"}[ion] in colours(seen)
