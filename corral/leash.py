"""A leash on a process that is to end with this one: its standard input, which is then at its end.

Guarantees
    The input ends when the leash is let go, or with this process, however that ends: what this process forks in the
    meantime, as ``multiprocessing`` and ``ProcessPoolExecutor`` do, lets go of its copy, and may live on.
Assumptions
    A fork that runs no Python (a C library's) keeps its copy.
"""

from __future__ import annotations

import os
from typing import Self

_held: set[Leash] = set()


class Leash:
    """A context manager: let go at its end. Give ``end`` to the process as its standard input, then call ``given``."""

    def __init__(self) -> None:
        end, ours = os.pipe()
        self._end, self._ours = os.fdopen(end, "rb", 0), os.fdopen(ours, "wb", 0)

    def __enter__(self) -> Self:
        _held.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _held.discard(self)
        self.given()
        self.let_go()

    @property
    def end(self) -> int:
        """The descriptor of the process's end."""
        return self._end.fileno()

    def given(self) -> None:
        """The process has its end: it is not needed here."""
        self._end.close()

    def write(self, data: bytes) -> None:
        """Write what the process is to read first: less than a pipe takes. OSError if it is gone."""
        self._ours.write(data)

    def let_go(self) -> None:
        """End the process's input."""
        self._ours.close()


def _let_go_in_fork() -> None:
    for leash in list(_held):
        leash.let_go()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_fork)
