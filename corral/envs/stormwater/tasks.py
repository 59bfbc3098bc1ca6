"""The problems: what may be changed, what it costs, what is required, and how a design is scored. Pure; no SWMM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from corral.envs.stormwater.inp import edited, network, rows

Design = dict[str, float]
"""A value for every item, by name."""

PIPES = (0.30, 0.375, 0.45, 0.525, 0.60, 0.675, 0.75, 0.825, 0.90, 1.05, 1.20)
"""Diameters that are made, in m."""

FLOOD = 1.0
"""Cubic metres over a rim that count as flooding: less is rounding."""

LINED_FROM = 1.0
"""Metres above a pond's bottom from which on its bank is lined."""

AT_MOST = 0.25
"""The most that a design scores which does not meet every requirement."""


@dataclass(frozen=True)
class Item:
    """One thing that may be chosen. ``section`` and ``column`` say where its value stands in the input file."""

    name: str
    described: str
    options: tuple[float, ...]
    section: Literal["XSECTIONS", "STORAGE"] = "XSECTIONS"
    column: int = 2
    price: float = 0.0
    """Per m2 of a pond; a pipe's price follows from its diameter and ``length``."""
    length: float = 0.0

    def cost(self, value: float) -> float:
        """What a value costs. Invented prices; a trench costs with its width and depth, so more than in proportion."""
        return self.length * (90 + 420 * math.pow(value, 1.5)) + self.price * value


@dataclass(frozen=True)
class Requirement:
    """What a simulation must keep below: no flooding anywhere, or a limit at one node."""

    kind: Literal["flooding", "peak_inflow", "max_depth"]
    node: str = ""
    limit: float = FLOOD

    @property
    def text(self) -> str:
        """In words."""
        if self.kind == "flooding":
            return "no junction floods"
        if self.kind == "peak_inflow":
            return f"the peak flow into {self.node} is at most {self.limit:g} m3/s"
        return f"the water in {self.node} stands at most {self.limit:g} m deep"

    def met(self, values: Mapping[str, Mapping[str, float]]) -> bool:
        """Whether it holds; ``values`` has the run's figures by kind and node."""
        found = values[self.kind]
        return all(volume < FLOOD for volume in found.values()) if not self.node else found[self.node] <= self.limit


@dataclass(frozen=True)
class StormwaterTask:
    """One problem over one network."""

    id: str
    network: str
    asked: str
    items: tuple[Item, ...]
    requirements: tuple[Requirement, ...]
    best: float
    """The cost of the best design known: found by trying all designs around the expert's."""
    lining: float = 0.0
    """The price of lining the pond's bank, per m of its highest water level above `LINED_FROM`."""

    def start(self) -> Design:
        """The design as it stands in the network's file."""
        text = network(self.network)
        return {
            item.name: float(row[item.column])
            for item in self.items
            for row in rows(text, item.section)
            if row[0] == item.name
        }

    def text(self, design: Mapping[str, float]) -> str:
        """The input file of a design."""
        text = network(self.network)
        for item in self.items:
            text = edited(text, item.section, item.name, item.column, design[item.name])
        return text

    def cost(self, design: Mapping[str, float], max_depth: Mapping[str, float]) -> float:
        """What a design costs, by what it is and how high its pond stands."""
        lined = max(0.0, max_depth.get("POND", 0.0) - LINED_FROM)
        return sum(item.cost(design[item.name]) for item in self.items) + self.lining * lined

    def score(self, met: Mapping[str, bool], cost: float) -> float:
        """The best cost over this one's; at most `AT_MOST`, by the requirements met, where one is not."""
        if all(met.values()):
            return min(1.0, self.best / cost)
        return AT_MOST * sum(met.values()) / len(met)

    def checked(self, values: object) -> Design:
        """A whole design out of an answer; ValueError saying what is wrong."""
        if not isinstance(values, Mapping):
            raise ValueError("a design is a JSON object with a number for each item")
        wanted = {item.name: item for item in self.items}
        if set(values) != set(wanted):
            raise ValueError(f"a design has exactly these items: {', '.join(wanted)}")
        return {name: choice(item, values[name]) for name, item in wanted.items()}


def choice(item: Item, value: object) -> float:
    """The option that ``value`` means; ValueError if there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{item.name} must be a number, not {value!r}")
    for option in item.options:
        if math.isclose(option, value, rel_tol=1e-9):
            return option
    raise ValueError(f"{item.name} can be {', '.join(f'{option:g}' for option in item.options)}, not {value!r}")


def _pipe(name: str, length: float) -> Item:
    return Item(name, f"diameter in m of pipe {name}, {length:g} m long", PIPES, length=length)


_ORIFICE = Item("OUTLET", "diameter in m of the pond's outlet", tuple(round(0.01 * n, 2) for n in range(10, 61)))
_POND = Item(
    "POND", "area in m2 of the pond", tuple(float(n) for n in range(300, 2050, 50)), "STORAGE", column=7, price=85.0
)
_NO_FLOOD = Requirement("flooding")
_STREETS = "The network has five streets with a trunk sewer C1-C2-C3-C4 to the outfall O1, and a side branch C5."

_ALL = (
    StormwaterTask(
        "storm-one-pipe",
        "street",
        f"{_STREETS} The last pipe, C4, is too small. Choose its diameter.",
        (_pipe("C4", 160),),
        (_NO_FLOOD,),
        best=64_756.0,
    ),
    StormwaterTask(
        "storm-trunk",
        "street",
        f"{_STREETS} It is to be built anew. Choose the diameters of all pipes.",
        (_pipe("C1", 120), _pipe("C2", 150), _pipe("C3", 130), _pipe("C4", 160), _pipe("C5", 110)),
        (_NO_FLOOD,),
        best=210_011.0,
    ),
    StormwaterTask(
        "storm-outlet",
        "pond",
        "A quarter drains to a creek through a pond. Choose the diameter of the pond's outlet. The bank of the pond is "
        f"to be lined from {LINED_FROM:g} m above its bottom up to the highest water level, which is the whole cost.",
        (_ORIFICE,),
        (_NO_FLOOD, Requirement("peak_inflow", "CREEK", 0.36)),
        best=22_123.0,
        lining=60_000.0,
    ),
    StormwaterTask(
        "storm-pond",
        "pond",
        "A quarter is to drain to a creek through a new pond. Choose the area of the pond, the diameter of its outlet "
        "and that of the pipe C2 from there to the creek.",
        (_POND, _ORIFICE, _pipe("C2", 60)),
        (_NO_FLOOD, Requirement("peak_inflow", "CREEK", 0.20), Requirement("max_depth", "POND", 1.5)),
        best=100_437.0,
    ),
)

TASKS = {task.id: task for task in _ALL}
"""The benchmark's tasks by id."""


def prompt(task: StormwaterTask) -> str:
    """What the agent is asked."""
    items = "\n".join(f"- {item.name}: {item.described}" for item in task.items)
    required = "; ".join(requirement.text for requirement in task.requirements)
    example = ", ".join(f'"{item.name}": {item.options[0]:g}' for item in task.items)
    return (
        f"You design the drainage of a town on EPA SWMM. {task.asked}\n\n"
        f"To choose:\n{items}\n\n"
        f"Required in the design storm: {required}. Of the designs that meet this, the cheapest is wanted.\n\n"
        "describe_network() shows the network and the options with their prices; change() and simulate() try a design. "
        f"Answer with the design as JSON, such as {{{example}}}."
    )
