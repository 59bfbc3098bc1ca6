"""A small task for agents, a policy that solves it, and a run of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corral import BenchmarkResult, CorralRunner, Environment, tool
from corral.types import TrialContext

WEIGHTS = {"a": 11, "b": 7, "c": 24}


class Scale(Environment):
    """Three bodies to weigh. Answer with the sum."""

    def get_task_prompt(self) -> str:
        return f"Weigh a, b and c. Answer with the sum of their masses in grams. (This is {self.task_id}.)"

    @tool
    def weigh(self, body: str) -> int:
        """Weigh a body: its mass in grams."""
        return WEIGHTS[body]

    @tool
    def story(self, length: int) -> str:
        """Tell a story of some length."""
        return "once " * length

    def score(self) -> float:
        return float(str(self.state.submitted_answer).strip() == "42")


def build() -> dict[str, Environment]:
    return {"scale": Scale("scale")}


def build_many(count: int) -> dict[str, Environment]:
    return {f"scale-{number}": Scale(f"scale-{number}") for number in range(count)}


def weigher(lab: Any, prompt: str) -> str:
    """Weighs one after the other."""
    return str(sum(lab.call("weigh", body=body) for body in WEIGHTS))


def weigher_at_once(lab: Any, prompt: str) -> str:
    """Weighs all in one turn."""
    return str(sum(lab.call_all(*(("weigh", {"body": body}) for body in WEIGHTS))))


async def run(folder: Path, make: Callable[[TrialContext], Any], **bench: Any) -> BenchmarkResult:
    """Run the task, or those of ``interface``."""
    runner = CorralRunner(
        bench.pop("interface", build),
        agent_factory=make,
        checkpoint_dir=folder,
        enable_surrender=bench.pop("enable_surrender", False),
    )
    return await runner.abench(**{"retries": 0, **bench})


async def only_trial(folder: Path, make: Callable[[TrialContext], Any], **bench: Any) -> Any:
    """The record of the only trial."""
    (trial,) = (await run(folder, make, **bench)).trials
    return trial
