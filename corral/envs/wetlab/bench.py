"""The bench: vessels as plain JSON, and what can be done with them. No agent, no task, no score.

A vessel is ``{"water_kg": float, "totals": {element: mol}, "solids": {phase: mol}, "pH": float | None}``; a solid on
its own has no water and no pH. Every operation makes a fresh `Engine`, so its outcome is a function of the vessels and
the arguments alone. A failed operation raises ValueError and leaves the bench as it was.

Declared rules, not equilibria:

- `digest_nitric` (hot nitric acid): sulfides other than mercury's dissolve, their sulfur is taken away; mercury metal
  and mercury(I) in solution become mercury(II).
- `oxidise_h2o2` acts in alkali (pH 8 or more): chromium(III) becomes chromate, manganese(II) hydroxide becomes an inert
  brown-black oxide, sulfide becomes sulfate.
- `boil` drives out hydrogen sulfide, carbon dioxide and ammonia down to 1e-5 atm, and no acid.
- `centrifuge` leaves no liquid in the solid (a perfect wash); `split` takes a well stirred portion.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from corral.envs.wetlab import column, looks
from corral.envs.wetlab.engine import (
    INERT,
    Engine,
    Equilibrium,
    base,
    check_amount,
    check_count,
    check_mixture,
    database,
)
from corral.envs.wetlab.stock import SHELF, solution_totals, stock

Vessel = dict[str, Any]

CAPACITY_ML = 250.0
DROP_ML = 0.02
MAX_VESSELS = 150
VOLUME_SLACK = 1e-6
"""Millilitres by which a volume may be overdrawn: rounding of a caller who takes all."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.'-]{0,39}$")
_OPEN_TUBE = {"C": "CO2(g)", "Sii": "H2S(g)"}


def new_vessel(totals: Mapping[str, float], water_kg: float, solids: Mapping[str, float] | None = None) -> Vessel:
    """A vessel with this content, at equilibrium."""
    done = Engine().equilibrate(totals, solids or {}, water_kg)
    return {"water_kg": done.water_kg, "totals": done.totals, "solids": done.solids, "pH": done.ph}


def check_vessel(vessel: Any) -> Vessel:
    """Return a clean copy of a vessel that came from outside; raise ValueError if it is none."""
    if not isinstance(vessel, dict) or set(vessel) != {"water_kg", "totals", "solids", "pH"}:
        raise ValueError("a vessel has exactly the keys water_kg, totals, solids and pH")
    if vessel["pH"] is None:
        check_mixture({}, vessel["solids"], 1.0)
        if vessel["totals"] or vessel["water_kg"]:
            raise ValueError("a vessel without pH holds solids only")
    else:
        check_mixture(vessel["totals"], vessel["solids"], vessel["water_kg"])
        check_amount(vessel["pH"], "pH", least=-5, most=20)
    return copy.deepcopy(vessel)


def elements(vessel: Vessel) -> dict[str, float]:
    """All that a vessel holds, dissolved or not, in moles by element (redox states of mercury together)."""
    phases = database().phases
    held: dict[str, float] = {}
    for element, moles in vessel["totals"].items():
        held[base(element)] = held.get(base(element), 0.0) + moles
    for solid, moles in vessel["solids"].items():
        for element, n in (phases.get(solid) or INERT[solid]).items():
            held[base(element)] = held.get(base(element), 0.0) + n * moles
    return held


