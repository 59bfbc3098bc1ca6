from __future__ import annotations

import copy
from typing import Any

import pytest

from corral.report.differences import VALUE_LIMIT, Differing, differing


def report() -> dict[str, Any]:
    def trial(index: int) -> dict[str, Any]:
        calls = [{"tool": "weigh", "result": number} for number in (11, 7)]
        return {"trial_index": index, "score": 1.0, "success": True, "state": {"tool_calls": calls}, "messages": []}

    tasks = {task_id: {"graded": 2, "trials": [trial(0), trial(1)]} for task_id in ("b", "a")}
    return {"schema": 1, "average_score": 1.0, "tasks": tasks}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The report with one value changed, and what its path names made where it is not there."""
    made = report()
    *way, last = path.split("/")
    place: Any = made
    for key in way:
        place = place[int(key) if isinstance(place, list) else key]
    place[int(last) if isinstance(place, list) else last] = value
    return made


def test_equal_reports_have_no_differences() -> None:
    assert list(differing(report(), report())) == []


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("tasks/a/trials/1/score", 0.5, Differing("a#1", "score", "1.0", "0.5")),
        ("tasks/a/trials/1/score", 1, Differing("a#1", "score", "1.0", "1")),
        ("tasks/b/trials/0/state/tool_calls/1/result", "x\n\x1b",
         Differing("b#0", "state.tool_calls[1].result", "7", '"x\\n\\u001b"')),
        ("tasks/b/trials/0/messages", [{"role": "user"}],
         Differing("b#0", "messages[0]", "nothing", '{"role": "user"}')),
        ("tasks/b/graded", 1, Differing("task b", "graded", "2", "1")),
        ("average_score", None, Differing("the run", "average_score", "1.0", "null")),
    ],
)  # fmt: skip
def test_where_they_differ(path: str, value: Any, found: Differing) -> None:
    assert list(differing(report(), changed(path, value))) == [found]


def test_each_trial_once_in_the_order_of_the_plan_and_no_figures_that_follow_from_it() -> None:
    other = changed("average_score", 0.1)
    for task_id, index in (("a", 1), ("b", 0)):
        other["tasks"][task_id]["trials"][index] |= {"score": 0.0, "success": False}
    found = list(differing(report(), other))
    assert [(one.what, one.field, one.also) for one in found] == [
        ("b#0", "score", ("success",)),
        ("a#1", "score", ("success",)),
    ]


def test_a_trial_that_one_has_not() -> None:
    other = copy.deepcopy(report())
    del other["tasks"]["a"]["trials"][0], other["tasks"]["b"]
    assert [(one.what, one.there) for one in differing(report(), other)] == [
        ("b#0", "nothing"), ("b#1", "nothing"), ("a#0", "nothing"),
    ]  # fmt: skip


def test_long_values_are_shortened() -> None:
    (found,) = differing(report(), changed("tasks/a/trials/0/messages", ["x" * 1000]))
    assert (len(found.there), found.there[-3:]) == (VALUE_LIMIT, "...")


def test_what_is_no_number_in_both_is_the_same_in_both() -> None:
    here, there = (changed("tasks/a/trials/0/score", float("nan")) for _ in range(2))
    assert list(differing(here, there)) == []
    there["tasks"]["b"]["trials"][1]["score"] = 0.5
    assert [(one.what, one.field) for one in differing(here, there)] == [("b#1", "score")]
