"""The result object: its figures, its coverage and the report it gives."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from corral.errors import ConfigError, FailureKind, NotFound
from corral.report import BenchmarkResult, TaskTrialResults
from corral.types import TaskTrialResult
from tests.support.results import graded, lost


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def result_of(*records: TaskTrialResult, tasks: tuple[str, ...] = ("b", "a"), **more: Any) -> BenchmarkResult:
    return BenchmarkResult.collect("s", tasks, records, **more)


def test_figures_of_a_complete_run() -> None:
    result = result_of(
        graded("a", 1, 0.0), graded("a", 0, 0.5), graded("b", 1, 1.0), graded("b", 0, 1.0), trials_per_task=2
    )
    assert result.total_score == 2.5
    assert result.average_score() == 0.625
    assert result.task_average_score("a") == 0.25
    assert result.average_score_bounds() == (0.625, 0.625)
    assert (result.pass_at_k(1), result.pass_at_k(2)) == (0.75, 1.0)
    assert (result.pass_hat_k(1), result.pass_hat_k(2)) == (0.75, 0.5)
    assert result.coverage.complete
    assert result.first_cause() is None


def test_trials_come_in_the_order_of_the_plan_not_of_arrival() -> None:
    result = result_of(graded("a", 1), graded("b", 1), graded("a", 0), graded("b", 0), trials_per_task=2)
    assert [trial.trial_id for trial in result.trials] == ["b#0", "b#1", "a#0", "a#1"]
    assert list(result.task_results) == ["b", "a"]


def test_a_trial_that_is_not_graded_counts_as_nought_and_the_bounds_say_what_could_have_been() -> None:
    result = result_of(graded("a", 0), lost("a", 1), lost("b", 0), lost("b", 1), trials_per_task=2)
    assert result.average_score() == 0.25
    assert result.average_score_bounds() == (0.25, 1.0)
    assert result.pass_at_k(1) == 0.25
    assert result.pass_at_k_bounds(2) == (0.5, 1.0)
    assert result.pass_hat_k_bounds(2) == (0.0, 1.0)
    coverage = result.coverage
    assert (coverage.planned, coverage.graded, coverage.not_graded) == (4, 1, {"worker_died": 3})
    assert not coverage.complete
    assert result.task_results["b"].graded == 0
    assert result.task_results["b"].average_score == 0.0


def test_a_failure_that_is_graded_is_listed_but_leaves_the_run_complete() -> None:
    result = result_of(lost("a", 0, FailureKind.TRIAL_TIMEOUT), graded("b", 0))
    assert result.coverage.complete
    assert result.coverage.not_graded == {}
    assert result.coverage.failures == {"trial_timeout": 1}
    assert result.average_score_bounds() == (0.5, 0.5)


def test_a_planned_trial_without_a_record_was_cancelled() -> None:
    result = result_of(graded("a", 0), trials_per_task=2)
    assert result.coverage.not_graded == {"cancelled": 3}
    assert result.task_results["a"].scores == [1.0, 0.0]
    assert result.pass_at_k_bounds(2) == (0.5, 1.0)
    assert result.first_cause() == "the run was stopped before every trial had ended"


def test_scores_stand_at_the_index_of_their_trial_where_the_run_was_stopped() -> None:
    trials = [graded("a", 3, 0.25), graded("a", 1, 0.75)]
    task = BenchmarkResult.collect("s", ["a"], trials, trials_per_task=5).task_results["a"]
    assert (task.scores, task.n) == ([0.0, 0.75, 0.0, 0.25, 0.0], 5)
    assert task.average_score_bounds == (0.2, 0.8)
    more = BenchmarkResult.collect("s", ["a"], trials, trials_per_task=2).task_results["a"]
    assert (more.n, more.scores, more.not_graded) == (4, [0.0, 0.75, 0.0, 0.25], {"cancelled": 2})


def test_the_first_cause_is_a_cause_not_a_consequence() -> None:
    result = result_of(lost("b", 0, FailureKind.NOT_RUN, "upstream failed"), lost("a", 0, message="endpoint gone"))
    assert result.first_cause() == "a#0: endpoint gone"


def test_a_score_that_was_not_graded_has_no_weight() -> None:
    broken = TaskTrialResult("a", 0, score=1.0, graded=False)
    result = result_of(broken, tasks=("a",))
    assert (result.average_score(), result.total_score, result.task_results["a"].successes) == (0.0, 0.0, 0)
    assert result.coverage.not_graded == {"unknown": 1}


def test_success_needs_a_score_no_error_and_no_surrender() -> None:
    records = (
        graded("a", 0, 0.1), graded("a", 1, 0.0), graded("a", 2, surrendered=True), graded("a", 3, error_message="no"),
    )  # fmt: skip
    assert result_of(*records, tasks=("a",), trials_per_task=4).task_results["a"].successes == 1


def test_k_larger_than_the_trials_is_refused() -> None:
    result = result_of(graded("a", 0), graded("b", 0))
    for figure in (result.pass_at_k, result.pass_hat_k, result.pass_at_k_bounds, result.pass_hat_k_bounds):
        with pytest.raises(ConfigError):
            figure(2)
        with pytest.raises(ConfigError):
            figure(0)


def test_an_unknown_task_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"'c'.*'b', 'a'"):
        result_of(graded("a", 0)).task_average_score("c")
    with pytest.raises(NotFound):
        result_of(graded("c", 0))


def test_token_usage_adds_up_nested_numbers() -> None:
    np = pytest.importorskip("numpy")
    result = result_of(
        graded("a", 0, token_usage={"input": 3, "model": "m", "details": {"cached": 1}, "cost": 0.5, "flag": True}),
        graded("b", 0, token_usage={"input": 4, "details": {"cached": 2, "deep": {"x": 1}}, "cost": math.nan}),
        graded("b", 1, token_usage={"input": np.int64(5), "details": None}),
    )
    assert result.total_token_usage() == {"input": 12, "details": {"cached": 3, "deep": {"x": 1}}, "cost": 0.5}


def test_no_tasks_at_all() -> None:
    result = BenchmarkResult.collect("s", [], [])
    assert math.isnan(result.average_score())
    assert math.isnan(result.pass_at_k(1))
    report = strict(json.dumps(result.to_report()))
    assert (report["average_score"], report["pass_at_k"], report["total_score"]) == (None, {"1": None}, 0)
    assert report["complete"] is True
    with pytest.raises(ConfigError):
        result.pass_at_k(2)


def test_a_task_alone() -> None:
    task = TaskTrialResults("a", (graded("a", 1, 0.0), graded("a", 0), graded("a", 2, 0.0)))
    assert [trial.trial_index for trial in task.trials] == [0, 1, 2]
    assert (task.n, task.successes, task.graded) == (3, 1, 3)
    assert task.pass_at_k(2) == 2 / 3
    assert TaskTrialResults("a").to_report([1])["pass_at_k"] == {"1": None}


class Broken:
    name = "broken"

    def compute(self, result: BenchmarkResult) -> float:
        return result.total_score / 0


class Counting:
    name = "count"
    calls = 0

    def compute(self, result: BenchmarkResult) -> dict[str, float]:
        self.calls += 1
        return {"trials": len(list(result.trials)), "odd": math.inf}


def test_metrics_stand_in_the_report_and_are_computed_once() -> None:
    counting = Counting()
    result = result_of(graded("a", 0), metrics=(Broken(), counting))
    report = result.to_report()
    assert report["metrics"]["broken"].startswith("ZeroDivisionError: ")
    assert report["metrics"]["count"] == {"trials": 1, "odd": None}
    result.to_report()
    assert counting.calls == 1


def test_the_report_is_strict_json_with_every_key(tmp_path: Path) -> None:
    result = result_of(
        graded("a", 0, math.nan, state={"submitted_answer": "\ud800 lone", "x": math.inf}),
        lost("b", 0),
        run_name="n",
        seed=7,
        settings={"where": tmp_path},
        pool={"size": 2},
        wall_seconds=1.5,
    )
    path = result.generate_report(tmp_path / "new" / "report.json")
    report = strict(path.read_bytes().decode("utf-8"))
    assert report == result.to_report()
    assert {
        "schema", "session", "run_name", "seed", "created", "planned", "graded", "not_graded", "complete",
        "average_score", "average_score_bounds", "total_score", "pass_at_k", "pass_hat_k", "token_usage", "wall_s",
        "settings", "pool", "metrics", "tasks",
    } <= report.keys()  # fmt: skip
    assert datetime.fromisoformat(report["created"]).utcoffset() is not None
    trial = report["tasks"]["a"]["trials"][0]
    assert trial["answer"] == "\ud800 lone"
    assert trial["score"] is None
    assert report["tasks"]["b"]["trials"][0]["failure"] == "worker_died"
    assert report["settings"] == {"where": str(tmp_path)}
    assert [path.name for path in path.parent.iterdir()] == ["report.json"]


def test_a_naive_time_of_creation_gets_its_offset() -> None:
    report = result_of(created=datetime(2026, 1, 1)).to_report()
    assert datetime.fromisoformat(report["created"]).utcoffset() is not None