class Bench:
    """Vessels by name, and the operations on them."""

    def __init__(self, vessels: Mapping[str, Vessel]):
        self.vessels: dict[str, Vessel] = {self._fresh_name(name): check_vessel(v) for name, v in vessels.items()}

    def inventory(self) -> dict[str, dict[str, Any]]:
        """Volume and visible solids of every vessel."""
        return {name: self._outside(vessel) for name, vessel in self.vessels.items()}

    def export(self, vessel: str) -> Vessel:
        """A copy of a vessel, as plain JSON."""
        return copy.deepcopy(self._get(vessel))

    def add(self, vessel: str, reagent: str, volume_ml: float) -> dict[str, Any]:
        """Add reagent; a vessel that is not there yet is taken from the shelf."""
        litres = _volume(volume_ml) / 1000
        ions = _reagent(reagent)
        held = self.vessels.get(vessel)
        if held is None:
            self._fresh_name(vessel)
            held = {"water_kg": 0.0, "totals": {}, "solids": {}, "pH": None}
        water = _room(held["water_kg"] + litres)
        totals = _plus(held["totals"], solution_totals(ions, litres))
        return self._settle(vessel, totals, held["solids"], water)

    def mix(self, vessel: str, into: str) -> dict[str, Any]:
        """Pour one vessel into another."""
        source, target = self._get(vessel), self._get(into)
        if vessel == into:
            raise ValueError("a vessel cannot be poured into itself")
        water = _room(source["water_kg"] + target["water_kg"])
        totals, solids = _plus(source["totals"], target["totals"]), _plus(source["solids"], target["solids"])
        if not water:
            self.vessels[into] = {**target, "solids": solids}
            seen = self._outside(self.vessels[into])
        else:
            seen = self._settle(into, totals, solids, water)
        del self.vessels[vessel]
        return seen

    def split(self, vessel: str, new_vessel: str, volume_ml: float) -> dict[str, Any]:
        """Take a well stirred portion into a new vessel."""
        held = self._get(vessel)
        self._fresh_name(new_vessel)
        if held["pH"] is None:
            raise ValueError(f"{vessel!r} holds no liquid to take a portion of")
        there = held["water_kg"] * 1000
        wanted = _volume(volume_ml)
        if wanted > there + VOLUME_SLACK:
            raise ValueError(f"{vessel!r} holds only {there:.2f} mL")
        share = min(1.0, wanted / there)
        self.vessels[new_vessel] = _part(held, share)
        if share * there > there - DROP_ML:
            del self.vessels[vessel]
            return {"taken": self._outside(self.vessels[new_vessel]), "left": None}
        self.vessels[vessel] = _part(held, 1 - share)
        return {"taken": self._outside(self.vessels[new_vessel]), "left": self._outside(self.vessels[vessel])}

    def discard(self, vessel: str) -> dict[str, Any]:
        """Throw away a vessel's content."""
        self._get(vessel)
        del self.vessels[vessel]
        return {"discarded": vessel}

    def centrifuge(self, vessel: str, liquid: str, solid: str) -> dict[str, Any]:
        """Part the clear liquid from the solid. Where no solid is seen, the liquid is all there is."""
        held = self._get(vessel)
        if held["pH"] is None:
            raise ValueError(f"{vessel!r} holds no liquid")
        if liquid == solid:
            raise ValueError("the liquid and the solid need two different vessels")
        for name in (liquid, solid):
            if name != vessel:
                self._fresh_name(name)
        visible = bool(looks.precipitates(held["solids"], held["water_kg"]))
        del self.vessels[vessel]
        self.vessels[liquid] = {**held, "solids": {}} if visible else held
        if visible:
            self.vessels[solid] = {"water_kg": 0.0, "totals": {}, "solids": held["solids"], "pH": None}
        return {
            "liquid": self._outside(self.vessels[liquid]),
            "solid": {"precipitates": looks.precipitates(held["solids"], held["water_kg"])} if visible else None,
        }

    def bubble_h2s(self, vessel: str) -> dict[str, Any]:
        """Saturate with hydrogen sulfide at 1 atm."""
        held = self._wet(vessel)
        return self._settle(vessel, held["totals"], held["solids"], held["water_kg"], gases={"H2S(g)": (0.0, 10.0)})

    def boil(self, vessel: str, to_ml: float) -> dict[str, Any]:
        """Boil down to a volume, and hold test papers into the vapour."""
        held = self._wet(vessel)
        water = _volume(to_ml) / 1000
        if water > held["water_kg"] + VOLUME_SLACK / 1000:
            raise ValueError(f"{vessel!r} holds only {held['water_kg'] * 1000:.2f} mL")
        driven = {"C": "CO2(g)", "Sii": "H2S(g)", "Nh": "NH3(g)"}
        gases = {gas: (-5.0, 0.0) for element, gas in driven.items() if element in elements(held)}
        return self._settle(vessel, held["totals"], held["solids"], water, gases=gases)

    def digest_nitric(self, vessel: str, volume_ml: float) -> dict[str, Any]:
        """Warm with nitric acid (6 M); a declared rule, see above."""
        held = self._get(vessel)
        litres = _volume(volume_ml) / 1000
        phases = database().phases
        totals = _plus(held["totals"], solution_totals(stock()["HNO3 6M"], litres))
        solids = dict(held["solids"])
        for solid in held["solids"]:
            made_of = phases.get(solid, {})
            if ("Sii" in made_of and "Hg" not in made_of) or solid in ("Hg", "Hg2S"):
                moles = solids.pop(solid)
                totals = _plus(totals, {e: n * moles for e, n in made_of.items()})
        totals.pop("Sii", None)
        mercury = sum(totals.pop(state, 0.0) for state in ("Hg", "Hg(0)", "Hg(1)", "Hg(2)"))
        totals["Hg(2)"] = mercury
        return self._settle(vessel, totals, solids, _room(held["water_kg"] + litres))

    def oxidise_h2o2(self, vessel: str) -> dict[str, Any]:
        """Warm with hydrogen peroxide; a declared rule, see above."""
        held = self._wet(vessel)
        totals, solids = dict(held["totals"]), dict(held["solids"])
        if held["pH"] >= 8:
            chromium = totals.pop("Cr", 0.0) + solids.pop("Cr(OH)3", 0.0)
            totals = _plus(totals, {"Crvi": chromium, "S": totals.pop("Sii", 0.0)})
            solids = _plus(solids, {"MnO2": solids.pop("Mn(OH)2", 0.0)})
        return self._settle(vessel, totals, solids, held["water_kg"])

    def measure_ph(self, vessel: str) -> int:
        """The pH by indicator paper: a whole number, 0 to 14."""
        return min(14, max(0, round(float(self._wet(vessel)["pH"]))))

    def flame_test(self, vessel: str, *, cobalt_glass: bool = False) -> str:
        """The flame's colour with what is on the loop."""
        held = self._get(vessel)
        see = looks.flame_through_cobalt_glass if cobalt_glass else looks.flame
        return see(elements(held), held["water_kg"] or 1e-3)

    def titrate(self, vessel: str, titrant: str, volume_ml: float, steps: int) -> dict[str, Any]:
        """Run in a titrant step by step, at equilibrium after every one, with a glass electrode and an eye on it."""
        held = self._wet(vessel)
        count = check_count(steps, "steps", 400)
        litres = _volume(volume_ml) / 1000
        _room(held["water_kg"] + litres)
        portion = solution_totals(_reagent(titrant), litres / count)
        totals, solids, water = held["totals"], held["solids"], held["water_kg"]
        engine, watch = Engine(), _Watch(solids, water)
        curve: list[dict[str, float]] = []
        ph = held["pH"]
        for step in range(1, count + 1):
            water += litres / count
            done = engine.equilibrate(_plus(totals, portion), solids, water, gases=_open_tube(totals, solids, portion))
            totals, solids, ph = done.totals, done.solids, done.ph
            at = {"volume_ml": round(volume_ml * step / count, 3), "pH": round(done.ph, 1)}
            watch.look(done.solids, water, at)
            if step % max(1, count // 20) == 0:
                curve.append(at)
        self.vessels[vessel] = {"water_kg": water, "totals": totals, "solids": solids, "pH": ph}
        return {"events": watch.events, "curve": curve, "at the end": self._outside(self.vessels[vessel])}

    def solubility_scan(self, vessel: str, titrant: str, points: int) -> dict[str, Any]:
        """Many tubes side by side: 0.05 mL of the liquid each, and from none to four times its volume of titrant."""
        held = self._wet(vessel)
        count = check_count(points, "points", 120)
        if count * 0.05 > held["water_kg"] * 1000:
            raise ValueError(f"{count} tubes take {count * 0.05:.2f} mL; {vessel!r} holds less")
        tube = _part(held, 0.05 / (held["water_kg"] * 1000))
        self.vessels[vessel] = _part(held, 1 - count * 0.05 / (held["water_kg"] * 1000))
        ions, engine = _reagent(titrant), Engine()
        rows: list[dict[str, Any]] = []
        for i in range(count):
            litres = 0.05e-3 * 4 * i / max(1, count - 1)
            totals, water = _plus(tube["totals"], solution_totals(ions, litres)), tube["water_kg"] + litres
            species = looks.coloured_species(totals, tube["solids"])
            # A thousandfold tube: the solver dislikes micromoles of water.
            large = {e: n * 1e3 for e, n in totals.items()}
            solids = {solid: n * 1e3 for solid, n in tube["solids"].items()}
            done = engine.equilibrate(large, solids, water * 1e3, species=species)
            seen = {
                "solution": looks.solution_colour(done.totals, done.species, done.water_kg),
                "precipitates": looks.precipitates(done.solids, done.water_kg),
            }
            if not rows or {k: rows[-1][k] for k in seen} != seen:
                rows.append({"volumes of titrant": round(litres / 0.05e-3, 3), **seen})
        return {"tubes": count, "changes": rows, "left": self._outside(self.vessels[vessel])}

    def run_column(self, sample: str, packing: str, cells: int, shifts: int) -> dict[str, Any]:
        """Feed a clear liquid to a column and collect what comes out in up to 20 equal fractions, each a new vessel."""
        held = self._wet(sample)
        if looks.precipitates(held["solids"], held["water_kg"]):
            raise ValueError(f"{sample!r} is not clear: centrifuge it first, solids clog a column")
        effluent = column.breakthrough(held, packing, cells, shifts)
        shift_ml = column.PORE_ML / cells
        there = held["water_kg"] * 1000
        if shifts * shift_ml > there - DROP_ML:
            raise ValueError(f"{shifts} shifts take {shifts * shift_ml:.2f} mL; {sample!r} holds {there:.2f} mL")
        size = max(1, -(-shifts // 20))
        starts = range(0, shifts, size)
        if len(self.vessels) + len(starts) > MAX_VESSELS:
            raise ValueError(f"the rack is full ({MAX_VESSELS} vessels); discard some")
        run = next(n for n in range(1, MAX_VESSELS + 2) if f"run{n}-f01" not in self.vessels)
        made = {}
        for number, start in enumerate(starts, 1):
            parts = effluent[start : start + size]
            mean = {e: sum(part[e] for part in parts) / len(parts) for e in parts[0]}
            litres = len(parts) * shift_ml / 1000
            made[f"run{run}-f{number:02d}"] = new_vessel({e: c * litres for e, c in mean.items()}, litres)
        self.vessels[sample] = _part(held, 1 - shifts * shift_ml / there)
        self.vessels |= made
        return {
            "pore_volume_ml": column.PORE_ML,
            "fractions": {name: self._outside(vessel)["volume_ml"] for name, vessel in made.items()},
            "left": self._outside(self.vessels[sample]),
        }

    def _settle(
        self,
        vessel: str,
        totals: Mapping[str, float],
        solids: Mapping[str, float],
        water: float,
        *,
        gases: Mapping[str, tuple[float, float]] | None = None,
    ) -> dict[str, Any]:
        if gases is None or "H2S(g)" not in gases:
            gases = {**_open_tube(totals, solids), **(gases or {})}
        species = looks.coloured_species(totals, solids)
        done = Engine().equilibrate(totals, solids, water, gases=gases, species=species)
        self.vessels[vessel] = {"water_kg": water, "totals": done.totals, "solids": done.solids, "pH": done.ph}
        return self._seen(vessel, done, gases)

    @staticmethod
    def _seen(vessel: str, done: Equilibrium, gases: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
        given_off = {gas: done.gases[gas] - moles for gas, (_, moles) in gases.items()}
        return {
            "vessel": vessel,
            "volume_ml": round(done.water_kg * 1000, 3),
            "solution": looks.solution_colour(done.totals, done.species, done.water_kg),
            "precipitates": looks.precipitates(done.solids, done.water_kg),
            "gas": looks.vapours(given_off),
        }

    @staticmethod
    def _outside(vessel: Vessel) -> dict[str, Any]:
        litres = vessel["water_kg"] or 1e-3
        return {
            "volume_ml": round(vessel["water_kg"] * 1000, 3),
            "precipitates": looks.precipitates(vessel["solids"], litres),
        }

    def _get(self, vessel: str) -> Vessel:
        try:
            return self.vessels[vessel]
        except (KeyError, TypeError):
            raise ValueError(f"there is no vessel {vessel!r}; there are {', '.join(self.vessels) or 'none'}") from None

    def _wet(self, vessel: str) -> Vessel:
        held = self._get(vessel)
        if held["pH"] is None:
            raise ValueError(f"{vessel!r} holds no liquid; add water or a reagent first")
        return held

    def _fresh_name(self, name: object) -> str:
        if not isinstance(name, str) or not _NAME.match(name):
            raise ValueError(f"a vessel's name is 1-40 letters, digits, spaces, . _ ' or -, not {name!r}")
        held: Mapping[str, Vessel] = getattr(self, "vessels", {})
        if name in held:
            raise ValueError(f"there is a vessel {name!r} already")
        if len(held) >= MAX_VESSELS:
            raise ValueError(f"the rack is full ({MAX_VESSELS} vessels); discard some")
        return name


class _Watch:
    """Notes when a precipitate begins, gains a new component, or is gone: what the eye at a burette reports."""

    def __init__(self, solids: Mapping[str, float], litres: float):
        self.events: list[dict[str, Any]] = []
        self._there = self._visible(solids, litres)

    def look(self, solids: Mapping[str, float], litres: float, at: Mapping[str, float]) -> None:
        now = self._visible(solids, litres)
        for solid in sorted(now - self._there):
            colour = looks.COLOUR_OF[solid]
            same = any(looks.COLOUR_OF[other] == colour for other in self._there)
            self._note(at, f"{'more of a' if same else 'a'} {colour} precipitate begins to form")
        for solid in sorted(self._there - now):
            self._note(at, f"a {looks.COLOUR_OF[solid]} precipitate has dissolved")
        self._there = now

    def _note(self, at: Mapping[str, float], seen: str) -> None:
        self.events.append({**at, "seen": seen})

    @staticmethod
    def _visible(solids: Mapping[str, float], litres: float) -> set[str]:
        return {solid for solid, moles in solids.items() if looks.amount(moles, litres)}


def _open_tube(*mixtures: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    phases = database().phases
    there = {base(e) for m in mixtures for name in m for e in (phases.get(name) or INERT.get(name) or {name: 1})}
    return {gas: (0.0, 0.0) for element, gas in _OPEN_TUBE.items() if element in there}


def _volume(value: object) -> float:
    return check_amount(value, "the volume in mL", least=DROP_ML, most=CAPACITY_ML)


def _room(water_kg: float) -> float:
    if water_kg * 1000 > CAPACITY_ML + VOLUME_SLACK:
        raise ValueError(f"that makes {water_kg * 1000:.1f} mL; a vessel holds {CAPACITY_ML:g} mL")
    return water_kg


def _reagent(name: object) -> Mapping[str, float]:
    if not isinstance(name, str) or name not in SHELF:
        raise ValueError(f"there is no reagent {name!r} on the shelf; call reagents() for the list")
    return stock()[name]


def _plus(*parts: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, moles in part.items():
            if moles:
                total[name] = total.get(name, 0.0) + moles
    return total


def _part(vessel: Vessel, share: float) -> Vessel:
    return {
        "water_kg": vessel["water_kg"] * share,
        "totals": {element: moles * share for element, moles in vessel["totals"].items()},
        "solids": {solid: moles * share for solid, moles in vessel["solids"].items()},
        "pH": vessel["pH"],
    }
