"""The single writer: every final result goes through one collector, and from there into the journal.

Guarantees
    - ``record`` returns when the result is durable, and returns it as a resumed session would read it.
    - **Group commit.** What many trials hand over while a write is under way goes into the next write together: one
      fsync serves them all. What nobody waits for (``hurry=False``) waits up to GATHER seconds for company.
    - **Handed over is written.** ``record`` cannot be cancelled half-way; a cancellation of its task waits for the few
      milliseconds that a write takes. Leaving the collector's ``async with`` waits for what was handed over.
    - **In order.** Results are written, and ``on_recorded`` is told of them, in the order they were handed over.
    - **A journal that cannot be written stops the run.** Whoever waits then, or comes later, gets the JournalError.
    - **Exactly one final record per trial and run.** A second one is a ProtocolError.

How: there is no writer task that would have to be kept alive. The first to come writes, for itself and for all that
queue behind it in the meantime; done with that, it hands the pen to the first that came too late for its write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from anyio import CancelScope, Event, move_on_after

from corral.errors import CorralError, JournalError, ProtocolError
from corral.records import Line, recorded
from corral.threads import call_blocking
from corral.types import TaskTrialResult, TrialKey

GATHER = 0.01
"""Seconds that a result which nobody waits for may wait for others, to share their write: so much is lost at most, and
run again, where the supervisor is killed. It costs nothing where trials are long, and half of a trial that does nothing
is its write."""


class Appendable(Protocol):
    """What a collector needs of a journal."""

    def append(self, lines: list[Line]) -> object:
        """Make ``lines`` durable, or raise."""


@dataclass(eq=False)
class _Entry:
    """A result on its way to the disk."""

    result: TaskTrialResult
    replaces: bool
    woken: Event | None = None
    """What its task waits for, if it does: that it is settled, or that it is that task's turn to write."""
    settled: bool = False
    error: Exception | None = None

    def wake(self) -> None:
        """Let its task go on."""
        if self.woken is not None:
            self.woken.set()


class Collector:
    """Records results, for any number of tasks at once. Used as ``async with Collector(journal) as collector:``."""

    def __init__(
        self,
        journal: Appendable,
        on_recorded: Callable[[TaskTrialResult], None] | None = None,
        *,
        recorded: Iterable[TrialKey] = (),
    ) -> None:
        """``recorded``: the trials that have a record in the journal already, from an earlier run of the session."""
        self._journal = journal
        self._on_recorded = on_recorded
        self._earlier = set(recorded)
        self._seen: set[TrialKey] = set()
        self._queue: deque[_Entry] = deque()
        self._writing = False
        self._gathering = False
        """Whether a task waits for company, and then writes for all that have come."""
        self._idle: Event | None = None
        """What waits for the end of the write that is under way."""
        self._failure: CorralError | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def record(self, result: TaskTrialResult, *, replaces: bool = False, hurry: bool = True) -> TaskTrialResult:
        """Make ``result`` durable, then tell ``on_recorded`` of it, and return it as the journal has it.

        ``replaces`` allows it to take the place of a record from an earlier run of the session, as when errors are
        retried. ``hurry``: whether something waits for it. An exception of ``on_recorded`` is raised here; the result
        is durable all the same.
        """
        self._check(result, replaces)
        entry = _Entry(result, result.key in self._earlier)
        self._seen.add(result.key)
        self._queue.append(entry)
        with CancelScope(shield=True):
            while not entry.settled:
                # A new event each time: a newcomer may have taken the pen that this task was woken for.
                entry.woken = Event()
                if self._writing or (self._gathering and not hurry):
                    await entry.woken.wait()
                elif not hurry:
                    hurry = True
                    await self._gather(entry.woken)
                else:
                    await self._write_queued()
        if entry.error is not None:
            raise entry.error
        return entry.result

    async def _gather(self, over: Event) -> None:
        """Wait for company, until somebody in a hurry has written for all, or for long enough."""
        self._gathering = True
        try:
            with move_on_after(GATHER):
                await over.wait()
        finally:
            self._gathering = False

    async def aclose(self) -> None:
        """Take nothing more, and return when everything that was handed over is settled."""
        self._closed = True
        with CancelScope(shield=True):
            while self._writing or self._queue:
                if self._writing:
                    self._idle = self._idle or Event()
                    await self._idle.wait()
                else:
                    await self._write_queued()

    def _check(self, result: TaskTrialResult, replaces: bool) -> None:
        if self._closed:
            raise ProtocolError(f"the result of {result.key} came after the collector was closed")
        if self._failure is not None:
            raise _again(self._failure)
        if result.key in self._seen or (result.key in self._earlier and not replaces):
            raise ProtocolError(f"a second final result of {result.key} was refused")

    async def _write_queued(self) -> None:
        """Write all that is queued at this moment, settle it, and wake whoever is to write next."""
        batch = list(self._queue)
        self._queue.clear()
        self._writing = True
        try:
            await self._write(batch)
        except BaseException as error:
            # Whether the batch is on the disk is not known, so nothing may be built on it.
            self._fail(batch, ProtocolError(f"writing was interrupted by {type(error).__name__}"), error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._writing = False
            for entry in batch:
                entry.settled = True
                entry.wake()
            if self._queue:
                self._queue[0].wake()
            if self._idle is not None:
                self._idle.set()
                self._idle = None

    async def _write(self, batch: list[_Entry]) -> None:
        try:
            if self._failure is not None:
                raise _again(self._failure)
            await call_blocking(self._append, batch)
        except CorralError as error:
            self._fail(batch, error, error.__cause__)
            return
        for entry in batch:
            try:
                if self._on_recorded is not None and entry.error is None:
                    self._on_recorded(entry.result)
            except Exception as error:
                entry.error = error

    def _append(self, batch: list[_Entry]) -> None:
        """In a worker thread: make the batch durable."""
        lines = []
        for entry in batch:
            try:
                line, entry.result = recorded(entry.result, replaces=entry.replaces)
                lines.append(line)
            except CorralError as error:  # a result that is none concerns its own task only
                entry.error = error
        if lines:
            self._journal.append(lines)

    def _fail(self, batch: list[_Entry], failure: CorralError, cause: BaseException | None) -> None:
        """The run is over: nothing more is written, and all of ``batch`` hear why."""
        self._failure = failure
        self._failure.__cause__ = cause
        for entry in batch:
            entry.error = entry.error or _again(failure)


def _again(error: CorralError) -> CorralError:
    """The same error for one more task: an exception object that several tasks raise collects all their tracebacks."""
    kind = JournalError if isinstance(error, JournalError) else ProtocolError
    copy = kind(str(error))
    copy.__cause__ = error.__cause__
    return copy
