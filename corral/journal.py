"""The session's journal: one append-only file of JSON lines, ``<checkpoint_dir>/<session_id>/journal.jsonl``.

The first line is the header: what the session was started with. Each further line is the final record of one trial,
or what a run told when it had ended: the latest of these, with the trials, makes the session's report.
The journal is the truth: what it does not hold has not happened, and a resumed session runs just that.

Guarantees
    - **Durable.** When ``append`` returns, its records are on the disk. It costs one write and one fsync, whatever the
      size of the session; reading is linear and streams.
    - **Exactly one final record per trial.** A second one is refused, unless it says that it replaces the first,
      as when errors are retried; then the latest counts.
    - **Killed at any instant, readable after.** Only the last line can be torn: it is cut off, or completed where just
      its newline is missing. Damage anywhere else is an error that names the line, and the file is left as it is.
    - **One writer.** A lock beside the file; a second run is told who holds it.
    - **Strict JSON in valid UTF-8**, whatever a model or a tool gave (see ``records``).

Assumptions: the file system keeps the order of appended bytes, and honours fsync and flock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Self

from filelock import FileLock, Timeout

from corral.errors import ConfigError, JournalError
from corral.header import Header
from corral.record_shapes import RUN, misfit, misfit_of_header, misfit_of_trial
from corral.records import Line, Record, decode, encode, known_fields
from corral.types import MAX_TRIALS, TrialKey

SCHEMA = 1
FILE_NAME = "journal.jsonl"
LOCK_NAME = "journal.lock"
HOLDER_NAME = "journal.holder"


class Journal:
    """A session's journal, locked and open for appending. Made by ``create`` or ``open_existing``."""

    def __init__(self, directory: Path, lock: _Lock) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self._lock = lock
        self._descriptor = -1
        self._size = 0
        self._failure: str | None = None

    @staticmethod
    def exists(directory: str | os.PathLike[str]) -> bool:
        """Whether ``directory`` holds a session that began: an empty file or a torn header is none."""
        path = Path(directory) / FILE_NAME
        try:
            with path.open("rb") as file:
                line = file.readline()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise JournalError(f"cannot read {path}: {error.strerror}") from error
        return line.endswith(b"\n") or decode(line) is not None

    @classmethod
    def create(cls, directory: str | os.PathLike[str], header: Header) -> Self:
        """Begin a session. A directory that already holds one is refused with ConfigError and left as it is."""
        folder = Path(directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"cannot write {folder}: {error.strerror}") from error
        journal = cls(folder, _Lock(folder))
        try:
            if cls.exists(folder):
                raise ConfigError(
                    f"session {header.session!r} already has results in {journal.path}: resume it, or start a new "
                    "session under another id"
                )
            journal._open(0)
            journal._write(encode({"type": "header", "schema": SCHEMA, **asdict(header)}))
            _sync_directory(folder)
            _sync_directory(folder.parent)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def open_existing(
        cls, directory: str | os.PathLike[str], keep: Keep | None = None
    ) -> tuple[Self, Header, list[Any]]:
        """Go on with a session: its header, and the final record of each trial, in the order they were written.

        ``keep`` says what of each record is wanted, given the record and its place; all of it when None.

        The tail is repaired; any other damage raises JournalError and leaves the file as it is.
        """
        folder = Path(directory)
        if not cls.exists(folder):
            raise JournalError(f"no session ever began in {folder}")
        journal = cls(folder, _Lock(folder))
        try:
            reading = Reading(journal.path, keep or _whole)
            journal._open(reading.good)
            if reading.lacks_newline:
                journal._write(b"\n")
        except BaseException:
            journal.close()
            raise
        return journal, reading.header, list(reading.records.values())

    def append(self, lines: Sequence[Line]) -> list[Place]:
        """Write records, all in one go, and return where they are once they are on the disk.

        If that fails, what was written of them is cut off again, and nothing more is accepted: the run must stop.
        """
        sizes = [len(line.data) for line in lines]
        starts = accumulate(sizes, initial=self._size)
        self._write(b"".join(line.data for line in lines))
        return [Place(start, size) for start, size in zip(starts, sizes, strict=False)]

    def append_run(self, run: Mapping[str, Any]) -> None:
        """Write down how a run ended, on the disk when this returns. See ``append``."""
        self._write(encode({"type": "run", **run}))

    def close(self) -> None:
        """Close the file and let others have the session. May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.release()

    def _open(self, size: int) -> None:
        """Open the file for appending and cut it to its ``size`` good bytes."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            self._descriptor = os.open(self.path, flags, 0o666)
            if os.fstat(self._descriptor).st_size != size:
                os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise JournalError(f"cannot write {self.path}: {error.strerror}") from error
        self._size = size

    def _write(self, data: bytes) -> None:
        if self._failure is not None:
            raise JournalError(self._failure)
        if self._descriptor < 0:
            raise JournalError(f"cannot write {self.path}: it is closed")
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except OSError as error:
            self._failure = f"cannot write {self.path}: {error.strerror}. The results up to here are safe"
            # Where not even that works, the next opening finds a torn tail.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
                os.fsync(self._descriptor)
            raise JournalError(self._failure) from error
        self._size += len(data)


