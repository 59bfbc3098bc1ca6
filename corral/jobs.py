"""Background jobs of one trial: bounded, cancellable, and never in the way of the interpreter's exit.

Guarantees: at most ``limit`` jobs run at once and the others wait in the order of their start; a cancelled job's
late result is dropped; ids count from 1, so that they are the same in every run. Each job has a daemon thread of its
own: a ThreadPoolExecutor's threads would hold the interpreter until the last job ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import field
from enum import StrEnum
from typing import Any

from corral.errors import CorralError, ErrorRecord, TrialError
from corral.lean import dataclass

__all__ = ["Fatal", "JobStatus", "Jobs", "NoSuchJob", "job_cancelled"]

_cancelled: ContextVar[threading.Event | None] = ContextVar("corral_job_cancelled", default=None)


def job_cancelled() -> bool:
    """Whether the background job that calls this was cancelled; False outside a job. Long jobs ask now and then."""
    event = _cancelled.get()
    return event is not None and event.is_set()


class Fatal(Exception):
    """Wraps an error that ends the trial, so that it differs from the same error raised by a tool's author."""

    def __init__(self, error: TrialError) -> None:
        self.error = error
        super().__init__(str(error))


class NoSuchJob(CorralError, LookupError):
    """A job id that this trial never gave out."""

    def __init__(self, job_id: str, known: list[str]) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id!r}" + (f"; the jobs are {', '.join(known)}" if known else " yet"))


class JobStatus(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing can follow."""
        return self in (JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass
class _Job:
    id: str
    tool: str
    run: Callable[[], Any]
    status: JobStatus = JobStatus.WAITING
    result: Any = None
    error: str | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def view(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"job_id": self.id, "tool": self.tool, "status": self.status.value}
        if self.status is JobStatus.DONE:
            seen["result"] = self.result
        if self.status is JobStatus.FAILED:
            seen["error"] = self.error
        return seen


class Jobs:
    """The background jobs of one trial. Safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._jobs: dict[str, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._running = 0
        self._closed = False
        self._changed = threading.Condition()
        self.fatal: BaseException | None = None
        """What broke the trial from inside a job: a request to exit, or a result that is no data."""

    def start(self, tool: str, run: Callable[[], Any]) -> str:
        """Start ``run`` as soon as fewer than ``limit`` jobs run; return its id at once."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the trial is closed: no job can start")
            job = _Job(f"job-{len(self._jobs) + 1}", tool, run)
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._fill()
        return job.id

    def poll(self, job_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        """Say where the job stands, after waiting up to ``wait_s`` seconds for its end."""
        with self._changed:
            job = self._find(job_id)
            self._changed.wait_for(lambda: job.status.is_final, timeout=max(0.0, wait_s))
            return job.view()

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel the job unless it has ended; a running one may notice by ``job_cancelled()``."""
        with self._changed:
            job = self._find(job_id)
            self._cancel(job)
            return job.view()

    def close(self, grace: float = 1.0) -> list[str]:
        """Cancel every job and give the running ones ``grace`` seconds; return the ids of those that still run."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                self._cancel(job)
            threads = [(job.id, job.thread) for job in self._jobs.values() if job.thread is not None]
        end = time.monotonic() + grace
        for _, thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return [job_id for job_id, thread in threads if thread.is_alive()]

    def let_go(self) -> None:
        """Forget the jobs, which hold whose they are."""
        with self._changed:
            self._jobs.clear()

    def counts(self) -> dict[str, int]:
        """How many jobs stand where; only what there is."""
        with self._changed:
            counts: dict[str, int] = {}
            for job in self._jobs.values():
                counts[job.status.value] = counts.get(job.status.value, 0) + 1
            return counts

    def _find(self, job_id: str) -> _Job:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise NoSuchJob(job_id, list(self._jobs)) from None

    def _cancel(self, job: _Job) -> None:
        if not job.status.is_final:
            job.status = JobStatus.CANCELLED
            job.cancel.set()
            self._changed.notify_all()

    def _fill(self) -> None:
        """Start waiting jobs while there is room. The caller holds the lock."""
        while self._waiting and self._running < self.limit and not self._closed:
            job = self._waiting.popleft()
            if job.status is not JobStatus.WAITING:
                continue
            job.status = JobStatus.RUNNING
            self._running += 1
            job.thread = threading.Thread(
                target=copy_context().run, args=(self._work, job), name=f"corral-{job.id}", daemon=True
            )
            job.thread.start()

    def _work(self, job: _Job) -> None:
        _cancelled.set(job.cancel)
        status, result, error = JobStatus.DONE, None, None
        fatal: BaseException | None = None
        try:
            result = job.run()
        except Fatal as raised:
            status, error, fatal = JobStatus.FAILED, str(ErrorRecord.of(raised.error)), raised.error
        except Exception as raised:
            status, error = JobStatus.FAILED, str(ErrorRecord.of(raised))
        except BaseException as raised:
            status, error, fatal = JobStatus.FAILED, str(ErrorRecord.of(raised)), raised
        with self._changed:
            # A cancelled job still counts as running until here: its thread holds what it uses.
            self._running -= 1
            if job.status is JobStatus.RUNNING:
                job.status, job.result, job.error = status, result, error
                self.fatal = self.fatal or fatal
            self._fill()
            self._changed.notify_all()
