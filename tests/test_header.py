"""What a session was started with: what differs is said in sentences, and ids name directories."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest

from corral.errors import ConfigError, SessionMismatch
from corral.header import Header, check_same, check_session_id, new_session_id
from corral.records import Record

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone(timedelta(hours=-5)))
PLAN: Record = {"task_ids": ["a", "b"], "trials_per_task": 3, "seed": 7, "retries": 1}
FINGERPRINT: Record = {"model": "m1", "tasks": {"a": "d1", "b": "d2"}}
HEADER = Header.new("s", PLAN, FINGERPRINT, NOON)


def test_a_naive_time_gets_the_local_offset() -> None:
    created = Header.new("s", {}, {}, NOON.replace(tzinfo=None)).created
    assert datetime.fromisoformat(created).tzinfo is not None


def test_the_same_plan_is_the_same_session() -> None:
    check_same(HEADER, PLAN, FINGERPRINT)
    check_same(HEADER, PLAN | {"seed": None}, FINGERPRINT)
    check_same(HEADER, {name: value for name, value in PLAN.items() if name != "seed"}, FINGERPRINT)
    check_same(HEADER, PLAN | {"trials_per_task": 5}, FINGERPRINT)
    check_same(HEADER, PLAN | {"task_ids": ["b", "a"]}, FINGERPRINT)
    check_same(Header.new("s", PLAN | {"ks": (1, 3)}, FINGERPRINT, NOON), PLAN | {"ks": [1, 3]}, FINGERPRINT)


@pytest.mark.parametrize(
    ("plan", "fingerprint", "sentence"),
    [
        ({"task_ids": ["a"]}, {}, "tasks that it has and that are not asked for now: 'b'"),
        ({"task_ids": ["a", "b", "c"]}, {}, "tasks that are asked for now and that it does not have: 'c'"),
        ({"trials_per_task": 2}, {}, "it has 3 trials per task, and 2 are asked for now"),
        ({"seed": 8}, {}, "its seed is 7, and 8 is asked for now"),
        ({"retries": 2}, {}, "retries was 1 and is 2 now"),
        ({"budget": 5}, {}, "budget was None and is 5 now"),
        ({}, {"model": "m2"}, "model was 'm1' and is 'm2' now"),
        (
            {},
            {"tasks": {"a": "d1", "b": "other"}},
            "the environment (its code, data, version or tools) has changed of: 'b'",
        ),
        ({}, {"limits": {"tool": 3}}, "limits was None and is {'tool': 3} now"),
    ],
)
def test_each_difference_is_a_sentence(plan: Record, fingerprint: Record, sentence: str) -> None:
    with pytest.raises(SessionMismatch) as caught:
        check_same(HEADER, PLAN | plan, FINGERPRINT | fingerprint)
    assert len(caught.value.differences) == 1
    assert sentence in caught.value.differences[0]
    assert sentence in str(caught.value)
    assert isinstance(caught.value, ConfigError)


def test_all_differences_are_listed() -> None:
    with pytest.raises(SessionMismatch) as caught:
        check_same(HEADER, PLAN | {"seed": 8, "task_ids": [*"acdefghijklmn"]}, FINGERPRINT | {"model": "m2"})
    assert len(caught.value.differences) == 4
    assert "'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l' and 2 more" in str(caught.value)


def test_nested_differences_are_named_in_full() -> None:
    header = Header.new("s", PLAN | {"limits": {"tool": 3, "trial": 9}}, FINGERPRINT, NOON)
    with pytest.raises(SessionMismatch, match=r"limits\.tool was 3 and is 4 now"):
        check_same(header, PLAN | {"limits": {"tool": 4, "trial": 9}}, FINGERPRINT)


def test_a_session_that_has_grown_does_not_shrink_to_its_header() -> None:
    with pytest.raises(SessionMismatch, match="it has 5 trials per task, and 3 are asked for"):
        check_same(HEADER, PLAN, FINGERPRINT, recorded_trials=5)


@pytest.mark.parametrize("name", ["a", "2026.11_x-1", "x" * 100, "..."])
def test_session_ids(name: str) -> None:
    assert check_session_id(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a b", "a\n", "ü", "x" * 101, "\x00", None, 7])
def test_ids_that_could_leave_the_directory_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match="session id"):
        check_session_id(name)


def test_new_session_ids_are_readable() -> None:
    name = new_session_id(datetime(2026, 11, 29, 19, 44, 43, tzinfo=UTC), Random(1))
    assert name == f"20261129-194443-{Random(1).getrandbits(16):04x}"
    assert check_session_id(name) == name
