"""Laboratory habits of the scripted agents: what they work with, and how they take, mix, separate and look."""

from __future__ import annotations

from typing import Any, Protocol

Seen = dict[str, Any]


class Lab(Protocol):
    """What a policy works with."""

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its result; raises if the call failed."""


def colours(seen: Seen | None) -> dict[str, str]:
    """Colour -> amount of the precipitates in a tool's answer."""
    return {p["colour"]: p["amount"] for p in seen["precipitates"]} if seen else {}


def clearly(seen: Seen | None, colour: str) -> bool:
    """Whether there is more than a slight precipitate of this colour."""
    return colours(seen).get(colour) in ("moderate", "heavy")


class Hands:
    """The laboratory habits of the agents: label tubes, take portions, separate, neutralise."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self._labels = 0

    def label(self) -> str:
        """A name for a new tube."""
        self._labels += 1
        return f"t{self._labels}"

    def portion(self, vessel: str, volume_ml: float) -> str:
        """A portion in a tube of its own."""
        tube = self.label()
        self.lab.call("split", vessel=vessel, new_vessel=tube, volume_ml=volume_ml)
        return tube

    def add(self, vessel: str, *reagents: tuple[str, float]) -> Seen:
        """Add reagents one after the other; what the last one shows."""
        seen: Seen = {}
        for reagent, volume_ml in reagents:
            seen = self.lab.call("add", vessel=vessel, reagent=reagent, volume_ml=volume_ml)
        return seen

    def try_on(self, vessel: str, volume_ml: float, *reagents: tuple[str, float]) -> Seen:
        """What a portion does with reagents; the portion is thrown away."""
        tube = self.portion(vessel, volume_ml)
        seen = self.add(tube, *reagents)
        self.lab.call("discard", vessel=tube)
        return seen

    def spin(self, vessel: str) -> tuple[str, str | None, Seen | None]:
        """The liquid, the solid if there is any, and how the solid looks."""
        liquid, solid = self.label(), self.label()
        seen = self.lab.call("centrifuge", vessel=vessel, liquid=liquid, solid=solid)
        return liquid, solid if seen["solid"] else None, seen["solid"]

    def volume(self, vessel: str) -> float:
        """Millilitres in a vessel."""
        return float(self.lab.call("inventory")[vessel]["volume_ml"])

    def up_to_ph(self, vessel: str, ph: int, *reagents: tuple[str, float]) -> None:
        """Add a base in portions of the given sizes, coarse first, until the paper shows this pH."""
        for i, (reagent, volume_ml) in enumerate(reagents):
            limit = ph if i == len(reagents) - 1 else 2
            for _ in range(60):
                if self.lab.call("measure_ph", vessel=vessel) >= limit:
                    break
                self.add(vessel, (reagent, volume_ml))

    def down_to_ph(self, vessel: str, ph: int, reagent: str, volume_ml: float) -> None:
        """Add an acid in portions until the paper shows this pH."""
        for _ in range(60):
            if self.lab.call("measure_ph", vessel=vessel) <= ph:
                break
            self.add(vessel, (reagent, volume_ml))

    def boil_down(self, vessel: str, to_ml: float) -> Seen:
        """Boil down to a volume, or just to the boil where there is less already."""
        seen: Seen = self.lab.call("boil", vessel=vessel, to_ml=min(to_ml, self.volume(vessel)))
        return seen
