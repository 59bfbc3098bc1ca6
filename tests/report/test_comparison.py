"""Two runs side by side."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from corral.errors import ConfigError
from corral.report import BenchmarkResult
from corral.report.comparison import compare
from corral.report.rendering import print_comparison
from tests.support.results import graded, lost


def session(name: str, scores: dict[str, list[float]]) -> BenchmarkResult:
    records = [graded(task, index, score) for task, row in scores.items() for index, score in enumerate(row)]
    return BenchmarkResult.collect(name, list(scores), records, trials_per_task=2, k_values=(1, 2, 9))


BEFORE = session("before", {"a": [0.0, 1.0], "b": [0.0, 0.0], "c": [0.5, 0.5], "gone": [1.0, 1.0]})
AFTER = session("after", {"c": [0.5, 0.5], "a": [1.0, 1.0], "b": [0.0, 1.0], "new": [0.0, 0.0]})


def test_the_tasks_of_both_are_compared_each_with_itself() -> None:
    found = compare(BEFORE, AFTER)
    assert [task.task_id for task in found.tasks] == ["a", "b", "c"]
    assert found.average_score.value == pytest.approx(1 / 3)  # 0.5, 0.5 and 0
    assert found.average_score.standard_error == pytest.approx(1 / 6)
    assert found.pass_at_k["2"].value == pytest.approx(1 / 3)  # only b gains: 0 to 1
    assert found.pass_hat_k["2"].value == pytest.approx(1 / 3)  # only a
    assert "9" not in found.pass_at_k
    assert (found.only_before, found.only_after) == (("gone",), ("new",))


def test_a_task_has_its_difference_and_a_corrected_p_value() -> None:
    task = compare(BEFORE, AFTER).tasks[1]
    assert (task.before, task.after, task.trials, task.difference.value) == (0.0, 0.5, (2, 2), 0.5)
    assert task.difference.p_value < task.adjusted_p


def test_runs_without_a_common_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="no task in common"):
        compare(BEFORE, session("other", {"x": [1.0]}))


def test_the_printed_comparison_names_what_changed_and_what_is_missing() -> None:
    console = Console(file=io.StringIO(), width=100)
    print_comparison(compare(BEFORE, AFTER), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "after against before, 3 tasks of both" in text
    assert "+0.333" in text
    assert "only in before: gone" in text
    assert "\nc " not in text  # it did not change
    console = Console(file=io.StringIO(), width=100)
    broken = BenchmarkResult.collect("broken", ["a"], [graded("a", 0), lost("a", 1)], trials_per_task=2)
    print_comparison(compare(BEFORE, broken), console)
    assert isinstance(console.file, io.StringIO)
    assert "not graded, and counted as 0: 0 and 1 trials" in console.file.getvalue()
