"""Where a trial lives: what the service asks of it, and the in-process kind. The pooled kind is the pool's Lease."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Protocol

from corral.errors import NotFound
from corral.pool.backend import Asked
from corral.pool.messages import Closed, Opened, ProcessEnded
from corral.runtime import TrialRuntime
from corral.source import EnvironmentSource
from corral.threads import call_blocking
from corral.types import Action, TrialSpec, WorkerRef


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
    is asked of that trial.
    """

    worker: WorkerRef | None = None

    def __init__(self, source: EnvironmentSource, work_root: Path, *, seed_globals: bool) -> None:
        self._source = source
        self._work_root = work_root
        self._seed_globals = seed_globals
        self._runtime: TrialRuntime | None = None
        self._abandoned = threading.Event()

    async def prepare(self, task_id: str) -> None:
        """There is nothing to do."""

    async def open(self, spec: TrialSpec) -> Opened:
        """Open the runtime."""
        self._runtime = await call_blocking(self._open, spec)
        return Opened(str(self._runtime.workspace))

    def _open(self, spec: TrialSpec) -> TrialRuntime:
        prototype = self._source.here()[spec.task_id]
        return TrialRuntime(prototype, spec, self._work_root, seed_globals=self._seed_globals)

    def ask(self, runtime_id: str, action: Action, arguments: tuple[Any, ...], phase: str) -> Asked:
        """Ask it."""
        return self._perform(runtime_id, action, arguments)

    async def _perform(self, runtime_id: str, action: Action, arguments: tuple[Any, ...]) -> Any:
        if self._runtime is None or self._abandoned.is_set():
            raise NotFound("trial", runtime_id)
        try:
            return await call_blocking(self._runtime.perform, action, arguments)
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled: the call is given up
                self._abandoned.set()
            raise

    async def close_trial(self, runtime_id: str, *, last: bool = False) -> Closed:
        """Close it."""
        if self._runtime is None:
            raise NotFound("trial", runtime_id)
        return Closed(tuple(await call_blocking(self._runtime.close)))

    async def kill(self) -> None:
        """Ask nothing more of it."""
        self._abandoned.set()

    def end_of_process(self) -> None:
        """The process is shared."""

    def last_output(self) -> str:
        """Not known: the process is shared."""
        return ""
