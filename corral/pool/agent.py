"""NODE SIDE. The agent: all of a pool that is local to a machine. Starts workers, watches their memory, ends them.

Guarantees
    * Workers load staggered: at most as many at once as there are processors.
    * Those that are expected are forked at once, and connect, but load nothing of the user's before they are asked for.
    * Leaving it ends every worker that is left and all that it started, the nursery, and the folder of the run.
Assumptions
    Which slots there are, and when a worker is replaced, is the pool's business: in this process, or far away.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio

from corral.errors import EnvStartError, ErrorRecord
from corral.lean import dataclass
from corral.pool.backend import SlotSpec
from corral.pool.channel import open_listener
from corral.pool.config import available_cpus
from corral.pool.exits import Exits
from corral.pool.hello import Ticket
from corral.pool.interpreter import Interpreter
from corral.pool.log_watch import watch_logs
from corral.pool.main_script import MainScript, taken_from_corral
from corral.pool.memory import MemoryWatch
from corral.pool.messages import HostSpec, Loaded
from corral.pool.nursery import Fork, Nursery
from corral.pool.slot_logs import SlotLogs
from corral.pool.trial_handle import TrialProcess
from corral.pool.worker import Worker
from corral.scratch import scratch_folder

FORK_PATIENCE = 10.0
"""Seconds that a worker which is made ahead may take to connect."""
SHUTDOWN_PATIENCE = 10.0
"""Seconds for all workers to end by themselves."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What an agent is told of the pool."""

    main: MainScript | None
    """What workers import before they load."""
    log_dir: str | None
    """Where the logs of its slots are kept; None: in a temporary folder, for the run only."""
    memory_limit: int | None
    """Bytes that a trial process and all below it may hold."""
    by_value: bool = True
    """Whether the builder was pickled with code in it, which cloudpickle reads."""


