"""Trial results as lines of strict JSON, and back. Pure: no files, no clock.

Whatever an environment or a model gave, its record can be written and is valid UTF-8: NaN and infinities become null,
lone surrogates are escaped, and what is no JSON at all becomes text. One odd value never costs a result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, lru_cache
from sys import intern
from typing import Any, NamedTuple, NoReturn

from corral.errors import FailureKind, JournalError, ProtocolError
from corral.plain import plain
from corral.record_shapes import fitted
from corral.types import Attempt, TaskTrialResult, Timings, TrialKey, WorkerRef

Record = dict[str, Any]
"""A JSON object."""


def to_record(result: TaskTrialResult) -> Record:
    """The final record of a trial as plain data. What the environment and the agent gave is not copied."""
    if not math.isfinite(result.score):
        raise ProtocolError(f"the score of {result.key} is {result.score}: it should have been refused as no score")
    return as_data(result) | {"score": float(result.score), "warnings": list(result.warnings)}


def as_data(result: TaskTrialResult) -> Record:
    """Every field of a result by its name. What the environment and the agent gave is not copied."""
    record = _shallow(result)
    record["attempts"] = [_shallow(attempt) | {"worker": _where(attempt.worker)} for attempt in result.attempts]
    record["worker"] = _where(result.worker)
    record["timings"] = _shallow(result.timings)
    return record


def _where(worker: WorkerRef | None) -> Record | None:
    return None if worker is None else _shallow(worker)


def _shallow(value: Any) -> Record:
    # dataclasses.asdict copies all that is below, at ten times the cost.
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def from_record(record: Mapping[str, Any]) -> TaskTrialResult:
    """The result that ``to_record`` made ``record`` of. Names that this version does not know are passed over."""
    try:
        record = fitted(record)
        values = known_fields(TaskTrialResult, record)
        values["score"] = float(record["score"])
        values["attempts"] = tuple(_attempt(attempt) for attempt in record.get("attempts", ()))
        values["worker"] = _worker(record.get("worker"))
        values["timings"] = Timings(**known_fields(Timings, record.get("timings", {})))
        values["failure"] = _failure(record.get("failure"))
        values["warnings"] = tuple(record.get("warnings", ()))
        return TaskTrialResult(**values)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        key = f"{record.get('task_id')}#{record.get('trial_index')}"
        raise JournalError(f"the record of {key} cannot be understood ({type(error).__name__}: {error})") from error


class Line(NamedTuple):
    """A trial's final record as a line of the journal."""

    key: TrialKey
    data: bytes


def line_of(record: Record) -> Line:
    """The line for ``record``."""
    return Line(TrialKey(record["task_id"], record["trial_index"]), encode({"type": "trial", **record}))


def recorded(result: TaskTrialResult, *, replaces: bool = False) -> tuple[Line, TaskTrialResult]:
    """The line for ``result``, and the result as it is read from there: so a report does not depend on whether the run
    was resumed. ``replaces``: it takes the place of an earlier record.
    """
    record = to_record(result) | ({"replaces": True} if replaces else {})
    line = line_of(record)
    try:
        again = _KEPT.decode(line.data[:-1].decode("utf-8"))
    except _Repeated:
        line = line_of(plain(record))
        again = _KEPT.decode(line.data[:-1].decode("utf-8"))
    if (fit := fitted(again)) is not again:
        line = line_of({name: value for name, value in fit.items() if name != "type"})
    return line, from_record(fit)


class _Repeated(ValueError):
    """Two names of an object became one, such as 1 and "1"."""


def _kept(pairs: list[tuple[str, Any]]) -> Record:
    """An object that stays in memory with many of its kind: they share their names, else half of what they hold."""
    record = {intern(name): value for name, value in pairs}
    if len(record) != len(pairs):
        raise _Repeated
    return record


_KEPT = json.JSONDecoder(object_pairs_hook=_kept)


def known_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that the dataclass ``kind`` has."""
    return {name: values[name] for name in _names(kind) if name in values}


def _attempt(values: Mapping[str, Any]) -> Attempt:
    known = known_fields(Attempt, values)
    return Attempt(**known | {"failure": _failure(values.get("failure")), "worker": _worker(values.get("worker"))})


def _worker(values: Mapping[str, Any] | None) -> WorkerRef | None:
    return None if values is None else _worker_ref(*known_fields(WorkerRef, values).items())


@lru_cache(maxsize=256, typed=True)
def _worker_ref(*items: tuple[str, Any]) -> WorkerRef:
    """A trial and its last attempt share one, and so do all trials of a process."""
    return WorkerRef(**dict(items))


def _failure(value: str | None) -> FailureKind | None:
    return None if value is None else FailureKind(value)


def encode(record: Mapping[str, Any]) -> bytes:
    """``record`` as one line of strict JSON, its newline included."""
    try:
        text = _dumps(record)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: too deep, or a left-over thread still changes it
        text = _dumps(plain(record))
    # Only lone surrogates cannot be encoded, and the escape for them is JSON's own.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def reread(value: object) -> Any:
    """``value`` as a reader of its record gets it: what ``plain`` gives, some times faster where it is data already."""
    return json.loads(encode({"value": value}))["value"]


def decode(line: bytes) -> Record | None:
    """The JSON object in ``line``; None if it is none, or not strict."""
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
