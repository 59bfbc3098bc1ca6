"""Runs whose agents go past the router, over MCP above all: their records are those of a run in-process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client

from corral import AsyncCorralRouter, BenchmarkResult, CorralRouter, CorralRunner, FailureKind, calls
from corral.agents import AgentRunResult, BaseAgent, ScriptedAgent
from corral.agents.scripted import ToolFailed
from corral.report.files import stable_bytes
from tests.support import server_envs
from tests.support.benches import sole
from tests.support.mcp_agents import McpScriptedAgent
from tests.support.serving import Served, serving

ENVS = "tests.support.server_envs"
DIE = "import os; os.kill(os.getpid(), 9)"
HANG = "import time; time.sleep(60)"
Agent = Callable[[Any], BaseAgent]


def run(interface: Any, agent: Agent, folder: Path, backend: str = "asyncio", **options: Any) -> BenchmarkResult:
    runner = CorralRunner(interface, agent_factory=agent, checkpoint_dir=folder)
    settings = {"session_id": "s", "seed": 5, **options}
    return anyio.run(partial(runner.abench, **settings), backend=backend)


def dies(lab: Any, prompt: str) -> Any:
    _work(lab)
    lab.call("python", code=DIE)


def hangs(lab: Any, prompt: str) -> Any:
    _work(lab)
    lab.call("python", code=HANG)


def dies_and_answers(lab: Any, prompt: str) -> Any:
    _work(lab)
    try:
        lab.call("python", code=DIE)
    except Exception:
        return 1


def dies_and_fails(lab: Any, prompt: str) -> Any:
    _work(lab)
    try:
        lab.call("python", code=DIE)
    except Exception as error:
        raise ValueError("I never understood this") from error


def fails(lab: Any, prompt: str) -> Any:
    _work(lab)
    raise ValueError("I do not know")


def gives_nothing(lab: Any, prompt: str) -> Any:
    _work(lab)


def answers(lab: Any, prompt: str) -> Any:
    _work(lab)
    return 0.75


def _work(lab: Any) -> None:
    assert lab.call("python", code="result = {'a': [1, 2.5, None]}") == {"a": [1, 2.5, None]}
    lab.call("python", code="print('half way', flush=True); result = 'as it is'")
    with pytest.raises(ToolFailed, match="division by zero"):
        lab.call("python", code="1 / 0")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        yield server


@pytest.mark.parametrize(
    ("policy", "failure"),
    [
        (dies, FailureKind.WORKER_DIED),
        (dies_and_answers, FailureKind.WORKER_DIED),
        (dies_and_fails, FailureKind.WORKER_DIED),
        (fails, FailureKind.AGENT),
        (gives_nothing, None),
        (answers, None),
    ],
)
def test_a_record_is_that_of_a_run_in_process(
    policy: Any, failure: FailureKind | None, served: Served, tmp_path: Path
) -> None:
    """Its calls, its attempts, what broke it and what it printed, however the agent reached the tools."""
    check_every_way(served, policy, failure, tmp_path)


@pytest.mark.slow
def test_the_record_of_a_trial_whose_time_is_over(served: Served, tmp_path: Path) -> None:
    check_every_way(served, hangs, FailureKind.TRIAL_TIMEOUT, tmp_path, trial_timeout=5.0)


@pytest.mark.slow
def test_the_record_of_a_tool_that_hangs(tmp_path: Path) -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1", "--tool-timeout", "1") as server:
        check_every_way(server, hangs, FailureKind.TOOL_TIMEOUT, tmp_path, here={"tool_timeout": 1.0})
        assert server.stop() == 0


def check_every_way(
    server: Served,
    policy: Any,
    failure: FailureKind | None,
    folder: Path,
    here: dict[str, Any] | None = None,
    **limits: Any,
) -> None:
    """Run one trial in-process (with what ``here`` says besides) and through the server, and compare."""
    local = run(server_envs.processes, lambda _: ScriptedAgent(policy), folder / "local", task_ids=["a"],
                worker_pool=1, **limits, **(here or {}))  # fmt: skip
    ways: dict[str, tuple[Any, Agent, str]] = {
        "http": (CorralRouter(server.url), lambda _: ScriptedAgent(policy), "asyncio"),
        "mcp": (AsyncCorralRouter(server.url), lambda _: McpScriptedAgent(policy), "asyncio"),
        "mcp, trio": (AsyncCorralRouter(server.url), lambda _: McpScriptedAgent(policy), "trio"),
        "mcp, sync router": (CorralRouter(server.url), lambda _: McpScriptedAgent(policy), "asyncio"),
    }
    results = {}
    for name, (router, agent, backend) in ways.items():
        results[name] = run(router, agent, folder / name, backend, task_ids=["a"], **limits)
    trial = sole(local)
    assert trial.failure == failure
    assert [(call["tool"], call["success"]) for call in _calls(trial)] == [("python", s) for s in (True, True, False)]
    for name, result in results.items():
        assert _facts(result) == _facts(local), name
        assert stable_bytes(result) == stable_bytes(local), name


def _calls(trial: Any) -> list[dict[str, Any]]:
    calls = trial.state["tool_calls"]
    return [call if isinstance(call, dict) else {"tool": call.tool, "success": call.success} for call in calls]


def _facts(result: BenchmarkResult) -> Any:
    trial = sole(result)
    attempts = [
        (a.failure, _PID.sub("", a.message or ""), a.phase, a.exit_status, "half way" in a.output)
        for a in trial.attempts
    ]
    return trial.failure, trial.score, _PID.sub("", trial.error_message or ""), trial.tool_statistics, attempts


_PID = re.compile(r"pid \d+")


# ---- agents that end the trial themselves ----


def submits(lab: Any, prompt: str) -> Any:
    lab.call("submit_answer", answer=0.25)
    return "I have submitted"


def submits_quietly(lab: Any, prompt: str) -> Any:
    lab.call("submit_answer", answer=0.25)


def gives_up(lab: Any, prompt: str) -> Any:
    lab.call("surrender_task")
    return 1


@pytest.mark.parametrize("router", [CorralRouter, AsyncCorralRouter])
def test_an_agent_that_ends_its_trial_over_mcp(router: Any, tmp_path: Path) -> None:
    """Its submission is the trial's answer, whatever it says afterwards."""
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        for policy, score, surrendered in ((submits, 0.25, False), (submits_quietly, 0.25, False), (gives_up, 0, True)):
            agent = partial(_ending, policy)
            trial = sole(run(router(server.url), agent, tmp_path / policy.__name__, task_ids=["a"]))
            assert (trial.graded, trial.score, trial.surrendered, trial.error_message) == (
                True,
                score,
                surrendered,
                None,
            )
            assert len(trial.attempts) == 1
            assert trial.state["submitted_answer"] == (None if surrendered else 0.25)
        assert server.stop() == 0


