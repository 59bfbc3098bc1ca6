"""What a benchmark makes of endpoints that fail: infrastructure, tried again, told apart, and never a score."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from corral import ConcurrencyConfig
from corral.agents import AgentRunResult, BaseAgent, ReActAgent, ToolCallingAgent
from corral.agents.llm.backoff import Backoff
from corral.agents.llm.throttle import held_back
from corral.agents.remarks import remark
from corral.agents.testing import Conversation, Fault, Faults, ScriptedEndpoint, Served, Turn, following, saying
from corral.errors import ConfigError
from corral.report.progress import Silent
from corral.types import TrialKey
from tests.support import chains
from tests.support.agent_envs import build_many, only_trial, run, weigher
from tests.support.endpoints import serving
from tests.support.raw_http import free_port

pytestmark = pytest.mark.anyio

NO_PATIENCE = Backoff(retries=0)


def _agent(url: str, **options: Any) -> ToolCallingAgent:
    return ToolCallingAgent("openai/m", **{"api_base": f"{url}/v1", "api_key": "k", "backoff": NO_PATIENCE, **options})


@pytest.mark.parametrize("status", [402, 429])
async def test_a_cut_off_after_some_steps_is_no_loss_of_the_agent(status: int, tmp_path: Path) -> None:
    """5 of 20 trials meet it after three tool calls. 15 are graded, 5 told apart, the range they leave stated."""

    def script(conversation: Conversation) -> Turn | Fault:
        number = int(re.findall(r"scale-(\d+)", conversation.prompt)[0])
        if number % 4 == 0 and len(conversation.results) == 3:
            return Fault(status=status, message="account empty")
        return following(weigher)(conversation)

    with serving(ScriptedEndpoint(script)) as url:
        result = await run(tmp_path, lambda _: _agent(url), interface=build_many(20), max_concurrency=4)
    coverage = result.coverage
    assert (coverage.planned, coverage.graded, coverage.not_graded) == (20, 15, {"infrastructure": 5})
    lost = [trial for trial in result.trials if trial.failure is not None]
    assert all(f"HTTP {status}" in str(trial.error_message) and not trial.graded for trial in lost)
    assert all(len(trial.state["tool_calls"]) == 3 for trial in lost)
    assert all(trial.token_usage["requests"] == 3 for trial in lost)
    assert [trial.score for trial in result.trials if trial.graded] == [1.0] * 15


async def test_an_endpoint_that_is_down_is_told_from_an_empty_answer(tmp_path: Path) -> None:
    """A dead endpoint is no wrong answer; an empty answer by choice is one."""
    down = await only_trial(tmp_path / "down", lambda _: _agent(f"http://127.0.0.1:{free_port()}"))
    assert (down.graded, down.failure) == (False, "infrastructure")
    with serving(ScriptedEndpoint(saying(""))) as url:
        silent = await only_trial(tmp_path / "silent", lambda _: _agent(url))
    assert (silent.graded, silent.failure, silent.score) == (True, None, 0.0)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=401), "infrastructure"), (Fault(status=402), "infrastructure"),
        (Fault(status=429), "infrastructure"), (Fault(status=500), "infrastructure"),
        (Fault("hang"), "infrastructure"), (Fault("cut"), "infrastructure"), (Fault("garbage"), "infrastructure"),
        (Fault(status=400), "agent"), (Fault(status=404), "agent"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else value,
)  # fmt: skip
@pytest.mark.parametrize("kind_of_agent", [ToolCallingAgent, ReActAgent])
async def test_each_failure_by_its_kind(fault: Fault, kind: str, kind_of_agent: Any, tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(saying("42"), faults=Faults(always=fault))
    with serving(endpoint) as url:
        options = {"api_base": f"{url}/v1", "api_key": "k", "backoff": NO_PATIENCE, "timeout": 0.3}
        trial = await only_trial(tmp_path, lambda _: kind_of_agent("anthropic/m", **options), retries=1)
    assert (trial.failure, trial.graded, trial.score) == (kind, False, 0.0)
    assert len(trial.attempts) == (2 if kind == "infrastructure" else 1)


async def test_the_second_attempt_may_succeed(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(following(weigher), faults=Faults(at={2: Fault(status=503)}))
    with serving(endpoint) as url:
        trial = await only_trial(tmp_path, lambda _: _agent(url), retries=1)
    assert (trial.score, trial.failure, len(trial.attempts)) == (1.0, None, 2)
    assert trial.token_usage["requests"] == 4


async def test_a_wrong_key_fails_every_trial_and_the_summary_says_why(tmp_path: Path) -> None:
    """A wrong key is told at once, and nothing is graded."""
    endpoint = ScriptedEndpoint(saying("42"), key="right")
    with serving(endpoint) as url:
        result = await run(tmp_path, lambda _: _agent(url, api_key="wrong"), interface=build_many(3))
    assert (result.coverage.graded, result.coverage.not_graded) == (0, {"infrastructure": 3})
    assert not result.coverage.complete
    report = json.loads(result.generate_report(tmp_path / "report.json").read_text())
    assert "invalid api key" in json.dumps(report)


async def test_a_missing_key_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        await run(tmp_path, lambda _: ToolCallingAgent("openai/m"))
    assert not list(tmp_path.glob("*/journal.jsonl"))


async def test_a_trial_limit_ends_a_wait_for_the_endpoint(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(saying("42"), faults=Faults(always=Fault(status=429, retry_after=30)))
    with serving(endpoint) as url:
        trial = await only_trial(tmp_path, lambda _: _agent(url, backoff=Backoff()), trial_timeout=0.5)
    assert (trial.failure, trial.duration < 5) == ("trial_timeout", True)


class Asker(BaseAgent):
    """An agent that has the task solved by a second agent on the same model."""

    def __init__(self, url: str) -> None:
        super().__init__("openai/m")
        self.url = url

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> AgentRunResult:
        return await _agent(self.url, adaptive=True, backoff=Backoff(first=0.01)).arun_agent(interface, task_id)


async def test_an_agent_that_calls_an_agent_holds_nothing_that_it_waits_for(tmp_path: Path) -> None:
    """One trial of the model at a time, and its requests held back by a 429."""
    endpoint = ScriptedEndpoint(following(chains.solve), faults=Faults(at={1: Fault(status=429)}))
    limits = ConcurrencyConfig(global_trials=4, per_task=4, per_model={"openai/m": 1})
    with serving(endpoint) as url:
        result = await run(
            tmp_path, lambda _: Asker(url), interface=chains.build_diamond("thread"), trials_per_task=3,
            concurrency=limits,
        )  # fmt: skip
    assert (result.coverage.graded, result.average_score()) == (12, 1.0)


def _by_conversation(served: list[Served]) -> dict[str, list[Served]]:
    tries = defaultdict(list)
    for one in sorted(served, key=lambda one: one.number):
        tries[one.key].append(one)
    return tries


async def test_forty_trials_through_an_endpoint_that_stumbles(tmp_path: Path) -> None:
    """10 % of the requests fail: every trial is graded, what the endpoint asked to wait was waited."""
    kinds = (Fault(status=429, retry_after=0.2), Fault(status=500))
    endpoint = ScriptedEndpoint(following(weigher), faults=Faults(rate=0.1, kinds=kinds, seed=5))
    patience = Backoff(retries=6, first=0.05)
    with serving(endpoint) as url:
        result = await run(
            tmp_path, lambda _: _agent(url, backoff=patience), interface=build_many(40), max_concurrency=8
        )
    assert (result.coverage.graded, result.average_score()) == (40, 1.0)
    assert {name: result.total_token_usage()[name] for name in endpoint.usage} == endpoint.usage
    failed = [one for one in endpoint.served if one.fault is not None]
    assert {one.status for one in failed} == {429, 500}
    assert endpoint.usage["requests"] == 160 == len(endpoint.served) - len(failed)
    for tries in _by_conversation(endpoint.served).values():
        for before, after in pairwise(tries):
            assert after.at - before.at >= (before.fault.retry_after or 0.02 if before.fault else 0)


class Watcher(Silent):
    """Keeps what it is told about waiting."""

    def __init__(self) -> None:
        self.heard: list[dict[str, int]] = []

    def waiting(self, counts: Mapping[str, int]) -> None:
        self.heard.append(dict(counts))


async def test_a_model_that_is_held_back_shows_in_the_progress_and_comes_back(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(
        following(weigher), faults=Faults(at={n: Fault(status=429, retry_after=1.2) for n in range(4)})
    )
    watcher = Watcher()
    with serving(endpoint) as url:
        result = await run(
            tmp_path, lambda _: _agent(url, adaptive=True, backoff=Backoff(first=0.01)), interface=build_many(4),
            max_concurrency=4, progress=watcher,
        )  # fmt: skip
    assert result.coverage.graded == 4
    shown = {name for counts in watcher.heard for name in counts if name.startswith("requests to openai/m")}
    assert shown
    assert not held_back()


class Onlooker(Silent):
    """Keeps what its trial is said to be at; ``saw`` is set when that is another try of a request."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.saw = threading.Event()

    def phase(self, key: TrialKey, phase: str) -> None:
        self.phases.append(phase)
        if "try" in phase:
            self.saw.set()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("cut"), "agent (the model does not answer, try 2 of 4)"),
        (Fault(status=503), "agent (the model answers HTTP 503, try 2 of 4)"),
    ],
    ids=["cut", "503"],
)
async def test_that_a_request_is_tried_again_shows_in_the_progress(
    fault: Fault, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try gets no answer before the progress has told of it, and the next step has nothing to tell."""
    monkeypatch.setattr("corral.session.TICK", 0.01)
    watcher = Onlooker()
    turns: list[bool] = []

    def script(conversation: Conversation) -> Turn | Fault:
        turns.append(watcher.saw.wait(30))
        return following(weigher)(conversation)

    with serving(ScriptedEndpoint(script, faults=Faults(at={0: fault}))) as url:
        agent = _agent(url, backoff=Backoff(retries=3, first=0.01))
        trial = await only_trial(tmp_path, lambda _: agent, progress=watcher)
    assert (trial.score, turns) == (1.0, [True] * 4)
    assert {phase for phase in watcher.phases if "try" in phase} == {told}
    assert watcher.phases[-1] == "scoring"


async def test_an_agent_in_a_thread_tells_of_its_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.session.TICK", 0.01)
    watcher = Onlooker()

    class Threaded(BaseAgent):
        def run(self, interface: Any, task_id: str, **kwargs: Any) -> str:
            interface.execute_tool(task_id, "weigh", {"body": "a"})
            remark("the model does not answer, try 2 of 3")
            assert watcher.saw.wait(30)
            remark("")
            return "42"

    trial = await only_trial(tmp_path, lambda _: Threaded(), progress=watcher)
    assert trial.score == 1.0
    assert "agent (after call 1; the model does not answer, try 2 of 3)" in watcher.phases
