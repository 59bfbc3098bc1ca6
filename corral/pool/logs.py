"""BOTH SIDES. Reading the log of a slot: what its worker and its trial processes printed, from Python and from C."""

from __future__ import annotations

import os


def tail(path: str, start: int, limit: int) -> tuple[bytes, int]:
    """The last ``limit`` bytes that were written to ``path`` from the position ``start`` on, and where it ends."""
    try:
        with open(path, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start, end - limit))
            return log.read(limit)[: max(0, end - start)], end
    except OSError:
        return b"", 0


def as_text(output: bytes) -> str:
    """Output as text; bytes that are none are escaped."""
    return output.decode("utf-8", "backslashreplace")
