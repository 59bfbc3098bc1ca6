"""Blocking calls off the event loop, in daemon threads, on asyncio and trio.

Why not ``anyio.to_thread``: its threads are waited for at exit, and a tool or an agent that hangs for ever would keep
the interpreter alive; and it allows 40 at once unless told otherwise.
Guarantees: a call that is cancelled is abandoned at once; its late answer is dropped. Threads are used again.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio import from_thread
from anyio.lowlevel import EventLoopToken, current_token

try:
    import sniffio
except ImportError:  # it comes with trio; anyio without it looks for the loop itself
    sniffio = None  # type: ignore[assignment]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_Job = Callable[[], None]
_idle: list[SimpleQueue[_Job]] = []


async def call_blocking(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run ``function(*args)`` in a daemon thread and wait for what it gives or raises."""
    token = current_token()
    done = anyio.Event()
    outcome: list[tuple[bool, Any]] = []
    context = contextvars.copy_context()
    context.run(_leave_loop)

    def job() -> None:
        try:
            outcome.append((True, context.run(function, *args)))
        except BaseException as error:
            outcome.append((False, error))
        _tell(token, done.set)

    _start(job)
    await done.wait()
    succeeded, value = outcome.pop()
    if succeeded:
        return value  # type: ignore[no-any-return]
    try:
        raise value
    finally:
        del value  # or the error would keep this frame alive, and the frame the error


def _leave_loop() -> None:
    """In a context that a thread gets: no event loop runs there, so that the thread may run one of its own."""
    if sniffio is not None:
        sniffio.current_async_library_cvar.set(None)


def _tell(token: EventLoopToken, function: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the loop has ended: nobody is waiting any more
        from_thread.run_sync(function, token=token)


def _start(job: _Job) -> None:
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        threading.Thread(target=_work, args=(queue,), name="corral", daemon=True).start()
    queue.put(job)


def _work(queue: SimpleQueue[_Job]) -> None:
    while True:
        job = queue.get()
        job()
        del job
        _idle.append(queue)


class Bridge:
    """Lets a thread that ``call_blocking`` started, or any other, call back into the event loop and wait."""

    def __init__(self) -> None:
        self._token = current_token()

    def call(self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Await ``function(*args)`` on the loop, from a thread."""
        return from_thread.run(function, *args, token=self._token)
