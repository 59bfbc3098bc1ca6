"""SUPERVISOR SIDE. A lease: one slot, held by one trial, or by one episode for all its trials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import anyio

from corral.errors import NotFound, TrialError, WorkerDied
from corral.pool.backend import Asked, SlotProcess, SlotWorker, result_of
from corral.pool.config import WorkerPoolConfig
from corral.pool.messages import NOBODY, Close, Closed, Open, Opened, Perform, ProcessEnded
from corral.pool.slots import Slot
from corral.types import Action, TaskInfo, TrialSpec, WorkerRef

ANSWER_PATIENCE = 5.0
"""Seconds that a process which has served, and is to serve again, may take to say that it is there."""
MAX_TRIES = 3
"""Workers in a row that may be gone before they made a trial process, and trial processes before they read that a trial
is theirs, until that trial is charged for it."""


class Lease:
    """The holder's side of a slot. Opens trials in its trial process, which starts with the first of them.

    After its trial process died, the next ``open`` gets a new one: on the same worker, or on the worker's replacement.
    """

    def __init__(self, slot: Slot, config: WorkerPoolConfig, catalogue: Mapping[str, TaskInfo]) -> None:
        self.slot = slot
        self._config = config
        self._catalogue = catalogue
        self._began = time.monotonic()
        self._prepared = False
        self._process: SlotProcess | None = None
        """The one that was used last: the slot forgets it with its worker, and then it still tells how it ended."""

    @property
    def worker(self) -> WorkerRef:
        """Where it is: slot, pid of the worker, pid of the trial process, and the node where there are several."""
        worker, process = self.slot.worker, self.slot.process
        if worker is None:
            return WorkerRef(self.slot.index, 0)
        return WorkerRef(self.slot.index, worker.pid, process.pid if process else None, worker.ref.node)

    async def prepare(self, task_id: str) -> None:
        """Have a trial process for the task: ``open`` then only opens. NotFound for an unknown task."""
        if task_id not in self._catalogue:
            raise NotFound("task", task_id, list(self._catalogue))
        self._process = await self._process_for(task_id)
        self._prepared = True

    async def open(self, spec: TrialSpec) -> Opened:
        """Open a trial runtime. EnvStartError if its environment cannot be set up, NotFound for an unknown task."""
        self.slot.trials += 1
        self.slot.trials_of_worker += 1
        unheard = 0
        while True:
            if not self._prepared:
                await self.prepare(spec.task_id)
            self._prepared, process = False, self._living()
            try:
                opened = await process.request(Open(spec), f"set-up of {spec.task_id}#{spec.trial_index}")
            except WorkerDied:
                unheard += process.unheard
                if process.unheard and unheard < MAX_TRIES:  # the trial had not begun: it is not to pay for that death
                    continue
                raise
            except TrialError:  # nobody has said what its set-up left behind
                process.clean = False
                raise
            assert isinstance(opened, Opened)
            process.log_start = opened.log_start
            return opened

    async def _process_for(self, task_id: str) -> SlotProcess:
        if self.slot.process is not None and await self._still_serves(self.slot.process):
            return self.slot.process
        wanted = self._catalogue[task_id].fresh
        fresh = self._config.fresh if wanted == "auto" else wanted
        for _ in range(MAX_TRIES):
            worker = await self._worker()
            self.slot.process = await worker.start_process(fresh)
            if self.slot.process is not None:
                return self.slot.process
            self.slot.lose(worker)  # no trial had begun: its death is not the trial's to pay for
        raise WorkerDied(f"{MAX_TRIES} workers of slot {self.slot.index} in a row were gone before they made a process")

    async def _still_serves(self, process: SlotProcess) -> bool:
        """Whether a process that served earlier trials is there: one that died since is no fault of the next trial.

        Nor is memory that other leases left filled: a process that holds half of its limit is ended here.
        """
        if not process.alive:
            return False
        limit = self._config.memory_bytes
        is_taken_over = process is not self._process
        if is_taken_over and limit is not None and await process.memory() > limit / 2:
            await process.finish()
            return False
        return await self._answers(process)

    async def _answers(self, process: SlotProcess) -> bool:
        """Whether a process that has served will answer. One that is asked and does not, stopped or busy, is killed.

        Where no trial has left a handler, a thread or anything else, only the thread is there that has answered before.
        """
        if process.clean and process.is_seen():
            return True
        try:
            with anyio.move_on_after(ANSWER_PATIENCE):
                await process.request(Close(NOBODY), "a question whether it is there")
        except NotFound:  # so it answers
            return True
        except TrialError:
            return False
        return False

    async def _worker(self) -> SlotWorker:
        while (worker := self.slot.worker) is None:  # checked again after the wait: it may be lost meanwhile
            if self.slot.state.is_over:
                raise self.slot.error or NotFound("worker", f"slot {self.slot.index}")
            await self.slot.ready.wait()
        return worker

    async def perform(self, runtime_id: str, action: Action, arguments: tuple[Any, ...], phase: str) -> Any:
        """Ask something of an open trial. Raises the TrialError that ended it, or what the request failed with."""
        return await result_of(self.ask(runtime_id, action, arguments, phase))

    def ask(self, runtime_id: str, action: Action, arguments: tuple[Any, ...], phase: str) -> Asked:
        """The same: Done, if it is answered at once, else what waits for the answer, to be awaited next."""
        return self._living().ask(Perform(runtime_id, action, arguments), phase)

    async def close_trial(self, runtime_id: str, *, last: bool = False) -> Closed:
        """Close an open trial. ``last``: none follows in this lease, so a process that is its own ends at once."""
        process = self._living()
        closed = await process.request(Close(runtime_id, last and self._config.reuse != "worker"), "close")
        assert isinstance(closed, Closed)
        process.log_start = closed.log_end
        process.clean = process.clean and not closed.warnings
        return closed

    def _living(self) -> SlotProcess:
        if self._process is None:
            raise NotFound("trial process", f"slot {self.slot.index}")
        return self._process

    async def kill(self, doom: TrialError | None = None) -> None:
        """Kill the trial process; ``doom`` is what its requests then raise."""
        if (process := self._process or self.slot.process) is not None:
            await process.kill(doom)

    def end_of_process(self) -> ProcessEnded | None:
        """How the trial process that was used last ended; None while it goes on."""
        return self._process.end if self._process else None

    def last_output(self) -> str:
        """The tail of what the trial process printed for its last trial, once it has ended."""
        return self._process.output if self._process else ""

    async def end(self) -> None:
        """End the trial process, unless it is to be reused. Not to be cancelled: the pool sees to that."""
        process = self.slot.process
        if process is not None and not (self._config.reuse == "worker" and process.alive):
            await process.finish()
            self.slot.process = None
        self.slot.busy_seconds += time.monotonic() - self._began
