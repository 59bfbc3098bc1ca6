"""Operations that are carried out once, however often they are asked for.

An operation has a scope (a trial, or the opening of trials) and a key that its client chose. Asked for again under the
same key, while it runs it is joined, and afterwards its outcome is given again. So a client may repeat what it did not
hear the end of, and wait in steps of any length.
Guarantees: whoever leaves does not disturb those who stay; an operation that can be undone, and that nobody has asked
for in GRACE seconds, is cancelled, or undone if it has ended.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from corral.errors import ConfigError, InfrastructureError

log = logging.getLogger("corral.server")

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

    request: bytes
    """Tells what was asked, to notice a key that is used for something else."""
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
        self.error = InfrastructureError("the operation was given up")  # by who cancels it, or the server's end
        try:
            with self.scope:
                self.value = await work()
                self.error = None
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

    def is_old(self, now: float) -> bool:
        """Whether its outcome need not be kept any more, fetched or not."""
        return self.ended.is_set() and not self.waiters and now - self.left_at > KEPT_SECONDS


class Operations:
    """All operations that are known by a key."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._known: dict[str, dict[str, Operation]] = {}

    def begin(
        self, scope: str, key: str | None, request: bytes, work: Work, undo: Undo | None = None, grace: float = GRACE
    ) -> Operation:
        """The operation of that key: begun now, or earlier. ConfigError if the key names another request.

        Without a key nobody can ask for it again: it has no grace, and is known only if it may have to be undone.
        """
        known = self._known.setdefault(scope, {})
        if key is not None and (operation := known.get(key)) is not None:
            if operation.request != request:
                raise ConfigError(f"the idempotency key {key!r} was used for another request")
            return operation
        operation = Operation(request, undo, grace if key is not None else 0.0, left_at=time.monotonic())
        if key is not None or undo is not None:
            fetched = [name for name, one in known.items() if one.fetched]
            for name in fetched[: max(0, len(fetched) - KEPT)]:
                del known[name]
            known[key or f"({secrets.token_hex(8)})"] = operation  # no client's key has parentheses
        self._tasks.start_soon(operation.run, work)
        return operation

    def drop(self, scope: str, *, but: str | None = None) -> None:
        """Forget a scope's operations that have ended, except the one under the key ``but``."""
        known = self._known.pop(scope, {})
        kept = {key: operation for key, operation in known.items() if key == but or not operation.ended.is_set()}
        if kept:
            self._known[scope] = kept

    def sweep(self) -> None:
        """Cancel or undo what was abandoned, and forget what is old."""
        now = time.monotonic()
        for scope, known in list(self._known.items()):
            for key, operation in list(known.items()):
                if operation.undo is not None and operation.is_abandoned(now):
                    del known[key]
                    self._tasks.start_soon(self._undo, operation, operation.undo)
                elif operation.is_old(now):
                    del known[key]
            if not known:
                self._known.pop(scope, None)

    @staticmethod
    async def _undo(operation: Operation, undo: Undo) -> None:
        operation.scope.cancel()
        await operation.ended.wait()
        if operation.error is None:
            try:
                await undo(operation.value)
            except Exception:
                log.exception("undoing what nobody came for failed")
