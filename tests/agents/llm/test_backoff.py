from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from corral.agents.llm.backoff import Backoff, asked_for, may_repeat
from corral.errors import ConfigError

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def test_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(retries=8, first=1, longest=20)
    assert [backoff.wait(n, None, 1.0) for n in range(1, 7)] == [1, 2, 4, 8, 16, 20]
    assert backoff.wait(3, None, 0.0) == 2


def test_it_gives_up_after_its_retries() -> None:
    assert Backoff(retries=2).wait(2, None, 0) is not None
    assert Backoff(retries=2).wait(3, None, 0) is None
    assert Backoff(retries=0).wait(1, 1.0, 0) is None


@pytest.mark.parametrize("cost", [1, 2, 3, 5])
def test_it_says_how_many_tries_are_left(cost: int) -> None:
    backoff = Backoff(retries=6)
    for failures in range(1, 9):
        left = 0
        while backoff.wait(failures + left * cost, None, 0) is not None:
            left += 1
        assert backoff.further(failures, cost) == left


def test_what_the_endpoint_asks_for_is_never_cut_short() -> None:
    assert Backoff(longest=5).wait(1, 30.0, 0.0) == 30
    assert Backoff().wait(1, 30.0, 1.0) == 31


def test_asking_for_more_than_our_patience_is_a_no() -> None:
    assert Backoff(patience=60).wait(1, 61.0, 0) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_reading_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_for(headers, NOW) == seconds


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_be_repeated(status: int) -> None:
    assert may_repeat(status, {}, "")


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
def test_what_is_never_repeated(status: int) -> None:
    assert not may_repeat(status, {}, "")
    assert not may_repeat(status, {"x-should-retry": "true"}, "")


def test_the_endpoints_own_word_on_repeating() -> None:
    assert not may_repeat(503, {"x-should-retry": "false"}, "")
    assert not may_repeat(429, {}, '{"error": {"code": "insufficient_quota"}}')


@pytest.mark.parametrize("bad", [{"retries": -1}, {"first": 0}, {"longest": None}, {"patience": float("inf")}])
def test_impossible_values_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Backoff(**bad)
