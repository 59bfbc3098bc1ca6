"""SUPERVISOR SIDE. WorkerPool: starts workers, keeps every slot served, leases them, shuts down by one deadline.

Guarantees
    * A slot whose worker is gone gets a new one at once. One whose workers fail in a row, at their start or before they
      are used, gets the next ones later, and is given up in the end: ``starts.Streak`` says when.
    * Starts are staggered: at most as many at once as there are processors. The first worker starts alone and describes
      the environments, so a builder that cannot work costs MAX_STARTS processes, not MAX_STARTS per slot.
    * Leaving the pool ends every worker and all that it started, within SHUTDOWN_PATIENCE plus a kill.
Assumptions
    Time-outs of what runs in a lease are its holder's business: fail after, kill, spawn.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import cloudpickle

from corral.errors import ConfigError, CorralError, EnvStartError, ErrorRecord, ProtocolError, SerializationError
from corral.pool.channel import Listener, open_listener
from corral.pool.config import WorkerPoolConfig, available_cpus
from corral.pool.entry import refuse_in_worker
from corral.pool.interpreter import Interpreter
from corral.pool.lease import Lease
from corral.pool.lifecycle import WorkerEvent, WorkerState
from corral.pool.main_script import MainScript
from corral.pool.memory import MemoryWatch
from corral.pool.nursery import Fork, Nursery
from corral.pool.slots import Slot, Slots
from corral.pool.starts import STEADY, LostStart, Streak
from corral.pool.wire import HostSpec, Load, Ticket
from corral.pool.worker import Worker
from corral.scratch import scratch_folder
from corral.source import describe_builder
from corral.types import TaskInfo
from corral.unwrap import unwrapped

SHUTDOWN_PATIENCE = 10.0
"""Seconds for the whole pool to end by itself."""

BuildEnvs = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One slot: its worker and what it has done. Times in seconds."""

    slot: int
    state: str
    pid: int | None
    trial_pid: int | None
    trials: int
    restarts: int
    busy_s: float
    start_s: float
    """From the worker's spawn until its environments were loaded."""
    losses: tuple[float, ...] = ()
    """When each of the slot's workers was gone, in seconds since 1970 UTC."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The pool at one moment."""

    size: int
    idle: int
    leased: int
    starting: int
    restarts: int
    fresh: str
    """How fresh process state is made here: "fork" or "spawn"."""
    workers: tuple[WorkerStatistics, ...]
    nursery_pid: int | None = None
    """The process of which workers are forked, while there is one."""


