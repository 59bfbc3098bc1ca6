"""A recorded session as a result, from its journal alone: the report it gives is the one that its run wrote.

Guarantees
    - Nothing is locked and nothing changed: a session can be looked at while it runs, or after it was killed.
    - Transcripts, states and outputs stay on the disk until a trial is asked for whole.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from corral.errors import ConfigError, JournalError
from corral.journal import FILE_NAME, Place, Reading, is_running, read_journal
from corral.records import Record, from_record
from corral.report.result import BenchmarkResult
from corral.report.shelf import Shelf, light
from corral.types import TaskTrialResult, TrialKey


def open_session(path: str | os.PathLike[str], *, checkpoint_dir: str | os.PathLike[str] = ".") -> BenchmarkResult:
    """The result of the session at ``path``: its folder, its journal, or its id under ``checkpoint_dir``.

    Raises ConfigError where there is none, JournalError for a damaged one.
    """
    folder = find_session(path, checkpoint_dir)
    with without_collector():
        return _result(read_journal(folder, _kept))


@contextmanager
def without_collector() -> Iterator[None]:
    """Nothing here has cycles, and looking for them among all that is kept takes longer than the reading itself."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def find_session(path: str | os.PathLike[str], checkpoint_dir: str | os.PathLike[str] = ".") -> Path:
    """The folder of a session."""
    tried = [Path(path), Path(checkpoint_dir) / path]
    for place in tried:
        folder = place.parent if place.is_file() and place.name in (FILE_NAME, "report.json") else place
        if (folder / FILE_NAME).is_file():
            return folder
    places = " or in ".join(dict.fromkeys(map(str, tried)))
    raise ConfigError(f"no session there: there is no {FILE_NAME} in {places}")


def _kept(record: Record, place: Place) -> tuple[TaskTrialResult, Place]:
    return from_record(light(record)), place


def _result(reading: Reading) -> BenchmarkResult:
    kept: dict[TrialKey, tuple[TaskTrialResult, Place]] = reading.records
    plan, run = reading.header.plan, reading.run or {}
    task_ids = run.get("task_ids") or plan.get("task_ids") or []
    most = max((key.trial_index + 1 for key in kept), default=0)

    shelf = Shelf(reading.path, {key: place for key, (_, place) in kept.items()})
    return BenchmarkResult.collect(
        reading.header.session,
        _with_all(task_ids, kept),
        [trial for trial, _ in kept.values()],
        trials_per_task=max(most, run.get("trials_per_task") or plan.get("trials_per_task") or 1),
        k_values=run.get("k_values") or (1,),
        run_name=run.get("run_name"),
        model=run.get("model", reading.header.fingerprint.get("model")),
        seed=plan.get("seed"),
        pool=run.get("pool"),
        wall_seconds=run.get("wall_s"),
        settings=run.get("settings") or {},
        journal=Path(run.get("journal") or reading.path),
        metrics=[_Known(name, value) for name, value in (run.get("metrics") or {}).items()],
        created=_time(run.get("created") or reading.header.created, reading.path),
        running=is_running(reading.path.parent),
        whole=shelf.whole,
    )


def _time(text: str, path: Path) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise JournalError(f"{path} cannot be used: {text!r} is no time") from None


def _with_all(task_ids: Iterable[str], kept: Iterable[TrialKey]) -> list[str]:
    """The planned tasks, and behind them what else has a record."""
    return list(dict.fromkeys([*task_ids, *(key.task_id for key in kept)]))


class _Known:
    """A metric whose value the run has recorded."""

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self._value = value

    def compute(self, result: Any) -> Any:
        """That value."""
        return self._value