def _ending(policy: Any, context: Any) -> BaseAgent:
    return McpScriptedAgent(policy, "?submit=true")


class PastTheRouter(BaseAgent):
    """Uses the trial's routes by itself, as a program in another language does."""

    def __init__(self, url: str) -> None:
        super().__init__("past the router")
        self.url = url

    def run(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        with httpx.Client(base_url=f"{self.url}/trials/{interface.trial_runtime_id}", trust_env=False) as http:
            call = {"tool_name": "python", "arguments": {"code": "result = 7"}}
            assert http.post("/tools/execute", json=call).json()["result"] == 7
            assert http.post("/submit", json={"answer": 0.5}).json()["score"] == 0.5
        return "it is done"


def test_an_agent_that_submits_over_http_by_itself(tmp_path: Path) -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        agent = lambda _: PastTheRouter(server.url)  # noqa: E731
        trial = sole(run(CorralRouter(server.url), agent, tmp_path, task_ids=["a"]))
        assert server.stop() == 0
    assert (trial.graded, trial.score, trial.state["submitted_answer"]) == (True, 0.5, 0.5)
    assert trial.tool_statistics == {"python": {"calls": 1, "errors": 0}}


class Impatient(BaseAgent):
    """Submits over MCP, does not wait for the score, and answers something else."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__("impatient")
        self.url = url
        self.began, self.go = folder / "began", folder / "go"

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> AgentRunResult:
        answer = {"began": str(self.began), "go": str(self.go), "score": 0.5}
        with anyio.CancelScope() as scope:
            async with Client(f"{interface.mcp_url}?submit=true") as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "submit_answer", {"answer": answer})
                while not self.began.exists():
                    await anyio.sleep(0.01)
                scope.cancel()
        threading.Thread(target=self._let_go).start()
        return AgentRunResult({**answer, "score": 1}, "success")

    def _let_go(self) -> None:
        """The runner's own submission waits behind the agent's by now."""
        while httpx.get(f"{self.url}/health", trust_env=False).json()["running_calls"] < 2:
            time.sleep(0.01)
        self.go.touch()


def test_a_submission_that_is_still_under_way_counts(tmp_path: Path) -> None:
    with serving(f"{ENVS}:examiner", "--pool-size", "1") as server:
        trial = sole(run(AsyncCorralRouter(server.url), lambda _: Impatient(server.url, tmp_path), tmp_path / "s"))
        assert server.stop() == 0
    assert (trial.graded, trial.score, trial.error_message) == (True, 0.5, None)


def test_a_server_that_dies_under_an_mcp_agent_costs_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the agent makes of the lost connection is not what counts."""
    monkeypatch.setattr(calls, "DELAYS", (0.01, 0.01))
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:

        def policy(lab: Any, prompt: str) -> Any:
            server.process.kill()
            server.process.wait()
            lab.call("python", code="1")

        trial = sole(run(CorralRouter(server.url), lambda _: McpScriptedAgent(policy), tmp_path, task_ids=["a"]))
    assert [attempt.failure for attempt in trial.attempts] == [FailureKind.INFRASTRUCTURE] * 2
    assert f"the environment server at {server.url} does not answer" in (trial.attempts[0].message or "")