class WorkerPool:
    """A pool of workers that have the environments of ``build_envs`` loaded.

    Use it as an asynchronous context manager, on asyncio or trio. Entering starts the first worker and waits until it
    has described the environments (``catalogue``); the others start behind it.

    Raises on entering: ConfigError for a main script without a guard or a builder that gives no environments,
    EnvStartError when the environments cannot be loaded, SerializationError when the builder cannot be sent.
    """

    def __init__(self, build_envs: BuildEnvs, config: WorkerPoolConfig | None = None) -> None:
        if not callable(build_envs):
            raise ConfigError(f"a worker pool needs a function that builds the environments, not {build_envs!r}")
        self.config = config or WorkerPoolConfig()
        self.catalogue: dict[str, TaskInfo] = {}
        self.warnings: tuple[str, ...] = ()
        self.fresh = self.config.fresh
        self._what = f"building the environments ({describe_builder(build_envs)})"
        self._load = Load(
            _pickle(build_envs),
            self.config.fresh,
            reused=self.config.reuse == "worker",
            renewed_after=self.config.max_trials_per_worker,
        )
        self._slots = Slots()
        self._closing = False

    async def __aenter__(self) -> Self:
        with unwrapped():
            await self._open()
        return self

    async def _open(self) -> None:
        refuse_in_worker("a worker pool was")
        if self.config.log_dir is not None:
            _make_log_folder(self.config.log_dir)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_quiet_reaper())
            self._folder = Path(stack.enter_context(scratch_folder()))
            self._listener: Listener = await stack.enter_async_context(open_listener(self._folder))
            self._limiter = anyio.CapacityLimiter(math.inf)
            self._main = MainScript.of_this_process()
            self._starts = anyio.CapacityLimiter(available_cpus())
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._nursery = Nursery(self._folder, self._listener, self._limiter, self._tasks)
            stack.enter_context(self._nursery.lifeline())
            stack.push_async_callback(self._shut_down)
            self.memory = MemoryWatch(self.config.memory_bytes)
            self._tasks.start_soon(self.memory.watch, self._slots.all)
            await self._start_first()
            self.resize(self.config.workers)
            self._stack = stack.pop_all()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        # An error of the block is none of the pool's tasks: it passes them by, or it would come out wrapped in groups.
        cancelled = kind is not None and issubclass(kind, anyio.get_cancelled_exc_class())
        with unwrapped():
            return await self._stack.__aexit__(*((kind, error, trace) if cancelled else (None, None, None)))

    async def _start_first(self) -> None:
        slot = self._slots.add()
        self._tasks.start_soon(self._keep, slot)
        await slot.ready.wait()
        if slot.error is not None:
            raise self._fatal or slot.error

    _fatal: ConfigError | None = None

    def resize(self, size: int) -> None:
        """Grow to ``size`` slots. (A pool never shrinks while it runs: its workers may be leased.)"""
        while len(self._slots.all) < size:
            self._tasks.start_soon(self._keep, self._slots.add())

    @property
    def size(self) -> int:
        """The number of slots."""
        return len(self._slots.all)

    # ---- leases ----

    def share_out(self, slots: int) -> None:
        """From now on no more than so many leases are asked for at once: NoSlot where even they are too many."""
        self._slots.shared_out = slots
        self._slots.hand_out()

    async def acquire(self) -> Lease:
        """Wait for a ready slot and lease it. EnvStartError when no worker can start, NoSlot: see ``share_out``."""
        slot = await self._slots.take()
        return Lease(slot, self.config, self.catalogue)

    async def release(self, lease: Lease) -> None:
        """End the lease's trial process, if it is not to be reused, and give the slot to the next one."""
        with anyio.CancelScope(shield=True):
            try:
                await lease.end()
                worker = lease.slot.worker
                limit = self.config.max_trials_per_worker
                if worker is not None and limit is not None and lease.slot.trials_of_worker >= limit:
                    await worker.stop()
                    lease.slot.lose(worker)  # now, or the slot would be handed out with it
            finally:
                self._slots.give_back(lease.slot)

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Lease]:
        """A slot for the length of the block."""
        lease = await self.acquire()
        try:
            yield lease
        finally:
            await self.release(lease)

    # ---- workers ----

    async def _keep(self, slot: Slot) -> None:
        """Keep a worker on ``slot``: start it, wait until it is gone, start the next one."""
        streak = Streak()
        while not self._is_closing():
            failure = await self._one_worker(slot)
            if self._is_closing():  # it was killed, or its connection closed, on purpose
                return
            if failure is None:
                streak = Streak()
                continue
            if isinstance(failure, ConfigError):
                self._fatal = failure
            pause = streak.pause_after(failure, time.monotonic(), loaded=bool(self.catalogue))
            if self._fatal or pause is None:
                slot.error = streak.reason(failure)
                slot.advance(WorkerEvent.GIVE_UP)
                self._slots.hand_out()
                return
            await anyio.sleep(pause)

    async def _one_worker(self, slot: Slot) -> CorralError | None:
        """Start a worker and wait until it is gone; what was wrong with it, if it was of no use."""
        try:
            worker = await self._start_worker(slot)
        except (EnvStartError, ConfigError, ProtocolError) as error:
            if not self._is_closing():
                slot.advance(WorkerEvent.DIED)
            return error
        ready = time.monotonic()
        await worker.gone.wait()
        was_used = slot.trials_of_worker > 0 or time.monotonic() - ready > STEADY
        slot.lose(worker)
        return None if was_used else LostStart.unused(pid=worker.pid, status=worker.status)

    def _is_closing(self) -> bool:
        return self._closing

    async def _start_worker(self, slot: Slot) -> Worker:
        slot.advance(WorkerEvent.START)
        async with self._starts:
            began = time.monotonic()
            visitor = self._listener.expect()
            try:
                spec = self._spec_of(slot, visitor.ticket)
                worker = Worker(spec, visitor, self._listener, await self._interpreter_for(spec))
                load = replace(self._load, described=bool(self.catalogue))
                loaded = await worker.start(self._tasks, load, self.config.start_timeout, self._what)
            finally:
                self._listener.forget(visitor)
        if self._is_closing():  # it was ready at the moment at which the pool closed, and nobody else knows of it
            await worker.kill()
            raise EnvStartError("the worker pool is closed")
        if not self.catalogue:
            self.catalogue, self.warnings, self.fresh = loaded.catalogue, loaded.warnings, loaded.fresh
        slot.worker, slot.trials_of_worker = worker, 0
        slot.start_seconds = time.monotonic() - began
        slot.advance(WorkerEvent.LOADED)
        if slot.leased:  # its lease outlived the worker before, and goes on with this one
            slot.advance(WorkerEvent.LEASE)
        self._slots.hand_out()
        return worker

    async def _interpreter_for(self, spec: HostSpec) -> Interpreter | Fork:
        """What the worker of ``spec`` is to live in. EnvStartError once the pool is closing."""
        if await self._nursery.is_ready():
            return self._nursery.worker(spec.log_path, keep_log=spec.keep_log)
        if self._is_closing():
            raise EnvStartError("the worker pool is closed")
        return Interpreter(spec.log_path, keep_log=spec.keep_log, limiter=self._limiter)

    def _spec_of(self, slot: Slot, ticket: Ticket) -> HostSpec:
        work_root = self._folder / f"slot-{slot.index}"
        work_root.mkdir(exist_ok=True)
        keep = self.config.log_dir is not None
        logs = Path(self.config.log_dir) if self.config.log_dir is not None else self._folder
        log_path = (logs / f"slot-{slot.index}.log").resolve()
        spawns = self.config.fresh == "spawn"
        return HostSpec(ticket, slot.index, str(work_root), str(log_path), keep, self._main, stays_clean=spawns)

    async def _shut_down(self) -> None:
        self._closing = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(SHUTDOWN_PATIENCE):
                async with anyio.create_task_group() as stopping:
                    for slot in self._slots.all:
                        if not slot.state.is_over:
                            slot.advance(WorkerEvent.STOP)
                        if slot.worker is not None:
                            stopping.start_soon(slot.worker.stop)
            self._slots.hand_out()
            await self._nursery.end()
            self._tasks.cancel_scope.cancel()

    # ---- what it tells ----

    def statistics(self) -> PoolStatistics:
        """The pool at this moment."""
        slots = self._slots.all
        states = [slot.state for slot in slots]
        return PoolStatistics(
            size=len(slots),
            idle=states.count(WorkerState.READY),
            leased=sum(slot.leased for slot in slots),
            starting=states.count(WorkerState.STARTING),
            restarts=sum(slot.restarts for slot in slots),
            fresh=self.fresh,
            workers=tuple(_statistics_of(slot) for slot in slots),
            nursery_pid=self._nursery.pid,
        )