class _Ahead:
    """A worker that is made before it is asked for."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self.settled = anyio.Event()
        """It is there, or will never be."""


class Agent:
    """An asynchronous context manager, on asyncio or trio."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._expected = 0
        """Slots that will be asked for, or were, numbered from 0."""
        self._workers: set[Worker] = set()
        self._loading: set[Worker] = set()
        """Those that build environments: they may have started something already."""
        self._ahead: dict[int, _Ahead] = {}
        """By slot: workers that nobody has asked for yet."""
        self._closing = False

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(_quiet_reaper())
            self._folder = Path(stack.enter_context(scratch_folder()))
            self._listener = await stack.enter_async_context(open_listener(self._folder))
            kept = self._settings.log_dir
            self._logs = SlotLogs(self._folder if kept is None else Path(kept))
            stack.callback(self._logs.close)
            self._limiter = anyio.CapacityLimiter(math.inf)
            self._starts = anyio.CapacityLimiter(available_cpus())
            self._exits = Exits(max(1, available_cpus() - 1))  # one is the supervisor's
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._nursery = Nursery(self._folder, self._listener, self._limiter, self._tasks, _modules(self._settings))
            stack.push_async_callback(self._shut_down)
            self._tasks.start_soon(MemoryWatch(self._settings.memory_limit).watch, self._processes)
            self._tasks.start_soon(watch_logs, partial(self._folder.glob, "*.log"))  # not those of a log_dir
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    def expect(self, slots: int) -> None:
        """So many slots will be asked for, numbered from 0."""
        for slot in range(self._expected, slots):
            self._ahead[slot] = ahead = _Ahead()
            self._tasks.start_soon(self._fork_ahead, slot, ahead)
        self._expected = max(self._expected, slots)

    @property
    def nursery_pid(self) -> int | None:
        """The process of which workers are forked, while there is one."""
        return self._nursery.pid

    def _processes(self) -> list[TrialProcess]:
        return [process for worker in self._workers for process in worker.processes]

    async def start(self, spec: SlotSpec) -> tuple[Worker, Loaded, float]:
        """A worker that has loaded, what it said, and the seconds from its spawn until then.

        EnvStartError, or ConfigError, if it could not; then it is gone.
        """
        worker = await self._taken_from_ahead(spec.slot)
        try:
            async with self._starts:
                began = time.monotonic()
                worker = worker or await self._spawn(spec.slot, spec.patience, spec.node)
                used = time.monotonic() - began
                self._loading.add(worker)
                loaded = await worker.load(spec.load, spec.patience, spec.what, used=used)
        except BaseException:
            if worker is not None:
                await worker.kill()
            raise
        finally:
            self._loading.discard(worker)  # where there is none, it is not in it
        if self._is_closing():  # it was ready at the moment at which the pool closed, and nobody else knows of it
            await worker.kill()
            raise EnvStartError("the worker pool is closed")
        self._workers.add(worker)
        self.tell_when_gone(worker, lambda: self._workers.discard(worker))
        return worker, loaded, time.monotonic() - began

    async def _spawn(self, slot: int, patience: float, node: str | None = None) -> Worker:
        visitor = self._listener.expect()
        with contextlib.ExitStack() as failed:
            try:
                place = self._place(slot, visitor.ticket)
                failed.callback(self._logs.give_back, slot)
                interpreter = await self._interpreter_for(place)
                worker = Worker(place, visitor, self._listener, interpreter, self._exits, node)
                await worker.spawn(self._tasks, patience)
            except OSError as error:  # the folder was removed, or its disk is full
                raise EnvStartError.because("making a place for a worker", ErrorRecord.of(error)) from error
            finally:
                self._listener.forget(visitor)
            failed.pop_all()
        self.tell_when_gone(worker, lambda: self._logs.give_back(slot))  # first of all who wait for that
        return worker

    async def _fork_ahead(self, slot: int, ahead: _Ahead) -> None:
        try:
            if await self._nursery.is_ready():
                with contextlib.suppress(EnvStartError):  # who asks for it has another one made
                    ahead.worker = await self._spawn(slot, FORK_PATIENCE)
        finally:
            ahead.settled.set()

    async def _taken_from_ahead(self, slot: int) -> Worker | None:
        ahead = self._ahead.get(slot)
        if ahead is None:
            return None
        await ahead.settled.wait()
        self._ahead.pop(slot, None)
        return ahead.worker if ahead.worker is not None and not ahead.worker.gone.is_set() else None

    def tell_when_gone(self, worker: Worker, call: Callable[[], object]) -> None:
        """Call ``call`` once the worker is gone."""

        async def wait() -> None:
            await worker.gone.wait()
            call()

        self._tasks.start_soon(wait)

    def _is_closing(self) -> bool:
        return self._closing

    def _place(self, slot: int, ticket: Ticket) -> HostSpec:
        work_root = self._folder / f"slot-{slot}"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        work_root.mkdir(exist_ok=True)
        log_path = self._logs.take(slot).resolve()
        kept, main = self._settings.log_dir is not None, self._settings.main
        return HostSpec(ticket, slot, str(work_root), str(log_path), kept, os.getpid(), main)

    async def _interpreter_for(self, spec: HostSpec) -> Interpreter | Fork:
        """What the worker of ``spec`` is to live in. EnvStartError once the agent is closing."""
        if await self._nursery.is_ready():
            return self._nursery.worker(spec.log_path, keep_log=spec.keep_log)
        if self._is_closing():
            raise EnvStartError("the worker pool is closed")
        return Interpreter(spec.log_path, keep_log=spec.keep_log, limiter=self._limiter)

    async def aclose(self) -> None:
        """Start nothing more, and end what is left, within SHUTDOWN_PATIENCE plus a kill."""
        self._closing = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(SHUTDOWN_PATIENCE):
                async with anyio.create_task_group() as stopping:
                    for worker in self._workers:
                        stopping.start_soon(worker.stop)
                    for worker in self._loading:  # before the nursery, which takes them, but not what they have started
                        stopping.start_soon(worker.kill)
                    for ahead in self._ahead.values():
                        if ahead.worker is not None:
                            stopping.start_soon(ahead.worker.kill)
            await self._nursery.end()

    async def _shut_down(self) -> None:
        await self.aclose()
        self._tasks.cancel_scope.cancel()


def _modules(settings: AgentSettings) -> tuple[str, ...]:
    """What every worker will load, of Corral's or of what it is made with: the nursery does so once for all."""
    taken = taken_from_corral(settings.main) if settings.main is not None else set()
    return tuple(sorted(taken | {"cloudpickle"} if settings.by_value else taken))


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
