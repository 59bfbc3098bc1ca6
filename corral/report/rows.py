"""A session as a table, one row per trial: for data frames, Parquet and JSON lines.

pandas, polars and pyarrow are extras; each is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corral.errors import ConfigError
from corral.plain import plain
from corral.records import encode
from corral.report import files
from corral.report.figures import flat_numbers, peak_memory, phases
from corral.types import TaskTrialResult

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

EXTRAS = {"pyarrow": "parquet"}
"""The extra that brings a package, where it is not called like it."""

COLUMNS: dict[str, type] = {
    "session": str, "run_name": str, "model": str, "task_id": str, "trial_index": int, "score": float, "success": bool,
    "graded": bool, "failure": str, "error_message": str, "surrendered": bool, "agent_status": str, "answer": str,
    "attempts": int, "started_at": float, "duration": float, "queued": float, "configured": float, "agent": float,
    "tools": float, "scored": float, "tool_calls": int, "tool_errors": int, "peak_rss": int, "slot": int,
}  # fmt: skip
"""The columns of every table and their types, all nullable; times in seconds, ``started_at`` since 1970 UTC, memory in
bytes. Behind them come ``tokens.NAME`` columns, one for each number in the trials' token usage."""


def rows(result: BenchmarkResult) -> Iterator[dict[str, Any]]:
    """A row for each record, in the order of the plan; ``answer`` is text, JSON where it was not text before."""
    for trial in result.whole_trials:
        yield _row(result, trial)


def _row(result: BenchmarkResult, trial: TaskTrialResult) -> dict[str, Any]:
    counts = list(trial.tool_statistics.values())
    first = next((attempt.started_at for attempt in trial.attempts), None)
    row = {
        "session": result.session_id, "run_name": result.run_name, "model": result.model,
        "task_id": trial.task_id, "trial_index": trial.trial_index,
        "score": trial.score, "success": trial.success, "graded": trial.graded, "failure": trial.failure,
        "error_message": trial.error_message, "surrendered": trial.surrendered, "agent_status": trial.agent_status,
        "answer": _text(trial.state.get("submitted_answer")), "attempts": len(trial.attempts), "started_at": first,
        "duration": trial.duration, **phases(trial),
        "tool_calls": sum(count.get("calls", 0) for count in counts),
        "tool_errors": sum(count.get("errors", 0) for count in counts),
        "peak_rss": peak_memory(trial), "slot": None if trial.worker is None else trial.worker.slot,
    }  # fmt: skip
    tokens = {f"tokens.{name}": number for name, number in flat_numbers(trial.token_usage).items()}
    return plain(row | tokens)  # type: ignore[no-any-return]


def _text(answer: object) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    return files.dump(answer, indent=None)


def write_lines(result: BenchmarkResult, path: str | os.PathLike[str]) -> Path:
    """Write the rows as JSON lines, one by one."""
    return files.write_chunks(path, map(encode, rows(result)))


def to_frame(result: BenchmarkResult, library: Literal["pandas", "polars"] | None = None) -> Any:
    """The rows as a data frame of pandas, or of polars; of the first that is installed when ``library`` is None.

    ConfigError says what to install where there is none.
    """
    if library not in (None, "pandas", "polars"):
        raise ConfigError(f'library must be "pandas" or "polars", not {library!r}')
    module = _first_of([library] if library else ["pandas", "polars"])
    columns = _columns(result)
    make = _pandas if module.__name__ == "pandas" else _polars
    return make(module, columns)


def write_parquet(result: BenchmarkResult, path: str | os.PathLike[str]) -> Path:
    """Write the rows as a Parquet file, in one step. Needs pyarrow."""
    arrow, parquet = parquet_writer()
    kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    arrays = {name: arrow.array(values, kinds[kind]) for name, (kind, values) in _columns(result).items()}
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(arrays), sink)
    return files.write_chunks(path, [sink.getvalue().to_pybytes()])


def parquet_writer() -> tuple[Any, Any]:
    """pyarrow and its Parquet module; ConfigError says what to install where they are missing."""
    return _first_of(["pyarrow"]), importlib.import_module("pyarrow.parquet")


def _columns(result: BenchmarkResult) -> dict[str, tuple[type, list[Any]]]:
    """Each column's type and values, None where a row has none. Text is made such that UTF-8 can hold it."""
    table = list(rows(result))
    kinds = dict(COLUMNS)
    for row in table:
        for name in row.keys() - kinds.keys():
            kinds[name] = float
    kinds = {**COLUMNS, **dict.fromkeys(sorted(kinds.keys() - COLUMNS.keys()), float)}
    return {name: (kind, [_cell(row.get(name), kind) for row in table]) for name, kind in kinds.items()}


def _cell(value: Any, kind: type) -> Any:
    if value is None:
        return None
    return value.encode("utf-8", "backslashreplace").decode() if kind is str else kind(value)


def _pandas(pandas: Any, columns: dict[str, tuple[type, list[Any]]]) -> Any:
    names: dict[type, str] = {str: "string", int: "Int64", float: "float64", bool: "boolean"}
    return pandas.DataFrame({name: pandas.array(values, dtype=names[kind]) for name, (kind, values) in columns.items()})


def _polars(polars: Any, columns: dict[str, tuple[type, list[Any]]]) -> Any:
    kinds = {str: polars.String, int: polars.Int64, float: polars.Float64, bool: polars.Boolean}
    return polars.DataFrame(
        {name: values for name, (_, values) in columns.items()},
        schema={name: kinds[kind] for name, (kind, _) in columns.items()},
    )


def _first_of(names: Iterable[str]) -> Any:
    wanted = list(names)
    for name in wanted:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError(f"this needs {' or '.join(wanted)}: pip install 'corral[{EXTRAS.get(wanted[0], wanted[0])}]'")


Writer = Callable[["BenchmarkResult", str | os.PathLike[str]], Path]
"""Writes a result to a path and returns it."""
