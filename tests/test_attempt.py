"""Who is to blame for what an agent raised, and what a trial's phases took."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from corral import CorralRunner, Environment
from corral.agents import BaseAgent, ScriptedAgent
from corral.blame import blame, blame_agent
from corral.errors import AgentError, ToolError
from tests.support.benches import Bench, bench, benches, sole


class WithStatus(Exception):
    def __init__(self, status: Any) -> None:
        super().__init__(str(status))
        self.status_code = status


class WithResponse(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.response = httpx.Response(status)


def caused_by(cause: BaseException) -> Exception:
    error = RuntimeError("outer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(WithStatus(status) for status in (402, 408, 409, 425, 429, 500, 503, 529)), WithResponse(502),
        ConnectionRefusedError(), BrokenPipeError(), httpx.ConnectTimeout("slow"), httpx.ReadError("cut"),
        caused_by(WithStatus(429)), caused_by(caused_by(ConnectionResetError())),
    ],
    ids=repr,
)  # fmt: skip
def test_failures_of_what_the_agent_depends_on(error: Exception) -> None:
    assert blame_agent(error).kind == "infrastructure"


@pytest.mark.parametrize(
    "error",
    [
        *(WithStatus(status) for status in (200, 400, 401, 403, 404, 422, "429", None)), WithResponse(404),
        ValueError("x"), TimeoutError(), OSError("no file"), caused_by(WithStatus(400)), SystemExit(1),
        httpx.InvalidURL("x"),
    ],
    ids=repr,
)  # fmt: skip
def test_failures_of_the_agent_itself(error: BaseException) -> None:
    assert blame_agent(error).kind == "agent"


def test_causes_that_go_round_in_a_circle() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert isinstance(blame_agent(one), AgentError)


def test_an_error_of_the_trial_keeps_its_kind() -> None:
    error = ToolError("broken")
    assert blame_agent(error) is error
    assert blame(error) is error


@pytest.mark.parametrize(
    ("error", "failure", "message"),
    [
        (
            ConnectionResetError("gone"),
            "infrastructure",
            "what the agent depends on failed: ConnectionResetError: gone",
        ),
        (LookupError("mine"), "agent", "the agent raised: LookupError: mine"),
    ],
)
def test_what_failed_in_an_agent_s_own_task_group_is_to_blame(
    error: Exception, failure: str, message: str, tmp_path: Path
) -> None:
    class Conductor(BaseAgent):
        async def arun(self, interface: Any, task_id: str, **_: Any) -> str:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.ask)
                tasks.start_soon(self.ask)
            return "done"

        async def ask(self) -> None:
            raise error

    made = CorralRunner(benches(a="thread"), agent_factory=lambda context: Conductor(), checkpoint_dir=tmp_path)
    (trial,) = made.bench(progress=False, retries=0).trials
    assert (trial.failure, trial.error_message) == (failure, message)


@pytest.mark.parametrize("mode", ["thread", "process", "serial"])
def test_phases_are_timed_one_by_one(mode: Any, tmp_path: Path) -> None:
    class Slow(Bench):
        def configure_additional_apps(self) -> str:
            wait(0.1)
            return ""

        def score(self) -> float:
            wait(0.3)
            return 1

    def wait(seconds: float) -> None:
        import threading

        threading.Event().wait(seconds)

    def policy(lab: Any, prompt: str) -> int:
        wait(0.2)
        return 1

    def build() -> dict[str, Environment]:
        return {"a": Slow("a", mode)}

    trial = sole(bench(build, policy, tmp_path))
    spent = trial.timings
    assert 0.1 <= spent.configured < spent.agent < spent.scored
    assert spent.agent >= 0.2
    assert spent.scored >= 0.3
    assert trial.duration >= spent.configured + spent.agent + spent.scored


def test_waiting_for_a_place_is_queueing(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> int:
        import threading

        threading.Event().wait(0.2)
        return 1

    first, second = bench(benches(a="thread", b="thread"), policy, tmp_path).trials
    assert first.timings.queued < 0.2 <= second.timings.queued
    assert second.timings.agent < 0.4


def test_a_trial_s_limit_does_not_count_its_wait(tmp_path: Path) -> None:
    """Four trials of 0.3 s, one after the other, under a limit of 0.8 s each."""

    def policy(lab: Any, prompt: str) -> int:
        import threading

        threading.Event().wait(0.3)
        return 1

    build: Callable[[], dict[str, Environment]] = benches(a="process")
    result = bench(build, policy, tmp_path, trials_per_task=4, trial_timeout=0.8, max_concurrency=4, worker_pool=1)
    assert [trial.failure for trial in result.trials] == [None] * 4


@pytest.mark.parametrize("ending", ["agent", "scorer", "killed"])
def test_nothing_holds_what_ran_once_its_record_is_made(ending: str, tmp_path: Path) -> None:
    """Of trials that fail too: a night has many, and the garbage collector counts objects, not bytes."""
    hired: list[weakref.ref[Any]] = []

    def policy(lab: Any, prompt: str) -> Any:
        if ending == "killed":
            lab.call("python", code="import os; os.kill(os.getpid(), 9)")
        if ending == "agent":
            raise RuntimeError("lost")
        return math.nan

    def hire(context: object) -> ScriptedAgent:
        agent = ScriptedAgent(policy)
        hired.append(weakref.ref(agent))
        return agent

    left: list[int] = []

    def recorded(result: object) -> None:
        left.append(sum(agent() is not None for agent in hired))

    runner = CorralRunner(benches(a="process"), agent_factory=hire, checkpoint_dir=tmp_path)
    gc.collect()
    gc.disable()
    try:
        result = runner.bench(trials_per_task=6, worker_pool=1, retries=0, progress=recorded)
    finally:
        gc.enable()
    assert result.coverage.graded == 0
    assert max(left) <= 2, left
