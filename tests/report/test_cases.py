"""What other harnesses got wrong about scores and reports, as whole runs: from environments to the report."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from corral import BenchmarkResult, CorralRunner, Environment
from corral.agents import BaseAgent, ScriptedAgent
from corral.errors import ConfigError
from corral.report.progress import LineProgress
from corral.report.rendering import print_result
from corral.report.sessions import open_session
from tests.support.benches import Bench

Policy = Callable[[Any, Any], Any]


class Exam(Bench):
    """Passes every answer; some tasks break at a certain place."""

    def configure_additional_apps(self) -> str:
        if self.task_id == "set-up":
            raise OSError("no licence")
        return "ready"

    def score(self) -> float:
        if self.task_id == "scorer":
            raise ZeroDivisionError("no reference")
        return 1.0

    def close(self) -> None:
        if self.task_id == "close":
            raise OSError("will not close")


class Refused(Exception):
    status_code = 402


def run(folder: Path, policy: Policy, tasks: tuple[str, ...] = ("a",), **bench: Any) -> BenchmarkResult:
    runner = CorralRunner(
        {task: Exam(task) for task in tasks},
        agent_factory=lambda context: ScriptedAgent(lambda lab, prompt: policy(lab, context)),
        checkpoint_dir=folder,
        metrics=bench.pop("metrics", None),
    )
    return runner.bench(**{"retries": 0, "session_id": "s", **bench})


def strict(path: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(path.read_bytes().decode("utf-8"), parse_constant=refuse)


def printed(result: BenchmarkResult) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_result(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_k_above_the_trials_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    calls: list[Any] = []
    with pytest.raises(ConfigError, match="k"):
        run(tmp_path, lambda lab, context: calls.append(context), trials_per_task=3, k_values=[1, 3, 5])
    assert calls == []
    assert list(tmp_path.iterdir()) == []


def test_a_provider_that_cuts_off_is_no_loss_of_the_agent(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        for _ in range(3):
            lab.call("python", code="")
        if context.trial_index % 4 == 0:
            raise Refused("payment required")
        return "answer"

    result = run(tmp_path, policy, trials_per_task=20)
    assert result.coverage.not_graded == {"infrastructure": 5}
    assert (result.average_score(), result.average_score_bounds()) == (0.75, (0.75, 1.0))
    assert "15 of 20 graded" in printed(result)


def test_an_error_in_each_place_has_its_own_kind(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        if context.task_id == "tool":
            lab.call("python", code="raise SystemExit(3)")
        if context.task_id == "agent":
            raise LookupError("lost the thread")
        return "answer"

    result = run(tmp_path, policy, ("set-up", "tool", "agent", "scorer", "close"))
    found = {trial.task_id: trial.failure and trial.failure.value for trial in result.trials}
    assert found == {"set-up": "env_start", "tool": "tool", "agent": "agent", "scorer": "scoring", "close": None}
    assert sum(result.coverage.failures.values()) == 4
    closed = result.task_results["close"].trials[0]
    assert (closed.score, "will not close" in closed.warnings[0]) == (1.0, True)


def test_a_task_that_only_errs_is_listed_and_does_not_raise_the_average(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        if context.task_id == "b":
            raise Refused("payment required")
        return "answer"

    result = run(tmp_path, policy, ("a", "b", "c"), trials_per_task=3)
    assert result.average_score() == pytest.approx(2 / 3)
    assert not result.coverage.complete
    assert "no graded trial: infrastructure 3" in printed(result)


def test_a_run_in_which_everything_erred_says_so_with_its_first_cause(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        raise Refused("invalid key")

    text = printed(run(tmp_path, policy, ("a", "b")))
    assert "0 of 2 graded" in text
    assert "invalid key" in text


def test_an_endpoint_that_is_down_and_an_empty_answer_differ(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        if context.task_id == "down":
            raise ConnectionRefusedError("no route to the model")
        return ""

    result = run(tmp_path, policy, ("down", "empty"))
    down, empty = (task.trials[0] for task in result.task_results.values())
    assert (down.failure and down.failure.value, down.graded) == ("infrastructure", False)
    assert empty.graded


class Infinite:
    name = "infinite"

    def compute(self, result: BenchmarkResult) -> dict[str, float]:
        return {"inf": math.inf, "nan": math.nan}


def test_odd_numbers_and_odd_text_leave_the_report_strict(tmp_path: Path) -> None:
    def policy(lab: Any, context: Any) -> str:
        if context.task_id == "b":
            raise Refused("0/0")
        lab.call("python", code="result = {'ratio': float('nan'), 'most': float('inf')}")
        return "a lone \ud800 surrogate"

    result = run(tmp_path, policy, ("a", "b"), metrics=[Infinite()])
    report = strict(result.generate_report(tmp_path / "report.json"))
    assert report["metrics"] == {"infinite": {"inf": None, "nan": None}}
    trial = report["tasks"]["a"]["trials"][0]
    assert (trial["answer"], trial["score"]) == ("a lone \ud800 surrogate", 1.0)
    for name in ("page.html", "trials.jsonl", "junit.xml", "run.trace.json", "run.eval"):
        assert result.export(tmp_path / name).stat().st_size > 0
    empty = BenchmarkResult.collect("empty", ["a"], []).generate_report(tmp_path / "empty.json")
    assert strict(empty)["average_score"] == 0.0


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield change
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(os.name == "nt", reason="time.tzset is not on Windows")
def test_times_carry_their_offset_whatever_the_zone_of_the_resume(tmp_path: Path, zone: Callable[[str], None]) -> None:
    zone("America/New_York")
    run(tmp_path, lambda lab, context: "answer", trials_per_task=1)
    zone("Asia/Tokyo")
    result = run(tmp_path, lambda lab, context: "answer", trials_per_task=2)
    report = strict(result.generate_report(tmp_path / "report.json"))
    assert datetime.fromisoformat(report["created"]).utcoffset() is not None
    attempts = [trial["attempts"][0] for trial in report["tasks"]["a"]["trials"]]
    assert abs(attempts[1]["started_at"] - attempts[0]["started_at"]) < 60  # one clock, two zones
    for trial in report["tasks"]["a"]["trials"]:
        assert min(trial["timings"].values()) >= 0
    zone("UTC")
    again = open_session(tmp_path / "s").generate_report(tmp_path / "again.json")
    assert again.read_bytes() == (tmp_path / "report.json").read_bytes()


class Stuck(BaseAgent):
    """One trial waits until the log names it."""

    stream: io.StringIO
    index: int

    def run(self, interface: Any, task_id: str, **kwargs: Any) -> str:
        deadline = time.monotonic() + 20
        while self.index == 7 and "oldest a#7 in agent" not in self.stream.getvalue():
            assert time.monotonic() < deadline, self.stream.getvalue()
            time.sleep(0.02)
        return "answer"


def test_a_trial_that_hangs_is_named_by_the_log_with_its_age(tmp_path: Path) -> None:
    stream = io.StringIO()

    def make(context: Any) -> Stuck:
        agent = Stuck()
        agent.stream, agent.index = stream, context.trial_index
        return agent

    environments: dict[str, Environment] = {"a": Exam("a")}
    runner = CorralRunner(environments, agent_factory=make, checkpoint_dir=tmp_path)
    result = runner.bench(
        trials_per_task=30, max_concurrency=4, max_concurrency_per_task=4, progress=LineProgress(stream, every=0.5)
    )
    assert result.coverage.graded == 30
