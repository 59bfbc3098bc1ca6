"""Operations that are carried out once, however often they are asked for.

An operation has a scope (a trial, or the opening of trials) and a key that its client chose. Asked for again under the
same key, while it runs it is joined, and afterwards its outcome is given again. So a client may repeat what it did not
hear the end of, and wait in steps of any length.
Guarantees: whoever leaves does not disturb those who stay; an operation that can be undone, and that nobody has asked
for in GRACE seconds, is cancelled, or undone if it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from corral.errors import ConfigError

GRACE = 15.0
"""Seconds that an operation waits for its client to come back."""
KEPT = 16
"""Ended operations of one scope that are remembered: a client repeats its last ones, not those of long ago."""
KEPT_SECONDS = 120.0
"""And for how long."""

Work = Callable[[], Awaitable[Any]]
Undo = Callable[[Any], Awaitable[object]]


@dataclass(eq=False)
class Operation:
    """One operation, running or ended."""

    request: object
    """What was asked, to notice a key that is used for something else."""
    undo: Undo | None = None
    grace: float = GRACE
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    value: Any = None
    error: BaseException | None = None
    waiters: int = 0
    fetched: bool = False
    left_at: float = 0.0

    async def run(self, work: Work) -> None:
        """Carry it out."""
        try:
            with self.scope:
                self.value = await work()
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()

    async def outcome(self) -> Any:
        """Wait for its end; what it gave or raised."""
        self.waiters += 1
        try:
            await self.ended.wait()
        finally:
            self.waiters -= 1
            self.left_at = time.monotonic()
        self.fetched = True
        if self.error is not None:
            raise self.error
        return self.value

    def is_abandoned(self, now: float) -> bool:
        """Whether nobody will ask for it any more."""
        return not self.waiters and not self.fetched and now - self.left_at >= self.grace


class Operations:
    """All operations that are known by a key."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._known: dict[str, dict[str, Operation]] = {}

    def begin(self, scope: str, key: str, request: object, work: Work, undo: Undo | None, grace: float) -> Operation:
        """The operation of that key: begun now, or earlier. ConfigError if the key names another request."""
        known = self._known.setdefault(scope, {})
        if (operation := known.get(key)) is not None:
            if operation.request != request:
                raise ConfigError(f"the idempotency key {key!r} was used for another request")
            return operation
        self._forget_old(known, keep=KEPT)
        operation = known[key] = Operation(request, undo, grace, left_at=time.monotonic())
        self._tasks.start_soon(operation.run, work)
        return operation

    @staticmethod
    def _forget_old(known: dict[str, Operation], keep: int, before: float = float("inf")) -> None:
        over = [key for key, operation in known.items() if operation.ended.is_set() and operation.fetched]
        for key in over[: max(0, len(over) - keep)]:
            if known[key].left_at < before:
                del known[key]

    def drop(self, scope: str, *, but: str = "") -> None:
        """Forget a scope's operations that have ended, except the one under the key ``but``."""
        known = self._known.pop(scope, {})
        kept = {key: operation for key, operation in known.items() if key == but or not operation.ended.is_set()}
        if kept:
            self._known[scope] = kept

    async def sweep(self) -> None:
        """Cancel or undo what was abandoned, and forget what is old."""
        now = time.monotonic()
        for scope, known in list(self._known.items()):
            for key, operation in list(known.items()):
                if operation.undo is not None and operation.is_abandoned(now):
                    del known[key]
                    await self._undo(operation, operation.undo)
            self._forget_old(known, keep=0, before=now - KEPT_SECONDS)
            if not known:
                self._known.pop(scope, None)

    @staticmethod
    async def _undo(operation: Operation, undo: Undo) -> None:
        operation.scope.cancel()
        await operation.ended.wait()
        if operation.error is None and operation.value is not None:
            await undo(operation.value)
