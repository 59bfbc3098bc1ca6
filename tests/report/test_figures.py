"""Time, memory, tokens and cost from the records."""

from __future__ import annotations

import pytest

from corral.errors import ConfigError
from corral.report import Cost
from corral.report.figures import flat_numbers, peak_memory, phases, resources, tool_seconds
from corral.types import Attempt, Timings
from tests.support.results import graded
from tests.support.sessions import everything


def test_the_agents_time_is_without_its_tool_calls() -> None:
    trial = graded("a", 0, state={"tool_calls": [{"duration": 1.5}, {"duration": 0.5}]}, timings=Timings(4, 1, 3, 0.5))
    assert phases(trial) == {"queued": 4, "configured": 1, "agent": 1.0, "tools": 2.0, "scored": 0.5}


def test_calls_that_overlap_never_leave_the_agent_less_than_nothing() -> None:
    trial = graded("a", 0, state={"tool_calls": [{"duration": 2.0}, {"duration": 2.0}]}, timings=Timings(0, 0, 3, 0))
    assert phases(trial)["agent"] == 0.0


@pytest.mark.parametrize("calls", [None, "none", [None, 3, {"duration": None}, {}]])
def test_a_state_without_known_calls_has_no_tool_time(calls: object) -> None:
    assert tool_seconds(graded("a", 0, state={"tool_calls": calls})) == 0.0


def test_peak_memory_is_that_of_the_greatest_attempt() -> None:
    assert peak_memory(graded("a", 0, attempts=(Attempt(1, peak_rss=7), Attempt(2, peak_rss=5)))) == 7
    assert peak_memory(graded("a", 0, attempts=(Attempt(1),))) is None


def test_totals_over_a_session() -> None:
    found = resources(everything().trials)
    assert found["peak_rss"] == 60_000_000
    assert found["time"]["tools"]["total_s"] == 1.25 * 8  # one trial's own state has no calls
    assert found["time"]["scored"]["mean_s"] == 0.25


def test_cost_is_by_the_million_and_by_dotted_names() -> None:
    cost = Cost({"prompt_tokens": 3.0, "details.cached": -2.7, "unknown": 99})
    trial = graded("a", 0, token_usage={"prompt_tokens": 1_000_000, "details": {"cached": 500_000}})
    assert cost.of(trial.token_usage) == pytest.approx(3.0 - 1.35)
    result = everything()
    result.metrics = (Cost({"completion_tokens": 10.0}),)
    assert result.metric_values == {
        "cost": {"total": pytest.approx(9 * 10 * 10 / 1e6), "per_trial": pytest.approx(1e-4)}
    }


def test_a_price_must_be_a_number() -> None:
    with pytest.raises(ConfigError, match="price of 'x'"):
        Cost({"x": "3"})  # type: ignore[dict-item]


def test_flat_numbers() -> None:
    assert flat_numbers({"a": 1, "b": {"c": 2.5, "d": {"e": 3}}, "f": True, "g": "x"}) == {
        "a": 1,
        "b.c": 2.5,
        "b.d.e": 3,
    }
