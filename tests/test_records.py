"""Results as lines and back: nothing changes on the way, and no value can spoil a line."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy
import pytest

from corral.errors import FailureKind, JournalError, ProtocolError
from corral.plain import MAX_DEPTH, plain
from corral.records import decode, encode, from_record, recorded, to_record
from corral.types import Attempt, TaskTrialResult, Timings, TrialKey, WorkerRef

FULL = TaskTrialResult(
    "titrate-ü",
    3,
    score=0.5,
    state={"submitted_answer": {"pH": 7.25}, "tool_calls": [{"tool": "titrate", "success": True}]},
    tool_statistics={"titrate": {"calls": 2, "errors": 1}},
    duration=12.5,
    token_usage={"input": 10, "details": {"cached": 4}},
    messages=[{"role": "user", "content": "line\nbreak \u2028 😀"}],
    agent_status="success",
    attempts=(
        Attempt(1, FailureKind.WORKER_DIED, "was killed", "tool titrate", WorkerRef(2, 41, 43, "n1"), -9, 1 << 30, 0.5),
        Attempt(2, worker=WorkerRef(1, 44), traceback="Traceback ...", output="bye"),
    ),
    worker=WorkerRef(1, 44),
    timings=Timings(0.1, 0.2, 0.3, 0.4),
    warnings=("close raised",),
)


def strictly(line: bytes) -> Any:
    """Parse one line as the strictest reader would."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line.decode("utf-8", "strict"), parse_constant=refuse)


@pytest.mark.parametrize(
    "result",
    [
        FULL,
        TaskTrialResult("t", 0),
        TaskTrialResult.not_graded(TrialKey("t", 1), FailureKind.NOT_RUN, "upstream failed"),
        *(TaskTrialResult.not_graded(TrialKey("t", 1), kind, "why") for kind in FailureKind),
    ],
)
def test_a_result_survives_the_round_trip(result: TaskTrialResult) -> None:
    again = from_record(strictly(encode(to_record(result))))
    assert again == result
    assert type(again.failure) is type(result.failure)
    assert recorded(result)[1] == result


def test_a_line_holds_what_its_readers_get() -> None:
    line, again = recorded(FULL)
    assert line.key == FULL.key == again.key
    assert again == FULL
    assert strictly(line.data) == {"type": "trial"} | strictly(encode(to_record(FULL)))
    replacing, _ = recorded(FULL, replaces=True)
    assert strictly(replacing.data) == strictly(line.data) | {"replaces": True}


def test_names_that_would_become_one_are_kept_apart() -> None:
    line, again = recorded(TaskTrialResult("t", 0, messages=[{1: "number", "1": "text"}]))
    assert again.messages == [{"1": "number", "1 (str)": "text"}]
    assert line.data.count(b'"1":') == 1


def test_records_share_what_is_alike_in_them() -> None:
    first, second = (recorded(replace(FULL, trial_index=index, state={"answer": index}))[1] for index in (1, 2))
    assert first.worker is second.worker is second.attempts[-1].worker
    assert next(iter(first.state)) is next(iter(second.state))


def test_names_of_a_later_version_are_passed_over() -> None:
    record = strictly(encode(to_record(FULL)))
    record["invented"] = record["worker"]["invented"] = record["attempts"][0]["invented"] = 1
    record["timings"]["invented"] = 1
    assert from_record(record) == FULL


@pytest.mark.parametrize(
    "change",
    [{"score": None}, {"score": "high"}, {"failure": "bad luck"}, {"attempts": 3}, {"worker": 3}, {"timings": None}],
)
def test_a_record_of_the_wrong_shape_names_its_trial(change: dict[str, Any]) -> None:
    with pytest.raises(JournalError, match="record of titrate-ü#3 cannot be understood"):
        from_record(to_record(FULL) | change)
    with pytest.raises(JournalError, match="record of None#None"):
        from_record({})


def test_a_score_is_a_finite_number() -> None:
    with pytest.raises(ProtocolError, match="t#0"):
        to_record(TaskTrialResult("t", 0, score=float("nan")))


class Colour(Enum):
    RED = "red"


class Name(str):
    __slots__ = ()


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        ([float("inf"), {"x": -float("inf")}], [None, {"x": None}]),
        ({float("nan"): 1.5}, {"null": 1.5}),
        ((1, (2, 3)), [1, [2, 3]]),
        ({7}, [7]),
        (b"raw", "raw"),
        (Colour.RED, "red"),
        (Name("Ann"), "Ann"),
        (numpy.float64(0.5), 0.5),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (numpy.array([[1.0, float("nan")]]), [[1.0, None]]),
        ({("a", 1): True}, {'["a", 1]': True}),
        (Hostile(), "<Hostile: RuntimeError: no text>"),
        pytest.param(1 << 40_000, hex(1 << 40_000), id="long integer"),
    ],
)
def test_odd_values_become_json(value: Any, expected: Any) -> None:
    assert strictly(encode({"state": value})) == {"state": expected}
    assert plain(plain(value)) == plain(value)


@pytest.mark.parametrize("value", [CYCLE, nested(MAX_DEPTH * 1000)], ids=["cycle", "deep"])
def test_endless_values_are_cut(value: Any) -> None:
    line = encode({"state": value, "score": 1.0})
    assert strictly(line)["score"] == 1.0
    assert len(line) < 2000


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb\udc00c", "\ud83dx", "mixed ü \ud800 😀 \x00 \x7f"])
def test_lone_surrogates_are_escaped_and_come_back(text: str) -> None:
    line = encode({"answer": text, text: 1})
    line.decode("utf-8", "strict")
    assert strictly(line) == {"answer": text, text: 1}
    assert decode(line) == {"answer": text, text: 1}


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b"3", b'{"a": NaN}', b'{"a": "\xff"}', b'{"a": 1} x', b"[" * 99_999]
)
def test_what_is_no_strict_object_is_none(line: bytes) -> None:
    assert decode(line) is None
