"""NODE SIDE. The disk that the logs of slots take: looked at once a second, and what is old in them given back.

Purpose
    Of a log for the run only, nobody reads more than its end. A solver that prints without end, or a process that
    serves trial after trial, would fill the disk on which other trials work and the session is recorded.
Guarantees
    * A log that takes more than MOST bytes keeps its last KEPT ones. The others read as zeros and take no place, so
      every position in it stays what it was, for whoever writes and for whoever reads.
Assumptions
    A file system that can have holes, as those of Linux can; elsewhere a log holds all that was printed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio

from corral.threads import call_blocking

INTERVAL = 1.0
"""Seconds between two looks."""
MOST = 16 * 2**20
"""Bytes on the disk that one log may take between two looks."""
KEPT = 2**20
"""Bytes of its end that stay: more than any record keeps."""

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
"""FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE."""


async def watch_logs(logs: Callable[[], Iterable[Path]]) -> None:
    """Until cancelled. ``logs``: those that there are."""
    while True:
        await anyio.sleep(INTERVAL)
        await call_blocking(_shorten_all, logs)


def _shorten_all(logs: Callable[[], Iterable[Path]]) -> None:
    with contextlib.suppress(OSError):  # the folder is gone
        for log in logs():
            shorten(log)


def shorten(log: Path) -> None:
    """Give back what the beginning of a log takes, if the whole takes too much."""
    with contextlib.suppress(OSError, AttributeError):  # it is gone, or can have no holes, by the system or by its libc
        found = log.stat()
        if found.st_blocks * 512 > MOST:
            _punch(log, found.st_size - KEPT)


def _punch(log: Path, end: int) -> None:
    if sys.platform != "linux" or end <= 0:
        return
    descriptor = os.open(log, os.O_WRONLY)
    try:
        where = ctypes.c_int64(0), ctypes.c_int64(end)
        if ctypes.CDLL(None, use_errno=True).fallocate64(descriptor, _KEEP_SIZE | _PUNCH_HOLE, *where) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")
    finally:
        os.close(descriptor)
