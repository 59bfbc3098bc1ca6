"""Where a trial lives: what the service asks of it, and the in-process kind. The pooled kind is the pool's Lease."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, TypeVarTuple

from corral.errors import NotFound
from corral.pool.backend import Asked
from corral.pool.messages import Closed, Opened, ProcessEnded
from corral.runtime import TrialRuntime
from corral.source import EnvironmentSource
from corral.threads import call_blocking, start_blocking
from corral.types import Action, TrialSpec, WorkerRef

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TrialHost(Protocol):
    """One or more trials, live, in some process."""

    @property
    def worker(self) -> WorkerRef | None:
        """The worker, or None in-process."""

    async def prepare(self, task_id: str) -> None:
        """Have what ``open`` needs: a process."""

    async def open(self, spec: TrialSpec) -> Opened:
        """Open a trial runtime."""

    def ask(self, runtime_id: str, action: Action, arguments: tuple[Any, ...], phase: str) -> Asked:
        """Ask something of it; ``phase`` says in words what. What it gives is the answer, or is awaited next."""

    async def close_trial(self, runtime_id: str, *, last: bool = False) -> Closed:
        """Close it. ``last``: no other trial will be opened here."""

    async def kill(self) -> None:
        """End whatever runs in it, now. No more can be asked of its trials."""

    def end_of_process(self) -> ProcessEnded | None:
        """How its process ended; None while that goes on, or is shared."""

    def last_output(self) -> str:
        """The tail of what its process printed, once that has ended."""


class InProcessHost:
    """A trial in this process, its calls in daemon threads.

    A thread cannot be killed: a call that is given up goes on by itself, its late answer is dropped, and nothing more
    is asked of that trial. ``is_busy`` and ``rest`` are for those who must not run beside it.
    """

    worker: WorkerRef | None = None

    def __init__(self, source: EnvironmentSource, work_root: Path, *, seed_globals: bool) -> None:
        self._source = source
        self._work_root = work_root
        self._seed_globals = seed_globals
        self._runtime: TrialRuntime | None = None
        self._abandoned = threading.Event()
        self._running = 0
        """Calls that run, those that were given up among them."""
        self._changes = threading.Condition()
        """Held to change what is above, from the loop and from threads."""

    async def prepare(self, task_id: str) -> None:
        """There is nothing to do."""

    async def open(self, spec: TrialSpec) -> Opened:
        """Open the runtime. Where this is given up, what is opened all the same is closed in that moment."""
        try:
            runtime = await self._call(self._open, spec)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._forsake_runtime()
            raise
        return Opened(str(runtime.workspace))

    def _open(self, spec: TrialSpec) -> TrialRuntime:
        prototype = self._source.here()[spec.task_id]
        runtime = TrialRuntime(prototype, spec, self._work_root, seed_globals=self._seed_globals)
        with self._changes:
            self._runtime, is_late = runtime, self._abandoned.is_set()
        if is_late:  # nobody else knows of it
            runtime.close()
        return runtime

    def _forsake_runtime(self) -> None:
        """Its opening is given up. Where it is there already its thread looks no more, and it is closed from here."""
        with self._changes:
            self._abandoned.set()
            runtime = self._runtime
        if runtime is not None:
            start_blocking(self._counted(runtime.close))

    def ask(self, runtime_id: str, action: Action, arguments: tuple[Any, ...], phase: str) -> Asked:
        """Ask it."""
        return self._perform(runtime_id, action, arguments)

    async def _perform(self, runtime_id: str, action: Action, arguments: tuple[Any, ...]) -> Any:
        if self._runtime is None or self._abandoned.is_set():
            raise NotFound("trial", runtime_id)
        try:
            return await self._call(self._runtime.perform, action, arguments)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the call is given up
                self._abandoned.set()
            raise

    async def close_trial(self, runtime_id: str, *, last: bool = False) -> Closed:
        """Close it."""
        if self._runtime is None:
            raise NotFound("trial", runtime_id)
        return Closed(tuple(await self._call(self._runtime.close)))

    async def kill(self) -> None:
        """Ask nothing more of it."""
        self._abandoned.set()

    # ---- what still runs ----

    async def _call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await call_blocking(self._counted(function), *args)

    def _counted(self, function: Callable[[*Ts], T]) -> Callable[[*Ts], T]:
        """``function``, about to run in a thread: it counts as running from now until it returns."""
        with self._changes:
            self._running += 1

        def counted(*args: *Ts) -> T:
            try:
                return function(*args)
            finally:
                with self._changes:
                    self._running -= 1
                    self._changes.notify_all()

        return counted

    @property
    def is_busy(self) -> bool:
        """Whether a call still runs, one that was given up or is yet to be answered."""
        return self._running > 0

    async def rest(self, seconds: float) -> None:
        """Wait until no call runs, or for so long."""
        await call_blocking(self._wait_for_rest, seconds)

    def _wait_for_rest(self, seconds: float) -> None:
        with self._changes:
            self._changes.wait_for(lambda: not self._running, seconds)

    def end_of_process(self) -> None:
        """The process is shared."""

    def last_output(self) -> str:
        """Not known: the process is shared."""
        return ""