def _sync_directory(directory: Path) -> None:
    """Make a new file's name durable. Where directories cannot be opened (Windows) there is nothing to do."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


LOOK_PATIENCE = 0.2
"""Seconds for those who only look whether somebody has the lock: they have it for a moment."""


class _Lock:
    """The right to write in a session's directory, with a note beside it that says who has it."""

    def __init__(self, directory: Path) -> None:
        self._holder = directory / HOLDER_NAME
        # Written from worker threads as well: the lock is the run's, not the thread's.
        self._lock = FileLock(directory / LOCK_NAME, thread_local=False)
        try:
            self._lock.acquire(timeout=LOOK_PATIENCE)
        except Timeout:
            raise JournalError(f"the session in {directory} is in use by {self._who()}") from None
        except OSError as error:
            raise JournalError(f"cannot lock {directory}: {error.strerror}") from error
        # The note only serves the other's message: a full disk must not stop the run here.
        with suppress(OSError):
            self._holder.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), "utf-8")

    def _who(self) -> str:
        """Who has it, and what to do."""
        otherwise = "or start a session under another id"
        try:
            note = json.loads(self._holder.read_text("utf-8"))
            pid, host = note["pid"], note["host"]
        except (OSError, ValueError, LookupError, TypeError):
            return f"another run, which has left no note of who it is: wait for that run or stop it, {otherwise}"
        if (pid, host) == (os.getpid(), socket.gethostname()):
            return (
                f"a run of this very process (pid {pid}) that has not ended: it runs beside this one, or was "
                "interrupted while it was awaited, and goes on whenever the event loop does; await it or cancel it, "
                f"{otherwise}"
            )
        return f"another run (pid {pid} on host {host}): wait for that run or stop it, {otherwise}"

    def release(self) -> None:
        if self._lock.is_locked:
            with suppress(OSError):
                self._holder.unlink(missing_ok=True)
            self._lock.release()


def is_running(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has the session in ``directory`` now. False where that cannot be told."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        with open(Path(directory) / LOCK_NAME, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# --- Reading ---


class Place(NamedTuple):
    """Where a line of the journal stands: its first byte, and its length."""

    offset: int
    length: int


Keep = Callable[[Record, Place], Any]
"""What is kept of a trial's record."""


def read_journal(directory: str | os.PathLike[str], keep: Keep) -> Reading:
    """Read a session without taking its lock or changing it, also while it runs; of each record what ``keep`` gives.

    Raises JournalError where there is no session, or a damaged one.
    """
    if not Journal.exists(directory):
        raise JournalError(f"no session ever began in {Path(directory)}")
    return Reading(Path(directory) / FILE_NAME, keep)


def _whole(record: Record, place: Place) -> Record:
    return record


class Reading:
    """One pass over a journal. ``good`` bytes of it are kept."""

    def __init__(self, path: Path, keep: Keep = _whole) -> None:
        self.path = path
        self.records: dict[TrialKey, Any] = {}
        """By trial, what was kept of its latest record, in the order they were written."""
        self.run: Record | None = None
        """What the latest run told when it had ended; None where none ever ended."""
        self.good = 0
        self._keep = keep
        self._tasks: frozenset[str] = frozenset()
        self.lacks_newline = False
        header = None
        blank: int | None = None
        for number, line in _lines(path):
            if not line.strip():
                blank = blank or number
                continue
            parsed = decode(line)
            if not line.endswith(b"\n"):
                if parsed is None:
                    break  # a torn tail
                self.lacks_newline = True
            if blank:
                self._refuse(blank, "it is blank")
            if parsed is None:
                self._refuse(number, "it is no JSON object in UTF-8")
            if header is None:
                header = self._header(number, parsed)
            else:
                self._add(number, parsed, len(line))
            self.good += len(line)
        if header is None:
            self._refuse(1, "it is no header")
        self.header = header

    def _refuse(self, number: int, reason: str) -> NoReturn:
        raise JournalError(f"{self.path}, line {number} cannot be used: {reason}. The file was left as it is")

    def _header(self, number: int, line: Record) -> Header:
        if line.get("type") != "header" or not isinstance(line.get("schema"), int):
            self._refuse(number, "it is no header")
        if line["schema"] != SCHEMA:
            self._refuse(number, f"its schema is {line['schema']}, and this Corral reads {SCHEMA}")
        try:
            header = Header(**known_fields(Header, line))
        except TypeError as error:
            self._refuse(number, f"its header is not complete ({error})")
        if reason := misfit_of_header(line):
            self._refuse(number, reason)
        self._tasks = frozenset(map(str, header.plan.get("task_ids", ())))
        return header

    def _add(self, number: int, line: Record, length: int) -> None:
        if line.get("type") == "run":
            if reason := misfit(line, RUN):
                self._refuse(number, reason)
            self.run = {name: value for name, value in line.items() if name != "type"}
            return
        task_id, index = line.get("task_id"), line.get("trial_index")
        if line.pop("type", None) != "trial" or not isinstance(task_id, str) or not isinstance(index, int):
            self._refuse(number, "it is no record of a trial")
        if reason := misfit_of_trial(line):
            self._refuse(number, reason)
        if not 0 <= index < MAX_TRIALS or isinstance(index, bool) or (self._tasks and task_id not in self._tasks):
            self._refuse(number, f"the session has no trial {task_id}#{index}")
        key = TrialKey(task_id, index)
        place = Place(self.good, length)
        if not line.pop("replaces", False) and key in self.records:
            self._refuse(number, f"it is a second final record of {key}")
        self.records.pop(key, None)
        try:
            self.records[key] = self._keep(line, place)
        except JournalError as error:
            self._refuse(number, str(error))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file: BinaryIO
        with path.open("rb") as file:
            yield from enumerate(file, 1)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
