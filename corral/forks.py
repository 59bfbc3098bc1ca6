"""A fork that user code made, and that comes back: it is no trial, so it ends where its code would have ended.

``os.fork()`` in a tool gives two processes that both return from it. The child would go on as a second copy of whoever
called the tool: answer the same requests on the same connection, or run the rest of a benchmark. In a script of its own
it would run to the end of the script and exit; so here it exits.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType


class OnlyHere:
    """``with`` this around user code: it goes on in the process in which it began, and in no other."""

    __slots__ = ("_pid",)

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            _end(error)


def _end(error: BaseException | None) -> None:
    """With the status that Python gives a script that ends so."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)
