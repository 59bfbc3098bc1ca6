from __future__ import annotations

from corral.agents.circles import Circles


def test_the_same_call_with_the_same_result_is_counted() -> None:
    circles = Circles()
    assert [circles.saw("look", {}, "dark") for _ in range(4)] == [1, 2, 3, 4]


def test_another_result_or_argument_breaks_the_circle() -> None:
    circles = Circles()
    steps = [({"at": 1}, "a"), ({"at": 1}, "b"), ({"at": 2}, "b"), ({"at": 2}, "b")]
    assert [circles.saw("look", arguments, result) for arguments, result in steps] == [1, 1, 1, 2]


def test_a_circle_of_three_calls_is_seen() -> None:
    circles = Circles()
    rounds = [circles.saw(tool, {}, "same") for tool in "abc" * 6]
    assert (rounds[2], rounds[5], rounds[-1]) == (1, 2, 6)


def test_the_model_is_told_from_the_third_time_on() -> None:
    circles = Circles()
    assert circles.remark(2) == ""
    assert "3 times" in circles.remark(3)
