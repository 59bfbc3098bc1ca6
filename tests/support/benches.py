"""Environments and runs for the tests of the engine. CHILD SIDE as well: workers import the environments from here.

``Bench`` has one tool, ``python``, which runs a test's own lines where the trial runs; what they do stands in the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from corral import BenchmarkResult, CorralRunner, Environment, TaskTrialResult, tool
from corral.agents import ScriptedAgent
from tests.support.meeting import Meeting

Mode = Literal["thread", "process", "serial"]


class Bench(Environment):
    """Runs anything. A submitted number is the score; other answers score 0.5."""

    def __init__(self, task_id: str, mode: Mode = "thread") -> None:
        super().__init__(task_id, concurrency=mode)

    def get_task_prompt(self) -> str:
        return f"task {self.task_id}"

    @tool
    def python(self, code: str) -> Any:
        """Run lines of Python; gives what they leave in ``result``."""
        scope: dict[str, Any] = {"env": self}
        exec(code, scope)
        return scope.get("result")

    @tool
    def meet(self, folder: str, guests: int) -> None:
        """Be in a place where others are."""
        Meeting(Path(folder)).attend(guests)

    def score(self) -> float:
        answer = self.state.submitted_answer
        return float(answer) if isinstance(answer, int | float) else 0.5


class Dice(Bench):
    """Everything in it is random, and all of it follows from the trial's seed."""

    def __init__(self, task_id: str, mode: Mode = "thread") -> None:
        super().__init__(task_id, mode)
        self.bias = random.Random(self.seed).random()

    @tool
    def roll(self, sides: int) -> int:
        """Roll a die, and write the roll into the workspace."""
        own = random.Random(f"{self.seed}/{len(self.state.tool_calls)}").randrange(sides)
        drawn = random.randrange(sides) if self.concurrency != "thread" else 0
        with (self.current_work_dir / "rolls.txt").open("a") as file:
            file.write(f"{own} {drawn}\n")
        return own + drawn

    @tool
    def read(self) -> list[str]:
        """Every roll so far."""
        return (self.current_work_dir / "rolls.txt").read_text().splitlines()

    def score(self) -> float:
        self.state.feedback = f"bias {self.bias}"
        return float(sum(map(ord, str(self.state.submitted_answer))) % 3)


def benches(**modes: Mode) -> Callable[[], dict[str, Environment]]:
    """A builder of one Bench for each task: ``benches(a="thread", b="process")``."""

    def build() -> dict[str, Environment]:
        return {task_id: Bench(task_id, mode) for task_id, mode in modes.items()}

    return build


def dice() -> dict[str, Environment]:
    modes: tuple[Mode, ...] = ("thread", "process", "serial")
    return {mode: Dice(mode, mode) for mode in modes}


def roll_and_read(lab: Any, prompt: str) -> Any:
    """A deterministic policy for ``Dice``, whose answer depends on all that the environment drew."""
    for sides in (6, 20, 100):
        lab.call("roll", sides=sides)
    return lab.call("read")


def roller(context: object) -> ScriptedAgent:
    """An agent factory with that policy."""
    return ScriptedAgent(roll_and_read)


Policy = Callable[[Any, str], Any]


def runner(interface: Any, policy: Policy, folder: Path, **options: Any) -> CorralRunner:
    """A runner whose agents follow ``policy``."""
    return CorralRunner(
        interface, agent_factory=lambda context: ScriptedAgent(policy), checkpoint_dir=folder / "sessions", **options
    )


def bench(interface: Any, policy: Policy, folder: Path, **options: Any) -> BenchmarkResult:
    """Run it."""
    return runner(interface, policy, folder).bench(**options)


def sole(result: BenchmarkResult) -> TaskTrialResult:
    """The result's only trial."""
    (trial,) = result.trials
    return trial


def code(lines: str, answer: Any = "done") -> Policy:
    """A policy that runs ``lines`` by the tool ``python``, and then answers."""

    def policy(lab: Any, prompt: str) -> Any:
        lab.call("python", code=lines)
        return answer

    return policy


def by_task(result: BenchmarkResult) -> Mapping[str, list[TaskTrialResult]]:
    return {task_id: list(task.trials) for task_id, task in result.task_results.items()}
