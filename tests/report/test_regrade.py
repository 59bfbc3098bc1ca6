"""Stored answers scored again."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corral import CorralRunner, Environment, InputRef, TaskDefinition, build_environments, tool
from corral.agents import ScriptedAgent
from corral.errors import ConfigError, FailureKind
from corral.pool import WorkerPoolConfig
from corral.report.command import main
from corral.report.regrade import regrade
from corral.report.sessions import open_session
from corral.types import derive_seed
from tests.support.sessions import everything


class Guess(Environment):
    """Scores nothing above one half, and breaks for one answer."""

    best = 0.5

    def get_task_prompt(self) -> str:
        return "guess"

    @tool
    def look(self) -> int:
        """Look."""
        return 3

    def score(self) -> float:
        if self.state.submitted_answer == "odd":
            raise RuntimeError("the scorer cannot read this")
        return min(self.best, float(self.state.submitted_answer))


class Fair(Guess):
    """The scorer mended: the whole answer counts, and one more tenth for each look."""

    def score(self) -> float:
        answer = self.state.submitted_answer
        return (0.25 if answer == "odd" else float(answer)) + 0.1 * len(self.state.tool_calls)


def agent(context: Any) -> ScriptedAgent:
    def policy(lab: Any, prompt: Any) -> Any:
        lab.call("look")
        return {"a": 0.9, "b": "odd"}[context.task_id]

    return ScriptedAgent(policy)


def fair() -> Mapping[str, Environment]:
    return {name: Fair(name) for name in ("a", "b")}


@pytest.fixture
def session(tmp_path: Path) -> Path:
    runner = CorralRunner({n: Guess(n) for n in ("a", "b")}, agent_factory=agent, checkpoint_dir=tmp_path)
    runner.bench(trials_per_task=2, session_id="first", seed=1, retries=0)
    return tmp_path / "first"


def test_answers_get_the_score_of_the_new_scorer(session: Path) -> None:
    before = open_session(session)
    assert (before.task_average_score("a"), before.coverage.not_graded) == (0.5, {"scoring": 2})
    after = regrade(before, fair, session.parent / "second")
    assert after.task_results["a"].scores == [1.0, 1.0]
    assert after.task_results["b"].scores == [0.35, 0.35]  # what the old scorer broke on is graded now
    assert after.coverage.complete
    assert (after.session_id, after.settings["regraded_from"]) == ("second", "first")
    whole = next(after.whole_trials)
    assert whole.messages
    assert whole.attempts[0].started_at is not None
    assert open_session(session).to_report() == before.to_report()


def test_a_scorer_that_breaks_leaves_its_trials_not_graded(session: Path) -> None:
    after = regrade(open_session(session), lambda: {n: Guess(n) for n in ("a", "b")}, session.parent / "second")
    trial = after.task_results["b"].trials[0]
    assert (trial.failure, trial.graded, trial.score) == (FailureKind.SCORING, False, 0.0)
    assert "the scorer cannot read this" in (trial.error_message or "")


class Weighing(Guess):
    """In worker processes; a scorer that does what the answer says: for the good ones, tell where it ran."""

    concurrency = "process"

    def score(self) -> float:
        answer, calls = self.state.submitted_answer, self.state.tool_calls
        print(f"scoring {answer}", flush=True)
        match answer:
            case "crash":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "hang":
                threading.Event().wait()
            case "raise":
                raise RuntimeError("the scorer cannot read this")
        self.state.feedback = [os.getpid(), len(calls), calls[0].result, self.seed]
        return 0.75


ANSWERS = ("crash", "good", "exit", "hang", "raise", "better")


def weighing() -> Mapping[str, Environment]:
    return {name: Weighing(name) for name in ANSWERS}


@pytest.fixture
def answered(tmp_path: Path) -> Path:
    def factory(context: Any) -> ScriptedAgent:
        def policy(lab: Any, prompt: Any) -> Any:
            lab.call("look")
            return context.task_id

        return ScriptedAgent(policy)

    before = {name: Guess(name) for name in ANSWERS}  # its scorer can read none of these answers
    CorralRunner(before, agent_factory=factory, checkpoint_dir=tmp_path).bench(session_id="first", seed=1, retries=0)
    return tmp_path / "first"


@pytest.mark.parametrize("reuse", ["trial", "worker"])
def test_a_scorer_that_crashes_or_hangs_costs_its_own_trial_only(reuse: Any, answered: Path) -> None:
    before = open_session(answered)
    assert before.coverage.not_graded == {"scoring": 6}
    pool = WorkerPoolConfig(size=2, reuse=reuse)
    after = regrade(before, weighing, answered.parent / "second", worker_pool=pool, trial_timeout=1.5)
    trials = {trial.task_id: trial for trial in after.whole_trials}
    assert {name: (trial.score, trial.failure) for name, trial in trials.items()} == {
        "crash": (0.0, FailureKind.WORKER_DIED), "exit": (0.0, FailureKind.WORKER_DIED),
        "hang": (0.0, FailureKind.SCORING), "raise": (0.0, FailureKind.SCORING),
        "good": (0.75, None), "better": (0.75, None),
    }  # fmt: skip
    for name, trial in trials.items():
        (attempt,), (recorded,) = trial.attempts, before.whole(before.task_results[name].trials[0]).attempts
        assert (attempt.failure, attempt.started_at, attempt.seconds) == (
            trial.failure, recorded.started_at, recorded.seconds,
        )  # fmt: skip
        assert len(trial.messages) == 4
    for name, status, words in (
        ("crash", -signal.SIGSEGV, "Segmentation fault"), ("exit", 3, ""), ("hang", -signal.SIGKILL, "in score"),
        ("raise", None if reuse == "worker" else 0, ""),
    ):  # fmt: skip
        evidence = trials[name].attempts[0]
        assert evidence.exit_status == status, name
        assert evidence.output.startswith(f"scoring {name}\n"), name
        assert words in evidence.output, name
        assert evidence.worker is not None
    assert "did not end within the trial's limit of 1.5 s" in (trials["hang"].error_message or "")
    for name in ("good", "better"):
        pid, calls, result, seed = trials[name].state["feedback"]
        assert pid != os.getpid()
        assert (calls, result, seed) == (1, 3, derive_seed(1, name, 0))


def test_without_a_pool_it_is_scored_here(answered: Path) -> None:
    after = regrade(open_session(answered), lambda: {n: Fair(n) for n in ANSWERS}, answered.parent / "second",
                    worker_pool=False)  # fmt: skip
    assert after.coverage.not_graded == {"scoring": 6}  # no answer is a number
    assert [trial.attempts[0].worker for trial in after.trials] == [None] * 6


def test_the_shell_scores_on_as_many_workers_as_it_is_told(answered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    envs = ["--envs", "tests.report.test_regrade:weighing"]
    limits = ["--size", "2", "--trial-timeout", "1.5", "--quiet"]
    assert main(["regrade", str(answered), *envs, *limits, "--as", "again"]) == 0
    shown = capsys.readouterr().out
    assert "again against first" in shown
    assert open_session(answered.parent / "again").coverage.graded == 2
    assert main(["regrade", str(answered), *envs, "--size", "0"]) == 2
    assert not (answered.parent / "first-regraded").exists()


def test_one_that_is_stopped_leaves_nothing(answered: Path) -> None:
    """And so it can be begun again."""

    def stop(event: dict[str, Any]) -> None:
        if event["done"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        regrade(open_session(answered), weighing, answered.parent / "second", worker_pool=1, progress=stop)
    assert not (answered.parent / "second").exists()


def test_a_session_is_never_overwritten_and_tasks_must_be_there(session: Path) -> None:
    with pytest.raises(ConfigError, match="already has results"):
        regrade(open_session(session), fair, session)
    with pytest.raises(ConfigError, match="no task 'salt/one', 'crash', 'calm'"):
        regrade(everything(), fair, session.parent / "third")
    assert not (session.parent / "third").exists()


def test_a_task_of_a_chain_gets_its_parents_output(tmp_path: Path) -> None:
    def build(factor: float) -> Mapping[str, Environment]:
        def score(answer: Any, base: Any = 0.0, **_: Any) -> float:
            return factor * float(answer)

        def dependent(answer: Any, base: Any = 0.0, **_: Any) -> float:
            return factor * float(base)

        tasks = [
            TaskDefinition("base", "say a number", [], score, "a number"),
            TaskDefinition(
                "next", "use it", [], dependent, "a number",
                input_map={"base": InputRef("base")}, scoring_inputs={"base": InputRef("base")},
            ),
        ]  # fmt: skip
        return build_environments(tasks)

    runner = CorralRunner(
        build(1.0), agent_factory=lambda context: ScriptedAgent(lambda lab, prompt: 0.5), checkpoint_dir=tmp_path
    )
    first = runner.bench(session_id="first", seed=1)
    assert first.coverage.complete, first.first_cause()
    after = regrade(open_session(tmp_path / "first"), lambda: build(0.5), tmp_path / "second")
    assert [task.scores for task in after.task_results.values()] == [[0.25], [0.25]]


def test_an_answer_beyond_all_numbers_is_kept_and_scored_again(tmp_path: Path) -> None:
    def build(least: float) -> Mapping[str, Environment]:
        def score(answer: Any, **_: Any) -> float:
            return float(float(answer) > least)

        return build_environments([TaskDefinition("large", "say a large number", [], score, "a number")])

    runner = CorralRunner(
        build(math.inf), agent_factory=lambda context: ScriptedAgent(lambda lab, prompt: "1e999"),
        checkpoint_dir=tmp_path,
    )  # fmt: skip
    before = runner.bench(session_id="first", seed=1)
    assert (before.average_score(), before.trials[0].state["submitted_answer"]) == (0.0, "1e999")
    after = regrade(open_session(tmp_path / "first"), lambda: build(1e300), tmp_path / "second")
    assert after.average_score() == 1.0
