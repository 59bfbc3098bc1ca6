"""Orbits: find the two burns that take a ship from one circular orbit to another. A template of a thread-class task.

It holds no process-global state, so its trials run side by side in one process. The task is a subclass with ``@tool``
methods: the plainest way to write an environment.

Physics: a burn along the path changes speed, not place; the new orbit follows from the vis-viva equation
v^2 = mu (2/r - 1/a), and two burns a half orbit apart spend least on the way between circular orbits that are not too
different (Hohmann 1925; Bate, Mueller and White, "Fundamentals of Astrodynamics", 1971, section 3.3).
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import Field

from corral.environment import Environment
from corral.tools import tool

MU = {"Earth": 398_600.4418, "Mars": 42_828.37, "the Moon": 4_902.80}
"""Standard gravitational parameters in km^3/s^2 (Earth: WGS 84; the others rounded from the JPL ephemerides)."""

TASKS = {
    "orbits-geostationary": ("Earth", 6_678.0, 42_164.0),
    "orbits-deorbit-satellite": ("Earth", 12_000.0, 7_000.0),
    "orbits-mars": ("Mars", 3_800.0, 20_428.0),
    "orbits-moon": ("the Moon", 1_838.0, 5_500.0),
}
"""Body, first radius and wanted radius in km."""


class Transfer(Environment):
    """A ship on a circular orbit that is wanted on another one."""

    def __init__(self, task_id: str, body: str, start_km: float, goal_km: float) -> None:
        super().__init__(task_id)
        self.body = body
        self.start_km = start_km
        self.goal_km = goal_km

    def get_task_prompt(self) -> str:
        """What is wanted, and how to answer."""
        return (
            f"A ship circles {self.body} at a radius of {self.start_km:g} km. Bring it to a circular orbit of radius "
            f"{self.goal_km:g} km with two burns along its path, the second one a half orbit after the first, and "
            "spend as little as possible. Both radii of the final orbit must be right within 0.5 %.\n"
            'Answer with JSON: {"burns": [first, second]}, in km/s; negative slows the ship down.'
        )

    @tool
    def try_burns(self, burns: Annotated[list[float], Field(max_length=2)]) -> dict[str, float]:
        """Fly the burns on a simulator and read the orbit that follows.

        Args:
            burns: Up to two changes of speed in km/s, the second a half orbit after the first.
        """
        here, there = self._fly(burns)
        return {"radius_km": here, "opposite_radius_km": there, "spent_km_s": sum(map(abs, burns))}

    def score(self) -> float:
        """1 for the right orbit at the least cost (within 2 %), 0.5 for the right orbit, else 0."""
        try:
            burns = [float(burn) for burn in json.loads(self.state.submitted_answer)["burns"]]
            here, there = self._fly(burns)
        except (ValueError, TypeError, KeyError) as error:
            self.state.feedback = f"no flight: {error}"
            return 0.0
        off = max(abs(here - self.goal_km), abs(there - self.goal_km)) / self.goal_km
        self.state.feedback = f"off by {off:.2%}, spent {sum(map(abs, burns)):.4f} of {self._least():.4f} km/s"
        if off > 0.005 or len(burns) != 2:
            return 0.0
        return 1.0 if sum(map(abs, burns)) <= 1.02 * self._least() else 0.5

    def _fly(self, burns: list[float]) -> tuple[float, float]:
        """The radius where the last burn was fired, and the one a half orbit further."""
        mu = MU[self.body]
        here = there = self.start_km
        for burn in burns:
            here, there = there, here
            # Vis-viva twice: the speed here before the burn, and what the orbit becomes after it.
            speed = math.sqrt(mu * (2 / here - 2 / (here + there))) + burn
            half_axis_inverse = 2 / here - speed**2 / mu
            if not half_axis_inverse > 0 or speed <= 0:
                raise ValueError(f"after a burn of {burn:g} km/s the ship is on no closed orbit")
            there = 2 / half_axis_inverse - here
        return here, there

    def _least(self) -> float:
        """What Hohmann's transfer costs, in km/s."""
        mu, r1, r2 = MU[self.body], self.start_km, self.goal_km
        first = math.sqrt(mu / r1) * (math.sqrt(2 * r2 / (r1 + r2)) - 1)
        second = math.sqrt(mu / r2) * (1 - math.sqrt(2 * r1 / (r1 + r2)))
        return abs(first) + abs(second)


def build_envs() -> dict[str, Environment]:
    """One environment for each transfer."""
    return {task_id: Transfer(task_id, *problem) for task_id, problem in TASKS.items()}


def solve(lab: Any, prompt: str) -> str:
    """The scripted expert: bisect each burn until the radius opposite to it is the wanted one."""
    goal = float(prompt.split("of radius ")[1].split(" km")[0])
    burns: list[float] = []
    for _ in range(2):
        low, high = -1.0, 2.8
        for _ in range(40):
            middle = (low + high) / 2
            try:
                too_far = lab.call("try_burns", burns=[*burns, middle])["opposite_radius_km"] > goal
            except Exception as error:
                too_far = "no closed orbit" in str(error)
            low, high = (low, middle) if too_far else (middle, high)
        burns.append((low + high) / 2)
    return json.dumps({"burns": burns})
