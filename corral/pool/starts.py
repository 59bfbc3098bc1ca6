"""SUPERVISOR SIDE. How a worker's start can fail, apart from an error of the builder's own, and what is said of it.

Each error's ``output`` holds what was printed; its sentence, which may end on a terminal, only the last lines of that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Self, TypeVar

import anyio
from anyio import BrokenWorkerProcess

from corral.errors import EnvStartError, ErrorRecord, describe_exit
from corral.lean import dataclass

ENDED = (BrokenWorkerProcess, anyio.EndOfStream, anyio.IncompleteRead, ProcessLookupError, ConnectionError)
"""What anyio raises when a new interpreter ends while it is spoken to."""

E = TypeVar("E", bound=EnvStartError)

MAX_STARTS = 3
"""Workers of one slot that may fail in a row before it is given up."""
LOST_PATIENCE = 60.0
"""Seconds for which the workers of one slot may be lost in a row, once the builder is known to work: something else,
such as a machine out of memory, kills them, and it may pass."""
LOST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before the next start after lost ones: the first, times how many they were, and no more than the second."""
STEADY = 10.0
"""Seconds that a worker has to live, if no trial comes to it, to count as one that works."""

LINES, WIDTH = 12, 200
"""How much of the output a sentence shows: lines, and characters of each."""

_OURS = re.compile(
    r'  File "(<string>|<frozen runpy>|[^"]*/corral/pool/[^"]*|[^"]*/anyio/to_process\.py)", line \d+ in '
)
"""A line of a stack, as faulthandler writes it, that tells a user nothing."""


class SlowStart(EnvStartError):
    """A worker was not ready within ``start_timeout``."""

    @classmethod
    def at(cls, what: str, *, seconds: float, output: str) -> Self:
        """``what`` did not end within so many seconds."""
        said = f"not ready within start_timeout = {seconds:g} s{last_lines(output)}"
        return with_output(cls.because(what, ErrorRecord("TimeoutError", said)), output)


class LostStart(EnvStartError):
    """A worker ended while it started, without a word: user code that exits, or somebody who kills processes."""

    @classmethod
    def at(cls, what: str, *, status: int | None, output: str) -> Self:
        """It ended, with exit ``status``, during ``what``."""
        said = f"the worker process {describe_exit(status)} before it was ready{last_lines(output)}"
        return with_output(cls.because(what, ErrorRecord("ProcessEnded", said)), output)

    @classmethod
    def unused(cls, *, pid: int, status: int | None) -> Self:
        """It was ready, and ended, with exit ``status``, before a trial was opened on it."""
        return cls(f"the worker process (pid {pid}) {describe_exit(status)} before a trial began on it")


class NodeLost(EnvStartError):
    """The node on which a worker was being started was lost: no fault of the worker's."""


class NoNode(EnvStartError):
    """No node had room for a slot's worker."""

    def __init__(self, seconds: float, refusals: Sequence[str] = ()) -> None:
        why = "".join(f"; {refusal}" for refusal in refusals)
        super().__init__(f"no node had room for another worker for {seconds:g} s{why}")


class InWorker(Exception):
    """What was raised in a worker, as a traceback: the cause of the error that tells of it, and shown above that."""

    def __str__(self) -> str:
        """Apart from the name of this class."""
        return f"\n\n{self.args[0]}"


def with_output(error: E, output: str) -> E:
    """The error, with what was printed."""
    error.output = output
    return error


def last_lines(output: str) -> str:
    """The end of a sentence that shows the last lines of ``output``, if there are any."""
    lines = [line[:WIDTH] for line in output.strip().splitlines() if not _OURS.match(line)]
    return "; its last output:\n" + "\n".join(lines[-LINES:]) if lines else ""


@dataclass
class Streak:
    """The workers of one slot that failed one after the other."""

    failures: int = 0
    began: float = 0.0

    def pause_after(self, error: Exception, now: float, *, loaded: bool) -> float | None:
        """One more failed, at the time ``now``: seconds to wait before the next start, or None to give the slot up.

        ``loaded``: whether a worker of the pool has ever loaded, so that the builder is known to work.
        """
        if self.failures == 0:
            self.began = now
        self.failures += 1
        if isinstance(error, NoNode):
            return None
        if isinstance(error, SlowStart) and not loaded:  # a hang: more of it helps nobody
            return None
        is_lost = isinstance(error, LostStart) and loaded
        if self.failures < MAX_STARTS:
            return 0.0
        return min(LONGEST_PAUSE, LOST_PAUSE * self.failures) if is_lost and now - self.began < LOST_PATIENCE else None

    def reason(self, last: Exception) -> EnvStartError:
        """Why the slot was given up."""
        if isinstance(last, LostStart) and self.failures >= MAX_STARTS:
            return EnvStartError(f"workers keep dying, {self.failures} in a row: {last}", record=last.record)
        return last if isinstance(last, EnvStartError) else EnvStartError(str(last))
