"""SUPERVISOR SIDE. The nursery: an interpreter that has Corral's own code loaded, and of which workers are forks.

Purpose
    A new interpreter computes for a tenth of a second before it can load the first environment. A fork of one that has
    done so is there in milliseconds, and shares its memory: so the pool starts, and a lost worker is replaced, in the
    time that the environments themselves take to load.
Guarantees
    * The nursery loads nothing of the user's: no main script, no builder. To these, a fork of it is a new interpreter.
    * What is left running of a worker that somebody kills, daemons of its trials included, is ended.
    * Workers need the nursery only until they have loaded: then they live on without it. When it is gone, those that
      were loading are replaced, and the next one that is needed has another nursery made.
    * Where there can be none (no fork, a thread in it, MAX_LOSSES in a row), workers are interpreters of their own.
    * It watches the supervisor's process, and so do its forks. When the supervisor is gone, though a fork of it may
      still hold copies of all its connections, it ends its workers that do not end by themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import anyio
from anyio import BrokenWorkerProcess, CancelScope, CapacityLimiter
from anyio.abc import TaskGroup

from corral.errors import ProtocolError
from corral.pool.channel import Channel, Listener, Visitor
from corral.pool.entry import enter_nursery
from corral.pool.interpreter import Interpreter
from corral.pool.messages import HostSpec, NurserySpec, ProcessEnded, ProcessStarted, StartWorker
from corral.pool.processes import is_stopped

MAX_LOSSES = 2
"""Nurseries in a row that may end without having made a worker, before there are no more."""
PATIENCE = 10.0
"""Seconds that a nursery may take to start, or to fork, before the worker is made in another way."""
STATUS_PATIENCE = 1.5
"""Seconds to wait for the nursery's word on how a worker ended."""


PROGRAM = r"""
import pickle, sys
sys.stdout.buffer.write(b"READY\n")
_, sys.path[:], _ = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(b"RETURN 4\n" + pickle.dumps(None))
_, call, arguments = pickle.load(sys.stdin.buffer)
call(*arguments)
"""
"""The other end of ``to_process.run_sync``, for the one call of the nursery's process: without anyio, which neither the
nursery nor a worker needs, and which takes as long to load as all of Corral's that they do. If a version of anyio wants
to hear something else, there is no nursery, and workers are interpreters of their own."""


