"""Blocking calls off the event loop, in daemon threads, on asyncio and trio.

Why not ``anyio.to_thread``: its threads are waited for at exit, and a tool or an agent that hangs for ever would keep
the interpreter alive; and it allows 40 at once unless told otherwise. Why not always ``anyio.from_thread``: on asyncio
it has a thread wait on a condition, which costs four times the processor time of a bare lock where both are busy.
Guarantees: a call that is cancelled is abandoned at once; its late answer is dropped. Threads are used again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

from anyio import RunFinishedError, from_thread
from anyio.lowlevel import current_token

from corral.waiting import Waiting

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
    wake, woken = _waker()
    outcome: list[tuple[bool, Any]] = []
    context = contextvars.copy_context()
    context.run(_leave_loop)

    def job() -> None:
        try:
            outcome.append((True, context.run(function, *args)))
        except BaseException as error:
            outcome.append((False, error))
        with contextlib.suppress(Exception):  # the loop has ended: nobody is waiting any more
            wake()

    _start(job)
    await woken
    return _delivered(outcome)  # type: ignore[no-any-return]


def start_blocking(function: Callable[[*Ts], object], *args: *Ts) -> None:
    """Run ``function(*args)`` in a daemon thread. Nobody waits for it, and what it raises is dropped."""

    def job() -> None:
        with contextlib.suppress(BaseException):
            function(*args)

    _start(job)


def _delivered(outcome: list[tuple[bool, Any]]) -> Any:
    succeeded, value = outcome.pop()
    if succeeded:
        return value
    try:
        raise value
    finally:
        del value  # or the error would keep this frame alive, and the frame the error


def _leave_loop() -> None:
    """In a context that a thread gets: no event loop runs there, so that the thread may run one of its own."""
    _note_library(None)


def _note_library(name: str | None) -> None:
    if sniffio is not None:
        sniffio.current_async_library_cvar.set(name)


def loop_caller() -> Callable[[Callable[[], object]], object]:
    """How any thread has the running event loop call something."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return trio.lowlevel.current_trio_token().run_sync_soon  # type: ignore[no-any-return]
    return asyncio.get_running_loop().call_soon_threadsafe


def _waker() -> tuple[Callable[[], object], Awaitable[object]]:
    """How any thread wakes the task that then waits, and what that waits for."""
    soon = loop_caller()
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        done = trio.Event()
        return partial(soon, done.set), done.wait()
    waiting = Waiting(asyncio.get_running_loop())
    return partial(soon, waiting.give), waiting


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
        native = self._token.native_token
        self._loop = native if isinstance(native, asyncio.AbstractEventLoop) else None
        self._running: set[asyncio.Task[None]] = set()

    def call(self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Await ``function(*args)`` on the loop, from a thread. RunFinishedError if the loop has ended."""
        if self._loop is None:
            return from_thread.run(function, *args, token=self._token)
        loop, over = self._loop, threading.Lock()
        outcome: list[tuple[bool, Any]] = []

        async def run() -> None:
            try:
                outcome.append((True, await function(*args)))
            except asyncio.CancelledError as error:
                outcome.append((False, concurrent.futures.CancelledError(str(error))))
            except BaseException as error:
                outcome.append((False, error))
            finally:
                over.release()

        def begin() -> None:
            task = loop.create_task(run())
            self._running.add(task)  # the loop itself keeps tasks only weakly
            task.add_done_callback(self._running.discard)

        context = contextvars.copy_context()
        context.run(_note_library, "asyncio")
        over.acquire()
        try:
            loop.call_soon_threadsafe(begin, context=context)
        except RuntimeError:
            raise RunFinishedError from None
        over.acquire()
        return _delivered(outcome)  # type: ignore[no-any-return]
