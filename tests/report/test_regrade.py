"""Stored answers scored again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corral import CorralRunner, Environment, InputRef, TaskDefinition, build_environments, tool
from corral.agents import ScriptedAgent
from corral.errors import ConfigError, FailureKind
from corral.report.regrade import regrade
from corral.report.sessions import open_session
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