def _statistics_of(slot: Slot) -> WorkerStatistics:
    return WorkerStatistics(
        slot=slot.index,
        state=slot.state.value,
        pid=slot.worker.pid if slot.worker else None,
        trial_pid=slot.process.pid if slot.process else None,
        trials=slot.trials,
        restarts=slot.restarts,
        busy_s=slot.busy_seconds,
        start_s=slot.start_seconds,
        losses=tuple(slot.losses),
    )


def _make_log_folder(folder: str | os.PathLike[str]) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"log_dir cannot be used: {error}") from None


def _pickle(build_envs: BuildEnvs) -> bytes:
    try:
        return bytes(cloudpickle.dumps(build_envs, protocol=5))
    except Exception as error:
        record = ErrorRecord.of(error)
        raise SerializationError(
            f"the builder {describe_builder(build_envs)} cannot be sent to workers: {record}; "
            "make what cannot be sent (locks, handles, connections) inside the function",
            record=record,
        ) from None


@contextlib.contextmanager
def _quiet_reaper() -> Any:
    """Keep a line of asyncio's from the user that says nothing to them.

    On Python 3.11, when a child ends by itself, asyncio and subprocess race for its exit status; the loser warns of an
    "Unknown child process". The worker's own report holds the status that counts.
    """

    def keep(record: logging.LogRecord) -> bool:
        return "Unknown child process" not in record.msg

    logger = logging.getLogger("asyncio")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
