"""BOTH SIDES. Reading the log of a slot: what its worker and its trial processes printed, from Python and from C."""

from __future__ import annotations

import os


def tail(path: str, start: int, limit: int) -> tuple[bytes, int]:
    """The last ``limit`` bytes that were written to ``path`` from the position ``start`` on, and where it ends."""
    try:
        log = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError:
        return b"", 0
    try:
        end = os.lseek(log, 0, os.SEEK_END)
        begin = max(start, end - limit)
        if begin >= end:
            return b"", end
        os.lseek(log, begin, os.SEEK_SET)
        return os.read(log, end - begin), end
    except OSError:
        return b"", 0
    finally:
        os.close(log)


def as_text(output: bytes) -> str:
    """Output as text; bytes that are none are escaped."""
    return output.decode("utf-8", "backslashreplace")
