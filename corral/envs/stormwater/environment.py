"""The environment: one network, the design in hand, the tools, the scorer. A thin shell over `solver` and `tasks`.

``concurrency = "process"`` because SWMM can hold one project per process; see `solver`.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from corral.environment import Environment
from corral.envs.stormwater.inp import rows
from corral.envs.stormwater.solver import Run, simulate
from corral.envs.stormwater.tasks import Design, StormwaterTask, choice, prompt
from corral.tools import tool
from corral.types import ConcurrencyMode

_COLUMNS = {
    "SUBCATCHMENTS": ("name", "", "drains to", "area ha", "impervious %"),
    "JUNCTIONS": ("name", "invert m", "rim above invert m"),
    "OUTFALLS": ("name", "invert m"),
    "STORAGE": ("name", "invert m", "bank above invert m", "", "", "", "", "area m2"),
    "CONDUITS": ("name", "from", "to", "length m", "roughness n"),
    "ORIFICES": ("name", "from", "to", "", "", "discharge coefficient"),
    "WEIRS": ("name", "from", "to", "", "crest above invert m", "coefficient"),
    "XSECTIONS": ("name", "shape", "height or diameter m", "width m"),
    "TIMESERIES": ("", "time", "rain mm/h"),
}
"""What is shown of each section: its columns by name, "" for those that are left out."""


class StormwaterEnvironment(Environment):
    """A network with a design that can be changed and tried."""

    concurrency: ConcurrencyMode = "process"
    version: ClassVar[str] = "1"

    def __init__(self, task: StormwaterTask) -> None:
        super().__init__(task.id)
        self.task = task
        self.design: Design = task.start()
        self._run: Run | None = None

    def get_task_prompt(self) -> str:
        """What is asked."""
        return prompt(self.task)

    def score(self) -> float:
        """The best known cost over the submitted design's, which is simulated anew; little where it fails the storm."""
        try:
            answer = self.state.submitted_answer
            design = self.task.checked(json.loads(answer) if isinstance(answer, str) else answer)
        except ValueError as error:
            self.state.feedback = f"no design: {error}"
            return 0.0
        run = self._simulate(design)
        met, cost = self._met(run), self.task.cost(design, run.max_depth)
        self.state.feedback = {"met": met, "cost": round(cost), "best known": round(self.task.best)}
        return self.task.score(met, cost)

    @tool
    def describe_network(self) -> dict[str, Any]:
        """Show the network, the design storm, and what may be chosen at which price."""
        text = self.task.text(self.design)
        shown = {
            section.lower(): [
                {name: value for name, value in zip(columns, row, strict=False) if name} for row in rows(text, section)
            ]
            for section, columns in _COLUMNS.items()
            if rows(text, section)
        }
        options = {item.name: {f"{o:g}": round(item.cost(o)) for o in item.options} for item in self.task.items}
        return {**shown, "cost of each option": options, "cost of lining per m": self.task.lining}

    @tool
    def show_design(self) -> dict[str, float]:
        """Show the design in hand."""
        return dict(self.design)

    @tool
    def change(self, item: str, value: float) -> dict[str, float]:
        """Choose another option for one item of the design in hand.

        Args:
            item: The item's name, such as "C4".
            value: One of its options, as in describe_network().
        """
        items = {each.name: each for each in self.task.items}
        if item not in items:
            raise ValueError(f"{item!r} cannot be changed; {', '.join(items)} can")
        self.design[item] = choice(items[item], value)
        return dict(self.design)

    @tool
    def simulate(self) -> dict[str, Any]:
        """Run the design storm over the design in hand: what is met, what it costs, the extremes at every node."""
        run = self._run = self._simulate(self.design)
        return {
            "met": self._met(run),
            "cost": round(self.task.cost(self.design, run.max_depth)),
            "nodes": {
                name: {
                    "max_depth_m": round(run.max_depth[name], 3),
                    "peak_inflow_m3_s": round(run.peak_inflow[name], 4),
                    "flooding_m3": round(run.flooding[name], 1),
                }
                for name in run.max_depth
            },
            "peak_flow_m3_s": {name: round(max(map(abs, flow)), 4) for name, flow in run.flow.items()},
            "water_balance": {name: round(value, 2) for name, value in run.balance.items()},
        }

    @tool
    def read_series(self, name: str, every_minutes: int = 5) -> dict[str, Any]:
        """Read the depth at a node (m) or the flow in a link (m3/s) over the time of the last simulation.

        Args:
            name: A node or a link, such as "J4" or "C4".
            every_minutes: The step of the series.
        """
        if self._run is None:
            raise ValueError("there is no simulation yet: call simulate()")
        known = {**self._run.depth, **self._run.flow}
        if name not in known:
            raise ValueError(f"there is no {name!r}; there are {', '.join(known)}")
        if every_minutes < 1:
            raise ValueError("every_minutes must be at least 1")
        values = known[name][every_minutes - 1 :: every_minutes]
        return {"minutes": every_minutes, "values": [round(value, 4) for value in values]}

    def _simulate(self, design: Design) -> Run:
        return simulate(self.task.text(design), self.current_work_dir)

    def _met(self, run: Run) -> dict[str, bool]:
        values = {"flooding": run.flooding, "peak_inflow": run.peak_inflow, "max_depth": run.max_depth}
        return {each.text: each.met(values) for each in self.task.requirements}
