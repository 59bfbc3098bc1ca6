"""WORKER SIDE. What a trial printed: that part of its slot's log that is its own.

Guarantees
    * The text holds only what was written while the trial was open. Where a process has several open at once, it
      holds only what was written since another of them was last called.
    * Python's and C's buffers are emptied at both ends, so that no line is counted for the next trial.
    * At most OUTPUT_TAIL bytes: the end of what was printed.
Assumptions
    The log is appended to by one trial process at a time and by what that started. What a job of one trial prints in
    the background while another trial is called counts as that one's.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from functools import cache

from corral.pool.logs import as_text, tail

OUTPUT_TAIL = 16_384
"""Bytes of a trial's output that its record keeps: the end."""


class Printed:
    """Where the output of each open trial of this process begins in the log."""

    def __init__(self, log_path: str | None = None) -> None:
        """``log_path``: where its output goes; found out by itself, before any trial can send it elsewhere."""
        self._log_path = _file_of_output() if log_path is None else log_path
        self._starts: dict[str, int] = {}

    def begin(self, runtime_id: str) -> int:
        """A trial is opened; where the log ends now."""
        self._starts[runtime_id] = self.position()
        return self._starts[runtime_id]

    def called(self, runtime_id: str) -> None:
        """A call of that trial has ended: what it printed is none of the others'."""
        if len(self._starts) > 1:
            now = self.position()
            self._starts.update((other, now) for other in self._starts if other != runtime_id)

    def end(self, runtime_id: str) -> str:
        """The trial is over: the end of what it printed."""
        end = self.position()
        start = self._starts.pop(runtime_id, end)
        return as_text(tail(self._log_path, start, OUTPUT_TAIL)[0])

    def position(self) -> int:
        """Where the log ends, all buffers emptied."""
        flush()
        try:
            return os.stat(self._log_path).st_size
        except OSError:
            return 0


def _file_of_output() -> str:
    """The file on descriptor 1; empty if there is none, or the system does not tell."""
    try:
        if sys.platform == "darwin":
            import fcntl

            return os.fsdecode(fcntl.fcntl(1, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
        return os.readlink("/proc/self/fd/1")
    except OSError:
        return ""


def flush() -> None:
    """Empty the buffers of Python's streams and of C's output. What user code put in their place is its own."""
    for stream in (sys.stdout, sys.stderr):
        if type(stream) is io.TextIOWrapper:
            with contextlib.suppress(OSError, ValueError):  # its descriptor was closed, or it was
                stream.flush()
    if (out := _c_stdout()) is not None:
        _libc().fflush(out)


def buffer_c_by_lines() -> None:
    """Let C's standard output write line by line, as Python's does: a crash must not take with it what was printed."""
    if (out := _c_stdout()) is not None:
        _libc().setvbuf(out, None, _LINES, 0)


_LINES = 1
"""_IOLBF of every libc that is known."""


@cache
def _libc() -> ctypes.CDLL:
    """Opened once: forks share it."""
    return ctypes.CDLL(None)


def _c_stdout() -> ctypes.c_void_p | None:
    name = "__stdoutp" if sys.platform == "darwin" else "stdout"
    try:
        return ctypes.c_void_p.in_dll(_libc(), name)
    except (ValueError, OSError, TypeError):
        return None
