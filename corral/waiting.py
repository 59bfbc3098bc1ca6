"""What a task of asyncio waits for, without the round of the event loop that a future costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from functools import partial
from typing import Any


def _nothing() -> None:
    """Nobody waits."""


class Waiting:
    """Awaited by one task, once, and by ``await`` alone: a future, but that ``give`` lets the task go on at once.

    A future has the loop go round once more for that, which takes a fifth of what a wait does. This is asyncio's
    protocol for whatever is awaited (``_asyncio_future_blocking``), which its tasks keep to on every loop.
    Guarantee: ``give`` leaves no moment in which what came could be lost to a cancellation.
    Assumption: ``give`` is called by the loop itself, not by a task, and ``fail`` in the loop's thread.
    """

    __slots__ = ("_asyncio_future_blocking", "_error", "_loop", "_over", "_value", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._wake: Callable[[], object] = _nothing
        self._value: Any = None
        self._error: BaseException | None = None
        self._over = False

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._over:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def give(self, value: Any = None) -> None:
        """This is what came: the task runs, until it waits again. Nothing happens where it waits no more."""
        if not self._over:
            self._value = value
            self._end()()

    def fail(self, error: BaseException) -> None:
        """Nothing will come: the task is told so, soon."""
        self._error = error
        self._loop.call_soon(self._end())

    def _end(self) -> Callable[[], object]:
        self._over = True
        wake, self._wake = self._wake, _nothing  # who waited is not to be kept by what has ended
        return wake

    # What a task, and who looks at tasks, asks of a future.

    def done(self) -> bool:
        """Whether it is over."""
        return self._over

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Whose tasks may wait."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], object], *, context: Context) -> None:
        """The task has begun to wait, and is to be woken by this."""
        self._wake = partial(context.run, wake, self)

    def result(self) -> Any:
        """What came. It raises the error that came instead."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it would keep this frame alive, and the frame the error
        return self._value

    def cancel(self, msg: Any = None) -> bool:
        """The task is not to wait any longer; whether it did."""
        if self._over:
            return False
        self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True
