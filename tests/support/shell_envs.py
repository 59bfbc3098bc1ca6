"""CHILD SIDE: environments and agents that are named on the command line."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from corral import Environment, TrialContext
from corral.agents import BaseAgent, ScriptedAgent
from tests.support.benches import Bench


def build() -> dict[str, Environment]:
    """Two process-class tasks, and one of each other class."""
    return {
        "p": Bench("p", "process"), "q": Bench("q", "process"), "t": Bench("t", "thread"), "s": Bench("s", "serial"),
    }  # fmt: skip


def build_broken() -> NoReturn:
    raise ImportError("no chemistry")


def build_red() -> NoReturn:
    raise ValueError("in \x1b[31mred\nand blue")


def build_odd() -> dict[str, Environment]:
    """One task, which nobody can solve; its id is hard to print."""
    task_id = "\xfc\U0001f600\x1b[31m\n\ud800"
    return {task_id: Bench(task_id, "process")}


def solver(context: TrialContext, model: str | None = None) -> ScriptedAgent:
    """Marks each trial in the file of CORRAL_TEST_MARKS, and answers 1."""

    def solve(lab: Any, prompt: str) -> Any:
        if not context.task_id.isalpha():
            raise ValueError(f"what is {context.task_id}?")
        lab.call("python", code="result = env.seed")
        if marks := os.environ.get("CORRAL_TEST_MARKS"):
            with Path(marks).open("a") as file:
                file.write(f"{context.task_id}#{context.trial_index}\n")
        return 1

    return ScriptedAgent(solve, model=model)


async def late(context: TrialContext, model: str, *, api_base: str) -> ScriptedAgent:
    """Made on the event loop; answers 1 where it was given what the command names."""
    return ScriptedAgent(lambda lab, prompt: float((model, api_base) == ("a/b", "http://h/v1")), model=model)


def doubter(context: TrialContext) -> ScriptedAgent:
    """Answers 0 in the serial session, and 1 elsewhere."""
    answer = 0 if context.session_id.endswith("-serial") else 1
    return ScriptedAgent(lambda lab, prompt: answer)


def killer(context: TrialContext) -> ScriptedAgent:
    """Kills the process of each trial of ``p``."""

    def kill(lab: Any, prompt: str) -> Any:
        if context.task_id == "p":
            lab.call("python", code=f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
        return 1

    return ScriptedAgent(kill)


def glutton(context: TrialContext) -> ScriptedAgent:
    """Fills the memory in each trial of ``p``."""

    def eat(lab: Any, prompt: str) -> Any:
        if context.task_id == "p":
            lab.call("python", code="import time; hold = bytearray(b'x' * 300_000_000); time.sleep(20)")
        return 1

    return ScriptedAgent(eat)


def waiter(context: TrialContext) -> ScriptedAgent:
    """Solves ``t``; the others wait while the file of CORRAL_TEST_HOLD exists."""

    def wait(lab: Any, prompt: str) -> Any:
        hold = Path(os.environ["CORRAL_TEST_HOLD"])
        deadline = time.monotonic() + 50
        while context.task_id != "t" and hold.exists() and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        return 1

    return ScriptedAgent(wait)


def plain(context: TrialContext) -> BaseAgent:
    """An agent that is not scripted."""
    return BaseAgent()


no_function = 7


def at_a_full_disk(context: TrialContext) -> ScriptedAgent:
    """Four meet, and find that nothing can be written any more, with their results in hand."""

    def solve(lab: Any, prompt: str) -> Any:
        import resource

        _TABLE.wait(30)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return 1

    return ScriptedAgent(solve)


_TABLE = threading.Barrier(4)
