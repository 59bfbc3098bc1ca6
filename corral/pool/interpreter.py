"""SUPERVISOR SIDE. The interpreter of a worker, from its spawn to its end: ``anyio.to_process``, with what that hides.

Purpose
    ``to_process.run_sync`` starts an interpreter, imports the user's main script in it, and only then makes the call.
    Until then descriptor 1 is its reply pipe, and 2 a pipe that nobody reads: a script that writes there from C as it
    is imported would break the start, or hang it. So anyio's own function runs here with surroundings of its own.
Guarantees
    * anyio is told of no main script. The worker imports it, once its output goes to its log.
    * Whatever the interpreter itself writes to descriptor 2 stands in that log too.
    * The process is known from its spawn on. When ``run`` is over it is gone and, on Linux, its exit status is exact;
      where this process ignores SIGCHLD it is unknown.
    * Nothing that others can see is changed: calls of ``to_process`` that the user makes are as they ever were, and get
      none of these interpreters, nor these any of theirs.
Assumptions
    anyio's function looks up ``sys``, ``open_process`` and its idle interpreters among the globals of its module; tests
    hold the installed version to that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Self

import anyio
from anyio import CapacityLimiter, to_process
from anyio.abc import Process

from corral.pool.entry import enter
from corral.pool.glance import NO_SIGNAL
from corral.pool.main_script import places_of_modules
from corral.pool.messages import HostSpec
from corral.pool.worker_environment import worker_environment


class _NoMainScript:
    """``sys`` as anyio's function sees it: with a main module that came from no file, and a path that can be sent."""

    modules = {"__main__": ModuleType("__main__")}  # noqa: RUF012 - never changed

    @property
    def path(self) -> list[str]:
        """As far as the other interpreter needs it."""
        return places_of_modules()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class Interpreter:
    """A new interpreter that makes one call. Its standard error goes to ``log_path``, which is emptied unless kept."""

    def __init__(self, log_path: str, *, keep_log: bool, limiter: CapacityLimiter, program: str | None = None) -> None:
        """``program``: what it runs in place of anyio's, which it answers as that would."""
        self.pid = 0
        """0 until it is spawned."""
        self.status: int | None = None
        """How it ended: exit code, or minus signal. None before, and where the system does not tell."""
        self.log_start = 0
        """Where in the log its output begins."""
        self._log_path = log_path
        self._log_mode = "ab" if keep_log else "wb"
        self._limiter = limiter
        self._program = program
        self._process: _Killable | None = None

    async def run(self, function: Callable[..., object], *arguments: object) -> object:
        """Start it, make the call, wait for its end. Cancelled, it is killed first.

        Raises anyio.BrokenWorkerProcess if it ends before the call does, OSError if it cannot be started, and whatever
        the call raises.
        """
        names = {
            **vars(to_process),
            "sys": _NoMainScript(),
            "open_process": self._open,
            "fail_after": lambda _: contextlib.nullcontext(),  # start_timeout is its limit, not anyio's 20 s
            "_process_pool_workers": SimpleNamespace(get=set),
            "_process_pool_idle_workers": SimpleNamespace(get=deque),
        }
        run_sync = FunctionType(to_process.run_sync.__code__, names)
        run_sync.__kwdefaults__ = to_process.run_sync.__kwdefaults__
        try:
            return await run_sync(function, *arguments, cancellable=True, limiter=self._limiter)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end()

    async def live(self, spec: HostSpec) -> None:
        """Be the worker of ``spec``, until it ends. See ``run``."""
        await self.run(enter, spec)

    async def _open(self, command: list[str], **streams: Any) -> _Killable:
        with anyio.CancelScope(shield=True), open(self._log_path, self._log_mode) as log:
            self.log_start = log.tell()
            if self._program is not None:
                command = [sys.executable, "-u", "-c", self._program]
            given = {**streams, "stderr": log, "env": worker_environment(), "start_new_session": True}
            with _Input() if NO_SIGNAL else contextlib.nullcontext() as stdin:
                if stdin is not None:
                    given["stdin"] = stdin.end
                try:
                    opened = await anyio.open_process(command, **given)
                except OSError as error:
                    error.filename = error.filename or command[0]  # uvloop does not say what it did not find
                    raise
                process = self._process = _Killable(opened, stdin)
        self.pid = process.pid
        return process

    async def _end(self) -> None:
        if (process := self._process) is not None:
            process.kill()
            await process.aclose()
            self.status = process.exact_returncode
            process.let_go()


class _Input:
    """The interpreter's standard input: a socket, for what is written to a pipe that nobody reads is a SIGPIPE.

    A context manager: at its end the interpreter has its end, or there is none.
    """

    def __init__(self) -> None:
        self.end, self._ours = socket.socketpair()
        self._ours.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end.close()
        if kind is not None:
            self.close()

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._ours.send(left, NO_SIGNAL) :]
            except BlockingIOError:
                await anyio.wait_writable(self._ours)

    def close(self) -> None:
        self._ours.close()


class _Killable:
    """An anyio process whose kill does not wait for it on the way.

    ``subprocess`` looks whether a process has ended before it signals it; on asyncio that takes the exit status away
    from the event loop's own wait, which then gives 255 and logs a line. A descriptor of the process needs no look.
    """

    def __init__(self, process: Process, stdin: _Input | None) -> None:
        self._process = process
        self._stdin = stdin
        self._handle: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # gone already; a system that has none
            self._handle = os.pidfd_open(process.pid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is None:
                self._process.kill()
            else:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    @property
    def exact_returncode(self) -> int | None:
        is_ignored = hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        is_guess = is_ignored or (self._handle is None and self._process.returncode == 255)
        return None if is_guess else self._process.returncode

    @property
    def stdin(self) -> Any:
        return self._stdin or self._process.stdin

    def let_go(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
