"""SUPERVISOR SIDE. WorkerPool: starts workers, keeps every slot served, leases them, shuts down by one deadline.

Guarantees
    * A slot whose worker is gone gets a new one at once. One whose workers fail in a row, at their start or before they
      are used, gets the next ones later, and is given up in the end: ``starts.Streak`` says when.
    * The first worker starts alone and describes the environments, so a builder that cannot work costs MAX_STARTS
      processes, not MAX_STARTS per slot.
    * Leaving the pool ends every worker and all that it started, on whatever node.
    * That a node is lost is nobody's fault: its slots get workers elsewhere, or as soon as there is a node with room.
Assumptions
    Where workers run, and how, is the backend's business. Time-outs of what runs in a lease are its holder's: fail
    after, kill, spawn.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import cloudpickle

from corral.errors import ConfigError, CorralError, EnvStartError, ErrorRecord, ProtocolError, SerializationError
from corral.lean import dataclass
from corral.pool.agent import AgentSettings
from corral.pool.backend import SlotBackend, SlotSpec, SlotWorker
from corral.pool.config import WorkerPoolConfig
from corral.pool.dask.config import DaskConfig
from corral.pool.entry import refuse_in_worker
from corral.pool.lease import Lease
from corral.pool.lifecycle import WorkerEvent, WorkerState
from corral.pool.local import LocalBackend
from corral.pool.main_script import MainScript
from corral.pool.messages import Load
from corral.pool.places import Places
from corral.pool.slots import Slot, Slots
from corral.pool.starts import STEADY, LostStart, NodeLost, Streak
from corral.source import describe_builder
from corral.types import TaskInfo
from corral.unwrap import unwrapped

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
    node: str | None = None
    """Where its worker is, if there are several nodes."""


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """A node that took, or takes, workers."""

    name: str
    cpus: int
    slots: int
    """Workers there now."""
    lost: str | None = None
    """Why it was lost."""


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
    nodes: tuple[NodeStatistics, ...] = ()
    """Where workers run or ran, if that is not this machine alone."""
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
            self._backend = await stack.enter_async_context(backend_of(self.config, self._load))
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.push_async_callback(self._shut_down)
            self._backend.scale(self.config.workers)
            self._places = Places(self._backend, self._slots)
            await self._start_first()
            self._tasks.start_soon(self._places.even_out, self._renew)
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
        self._backend.scale(size)
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
                if self._is_worn(lease.slot) or self._places.is_crowded(lease.slot):
                    await self._renew(lease.slot)
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
                slot.error, slot.node = streak.reason(failure), None
                slot.advance(WorkerEvent.GIVE_UP)
                self._slots.hand_out()
                return
            await anyio.sleep(pause)

    async def _one_worker(self, slot: Slot) -> CorralError | None:
        """Start a worker and wait until it is gone; what was wrong with it, if it was of no use."""
        try:
            worker = await self._start_worker(slot)
        except (EnvStartError, ConfigError, ProtocolError) as error:
            if slot.state is WorkerState.STARTING:
                slot.advance(WorkerEvent.DIED)
            return None if isinstance(error, NodeLost) else error
        ready = time.monotonic()
        await worker.gone.wait()
        was_used = slot.trials_of_worker > 0 or time.monotonic() - ready > STEADY
        slot.lose(worker)
        is_steady = was_used or worker.fell_with_node
        return None if is_steady else LostStart.unused(pid=worker.pid, status=worker.status)

    def _is_closing(self) -> bool:
        return self._closing

    def _is_worn(self, slot: Slot) -> bool:
        limit = self.config.max_trials_per_worker
        return limit is not None and slot.trials_of_worker >= limit

    async def _renew(self, slot: Slot) -> None:
        """End the worker of a slot that no lease has, or has any more: the next one may be elsewhere."""
        if (worker := slot.worker) is not None:
            await worker.stop()
            slot.lose(worker)  # now, or the slot would be handed out with it

    async def _start_worker(self, slot: Slot) -> SlotWorker:
        node = await self._places.give(slot)
        slot.advance(WorkerEvent.START)
        load = replace(self._load, described=bool(self.catalogue))
        spawned = await self._backend.spawn(node, SlotSpec(slot.index, load, self.config.start_timeout, self._what))
        worker, loaded = spawned.worker, spawned.loaded
        if self._is_closing():
            await worker.kill()
            raise EnvStartError("the worker pool is closed")
        if not self.catalogue:
            self.catalogue, self.warnings, self.fresh = loaded.catalogue, loaded.warnings, loaded.fresh
        slot.worker, slot.trials_of_worker = worker, 0
        slot.start_seconds = spawned.seconds
        slot.advance(WorkerEvent.LOADED)
        if slot.leased:  # its lease outlived the worker before, and goes on with this one
            slot.advance(WorkerEvent.LEASE)
        self._slots.hand_out()
        return worker

    async def _shut_down(self) -> None:
        self._closing = True
        with anyio.CancelScope(shield=True):
            for slot in self._slots.all:
                if not slot.state.is_over:
                    slot.advance(WorkerEvent.STOP)
            await self._backend.aclose()
            self._slots.hand_out()
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
            nodes=self._node_statistics(),
            nursery_pid=self._backend.nursery_pid,
        )

    def _node_statistics(self) -> tuple[NodeStatistics, ...]:
        held = Counter(slot.node for slot in self._slots.all if slot.worker is not None)
        here = [NodeStatistics(node.name, node.cpus, held[node]) for node in self._backend.nodes() if node.name]
        gone = [NodeStatistics(loss.node.name, loss.node.cpus, 0, loss.reason) for loss in self._backend.losses()]
        return tuple(here + gone)


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
        node=slot.node.name or None if slot.node else None,
    )


def backend_of(config: WorkerPoolConfig, load: Load) -> SlotBackend:
    """Where a pool's workers run."""
    settings = agent_settings(config, load)
    if config.backend == "local":
        return LocalBackend(settings)
    from corral.pool.dask.backend import DaskBackend

    return DaskBackend(settings, config.dask or DaskConfig())


def agent_settings(config: WorkerPoolConfig, load: Load) -> AgentSettings:
    """What every agent of a pool is told."""
    logs = None if config.log_dir is None else str(Path(config.log_dir).resolve())
    by_value = b"cloudpickle" in load.builder
    return AgentSettings(MainScript.of_this_process(), logs, config.memory_bytes, by_value=by_value)


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
