"""Balance: weigh samples on the only analytical balance of the house. A template of a serial-class task.

The balance is one instrument that all trials share, so its trials run one at a time. It loses its calibration between
users: ``configure_additional_apps`` reserves and calibrates it before each trial, ``close`` gives it back. The tasks
are TaskDefinitions on a subclass that owns the instrument's tools.

Physics: a body under water seems lighter by the mass of the water that it displaces (Archimedes), so its density is
m_air / (m_air - m_water) times that of water, 0.99821 g/mL at 20 degrees C (CRC Handbook of Chemistry and Physics);
the buoyancy of air is left out on both sides.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from corral.environment import Environment, build_environments
from corral.tasks import TaskDefinition
from corral.tools import tool

WATER = 0.99821
"""g/mL at 20 degrees C."""

SAMPLES = {"brass weight": (50.0123, 8.47), "quartz crystal": (12.3456, 2.65), "glass bead": (0.8125, 2.50)}
"""Mass in g and density in g/mL."""


@dataclass
class Balance:
    """The instrument: one in the world, so it lives at module level."""

    user: Any = None
    span: float = 1.003
    """What a gram reads before calibration."""

    def reserve(self, user: Any) -> None:
        """Take the balance and calibrate it."""
        if self.user is not None and self.user is not user:
            raise RuntimeError("the balance is in use by another trial")
        self.user, self.span = user, 1.0

    def release(self, user: Any) -> None:
        """Give it back; the next user has to calibrate it again."""
        if self.user is user:
            self.user, self.span = None, 1.003


BALANCE = Balance()


class BalanceRoom(Environment):
    """The room with the balance; the trial's seed decides the noise of its readings."""

    concurrency = "serial"

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.noise = random.Random(self.seed)

    def configure_additional_apps(self) -> str:
        """Reserve and calibrate the balance."""
        BALANCE.reserve(self)
        return "balance calibrated"

    def close(self) -> None:
        """Give the balance back."""
        BALANCE.release(self)

    @tool(hidden=("sample",))
    def weigh(self, sample: str, medium: Literal["air", "water"] = "air") -> float:
        """Weigh the sample once; a reading in g, with a noise of 0.5 mg.

        Args:
            medium: Where the sample hangs.
        """
        if BALANCE.user not in (None, self):
            raise RuntimeError("the balance is in use by another trial")
        mass, density = SAMPLES[sample]
        seen = mass if medium == "air" else mass * (1 - WATER / density)
        return round(seen * BALANCE.span + self.noise.gauss(0, 0.0005), 4)


def score_value(answer: Any, truth: float, tolerance: float) -> float:
    """1 within the tolerance (relative), falling to 0 at ten times it."""
    try:
        off = abs(float(answer) - truth) / truth
    except (TypeError, ValueError):
        return 0.0
    return max(0.0, min(1.0, 1 - (off - tolerance) / (9 * tolerance)))


def _define(sample: str, what: str, unit: str, truth: float, tolerance: float) -> TaskDefinition:
    return TaskDefinition(
        name=f"balance-{what}-{sample.replace(' ', '-')}",
        description=f"Find the {what} of the sample. Readings are noisy: weigh several times.",
        tools=[],
        scoring_fn=score_value,
        scoring_inputs={"truth": truth, "tolerance": tolerance},
        submission_format=f"the {what} in {unit}, a number only",
        initial_input={"sample": sample},
    )


def build_envs() -> dict[str, Environment]:
    """A mass and a density task for some of the samples."""
    tasks = [_define(sample, "mass", "g", mass, 2e-4) for sample, (mass, _) in SAMPLES.items() if mass > 1]
    tasks += [_define(sample, "density", "g/mL", density, 5e-3) for sample, (_, density) in SAMPLES.items()]
    return build_environments(tasks, env_cls=BalanceRoom)


def solve(lab: Any, prompt: str) -> str:
    """The scripted expert: the mean of many readings, in air and, for a density, in water."""
    air = sum(lab.call("weigh", medium="air") for _ in range(16)) / 16
    if "mass" in prompt:
        return f"{air:.4f}"
    water = sum(lab.call("weigh", medium="water") for _ in range(16)) / 16
    return f"{air / (air - water) * WATER:.4f}"