class Nursery:
    """Makes workers by fork. Its processes start when the first is needed."""

    def __init__(
        self, folder: Path, listener: Listener, limiter: CapacityLimiter, tasks: TaskGroup, modules: tuple[str, ...]
    ) -> None:
        """``folder``: of the pool, for the nursery's own log. ``modules``: see ``NurserySpec``."""
        self._folder = folder
        self._modules = modules
        self._listener = listener
        self._limiter = limiter
        self._tasks = tasks
        self._losses = 0 if sys.platform == "linux" else MAX_LOSSES
        self._has_ended = False
        self._starting = anyio.Lock()
        self._interpreter: Interpreter | None = None
        self._channel: Channel | None = None
        self._scope = anyio.CancelScope()
        """Of the interpreter that is there, as the event that it is gone: another one gets its own."""
        self._gone = anyio.Event()
        self._forks: dict[int, Fork] = {}

    @property
    def pid(self) -> int | None:
        """Of its process, while there is one."""
        return self._interpreter.pid if self._interpreter is not None and self._channel is not None else None

    async def is_ready(self) -> bool:
        """Whether it can fork now; one is started if need be."""
        async with self._starting:
            if self._channel is None and self._losses < MAX_LOSSES and not self._has_ended:
                await self._start()
            return self._channel is not None

    async def _start(self) -> None:
        visitor = self._listener.expect()
        log_path = str(self._folder / "nursery.log")
        self._interpreter = Interpreter(log_path, keep_log=False, limiter=self._limiter, program=PROGRAM)
        self._gone, self._scope = anyio.Event(), anyio.CancelScope(shield=True)
        spec = NurserySpec(visitor.ticket, log_path, os.getpid(), self._modules)
        self._tasks.start_soon(self._live, self._interpreter, spec, self._scope, self._gone, visitor)
        try:
            with anyio.move_on_after(PATIENCE):
                await visitor.arrived.wait()
        finally:
            self._listener.forget(visitor)
        self._channel = visitor.channel
        if self._channel is None:
            self._losses += 1
            await self.close()
        else:
            self._tasks.start_soon(self._listen, self._channel)

    async def _live(
        self, interpreter: Interpreter, spec: NurserySpec, scope: CancelScope, gone: anyio.Event, visitor: Visitor
    ) -> None:
        try:
            with scope, contextlib.suppress(BrokenWorkerProcess, OSError):
                await interpreter.run(enter_nursery, spec)
        finally:
            visitor.give_up()
            self._lose(visitor.channel)
            gone.set()

    async def _listen(self, channel: Channel) -> None:
        with contextlib.suppress(anyio.EndOfStream, ProtocolError), anyio.CancelScope(shield=True):
            while True:
                match await channel.receive():
                    case ProcessStarted(number, pid):
                        self._losses = 0
                        if fork := self._forks.get(number):
                            fork.has_started(pid)
                    case ProcessEnded() as end:
                        if fork := self._forks.get(end.number):
                            fork.has_ended(end.status)
                    case other:
                        raise ProtocolError(f"the nursery reported a {type(other).__name__}")
        self._lose(channel)

    def _lose(self, channel: Channel | None) -> None:
        """The nursery at the other end makes no more workers, and says no more of those it made."""
        made = [fork for fork in self._forks.values() if fork.made_by is channel]
        if channel is not None and channel is self._channel:
            self._channel = None
            channel.close()
            self._losses += not any(fork.pid for fork in made)
        for fork in made:
            fork.nursery_gone()

    def worker(self, log_path: str, *, keep_log: bool) -> Fork:
        """A worker that is to be. It is made when it is run."""
        return Fork(self, log_path, keep_log=keep_log)

    async def fork(self, spec: HostSpec, fork: Fork) -> None:
        """Have ``fork`` made. Returns when its pid is known, or will never be."""
        number = spec.ticket.number
        self._forks[number], fork.made_by = fork, self._channel
        try:
            with anyio.move_on_after(PATIENCE) as limit, contextlib.suppress(anyio.EndOfStream):
                if self._channel is not None:
                    await self._channel.send(StartWorker(spec))
                    await fork.settled.wait()
            if limit.cancelled_caught and self._interpreter is not None and is_stopped(self._interpreter.pid):
                await self.close()
        except BaseException:
            self.forget(number)
            raise

    def forget(self, number: int) -> None:
        """That worker is over."""
        self._forks.pop(number, None)

    async def end(self) -> None:
        """End it, and make no other."""
        self._has_ended = True
        await self.close()

    async def close(self) -> None:
        """End the interpreter that is there. Its workers go on."""
        with anyio.CancelScope(shield=True):
            interpreter, self._interpreter = self._interpreter, None
            if interpreter is None:
                return
            self._scope.cancel()
            await self._gone.wait()


class Fork:
    """A worker's process that the nursery makes: what an ``Interpreter`` is to one that is spawned."""

    def __init__(self, nursery: Nursery, log_path: str, *, keep_log: bool) -> None:
        self.pid = 0
        """0 until it is made."""
        self.status: int | None = None
        """How it ended: exit code, or minus signal. None before, and where nobody is left who knows."""
        self.log_start = 0
        """Where in the log its output begins."""
        self.settled = anyio.Event()
        """Its pid is known, or will never be."""
        self.made_by: Channel | None = None
        """The connection of the nursery that was asked for it."""
        self._told = anyio.Event()
        """How it ended is known, or will never be."""
        self._handle: int | None = None
        self._killed = False
        self._nursery = nursery
        self._log_path = log_path
        self._log_mode = "ab" if keep_log else "wb"

    async def live(self, spec: HostSpec) -> None:
        """Be the worker of ``spec``, until it ends: BrokenWorkerProcess then. Cancelled, it is killed first."""
        with open(self._log_path, self._log_mode) as log:
            self.log_start = log.tell()
        try:
            with anyio.CancelScope(shield=True):
                await self._nursery.fork(spec, self)
            if self._handle is not None:
                await anyio.wait_readable(self._handle)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(spec.ticket.number)
        raise BrokenWorkerProcess from anyio.EndOfStream()

    async def _end(self, number: int) -> None:
        self.kill()
        if self._handle is not None:
            await anyio.wait_readable(self._handle)
            with anyio.move_on_after(STATUS_PATIENCE):
                await self._told.wait()
            os.close(self._handle)
            self._handle = None
        self._nursery.forget(number)

    def kill(self) -> None:
        """Kill it, now or as soon as its pid is known."""
        self._killed = True
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def has_started(self, pid: int) -> None:
        """The nursery's report."""
        self.pid = pid
        with contextlib.suppress(OSError):  # gone already
            self._handle = os.pidfd_open(pid)
        self.settled.set()
        if self._killed:
            self.kill()

    def has_ended(self, status: int | None) -> None:
        """The nursery's report."""
        self.status = status
        self._told.set()
        self.settled.set()

    def nursery_gone(self) -> None:
        """Nothing more will be reported."""
        self._told.set()
        self.settled.set()
