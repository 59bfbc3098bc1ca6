"""Two scripted policies: an expert that searches by simulation, and a naive one that plays safe. No models.

Both are deterministic and see nothing but the prompt and what the tools answer: ``ScriptedAgent(expert)`` makes an
agent of one. ``lab.call(tool, **arguments)`` calls a tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

Design = dict[str, float]


class Lab(Protocol):
    """What a policy works with."""

    def call(self, tool: str, /, **arguments: Any) -> Any:
        """Call a tool and return its result; raises if the call failed."""


def naive(lab: Lab, prompt: str) -> str:
    """Play safe without a simulation: the largest pipes and pond, the smallest outlet."""
    return json.dumps(_safest(_costs(lab)))


def expert(lab: Lab, prompt: str) -> str:
    """Find the cheapest design that meets everything, by bisection and then by small steps."""
    desk = _Desk(lab)
    if "POND" in desk.options:
        _size_pond(desk)
    elif "OUTLET" in desk.options:
        desk.smallest(["OUTLET"], desk.fits, descending=True)
    if desk.pipes:  # One size for all first: huge pipes hold the storm back, and others would seem too large for it.
        desk.smallest(desk.pipes, desk.fits)
        _narrow(desk)
        while any(_widen_and_narrow(desk, name) for name in desk.pipes):
            pass
    return json.dumps(desk.design)


def _costs(lab: Lab) -> dict[str, dict[float, float]]:
    """The cost of every option, from the smallest one on, by item."""
    found = lab.call("describe_network")["cost of each option"]
    return {name: dict(sorted((float(value), cost) for value, cost in costs.items())) for name, costs in found.items()}


def _safest(costs: dict[str, dict[float, float]]) -> Design:
    return {name: min(options) if name == "OUTLET" else max(options) for name, options in costs.items()}


class _Desk:
    """The design in hand, beginning with the safest; every design is simulated once."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.costs = _costs(lab)
        self.options = {name: list(options) for name, options in self.costs.items()}
        self.design = _safest(self.costs)
        self.pipes = sorted(self.options.keys() - {"POND", "OUTLET"})
        self._there: Design = {}
        self._seen: dict[tuple[float, ...], Any] = {}

    def try_out(self, design: Design) -> Any:
        """What a simulation says of a design."""
        key = tuple(design.values())
        if key not in self._seen:
            for name, value in design.items():
                if self._there.get(name) != value:
                    self.lab.call("change", item=name, value=value)
            self._there = dict(design)
            self._seen[key] = self.lab.call("simulate")
        return self._seen[key]

    def price(self) -> float:
        """What the items of the design in hand cost."""
        return sum(self.costs[name][value] for name, value in self.design.items())

    def next_to(self, name: str, sizes: int) -> Design:
        """The design in hand with one item so many sizes larger."""
        options = self.options[name]
        place = options.index(self.design[name]) + sizes
        return {**self.design, name: options[max(0, min(len(options) - 1, place))]}

    def fits(self, design: Design) -> bool:
        """Whether every requirement is met."""
        return all(self.try_out(design)["met"].values())

    def smallest(self, names: list[str], good: Callable[[Design], bool], *, descending: bool = False) -> bool:
        """Choose the first option from which on all are good, by bisection; False, and no change, if the last is not.

        ``names`` get the same option. ``descending``: the options from the largest to the smallest.
        """
        options = self.options[names[0]][:: -1 if descending else 1]
        designs = [{**self.design, **dict.fromkeys(names, option)} for option in options]
        if not good(designs[-1]):
            return False
        low, high = 0, len(designs) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if good(designs[middle]) else (middle + 1, high)
        self.design = designs[low]
        return True


def _size_pond(desk: _Desk) -> None:
    """The smallest pond for which some outlet is wide enough for its depth and narrow enough for the creek."""

    def shallow(design: Design) -> bool:
        return all(met for text, met in desk.try_out(design)["met"].items() if "stands at most" in text)

    def outlet_of(design: Design) -> float | None:
        desk.design = dict(design)
        found = desk.smallest(["OUTLET"], shallow) and desk.fits(desk.design)
        return desk.design["OUTLET"] if found else None

    best = dict(desk.design)

    def good(design: Design) -> bool:
        outlet = outlet_of(design)
        if outlet is not None:
            best.update(design, OUTLET=outlet)
        return outlet is not None

    desk.smallest(["POND"], good)
    desk.design = best


def _narrow(desk: _Desk, kept: str | None = None) -> None:
    """Make pipes a size smaller in turns, until none can be; all but one, if that is ``kept``."""
    names = [name for name in desk.pipes if name != kept]
    moved = True
    while moved:
        moved = False
        for name in names:
            new = desk.next_to(name, -1)
            if new != desk.design and desk.fits(new):
                desk.design, moved = new, True


def _widen_and_narrow(desk: _Desk, name: str) -> bool:
    """Make one pipe a size larger and the others as small as that allows; False, and no change, if it saves nothing."""
    before, price = desk.design, desk.price()
    desk.design = desk.next_to(name, 1)
    _narrow(desk, kept=name)
    saved = desk.price() < price
    if not saved:
        desk.design = before
    return saved
