"""What a display knows of a run while it goes: counts, and the trials that run. No output.

Guarantee: hearing never raises into the run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from corral.plain import plain
from corral.report.text import clock_time, count, rate, waits
from corral.types import TaskTrialResult, TrialKey, WorkerRef

Clock: TypeAlias = Callable[[], float]
"""Seconds by a monotonic clock."""


class Silent:
    """Hears everything and shows nothing."""

    def planned(self, total: int, already_recorded: int) -> None:
        """Nothing."""

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """Nothing."""

    def placed(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """Nothing."""

    def phase(self, key: TrialKey, phase: str) -> None:
        """Nothing."""

    def recorded(self, result: TaskTrialResult) -> None:
        """Nothing."""

    def waiting(self, counts: Mapping[str, int]) -> None:
        """Nothing."""

    def pool(self, statistics: object) -> None:
        """Nothing."""

    def finished(self) -> None:
        """Nothing."""


@dataclass(slots=True)
class Running:
    """A trial that runs."""

    key: TrialKey
    worker: WorkerRef | None
    since: float
    phase: str = "starting"
    phase_since: float = 0.0
    is_placed: bool = False

    @property
    def place(self) -> str:
        """``slot 3`` or ``in-process``; empty while it has no place."""
        if self.worker is not None:
            return f"slot {self.worker.slot}"
        return "in-process" if self.is_placed else ""


@dataclass
class Tally(Silent):
    """Counts what it hears: the state behind every display. Pure but for the clock that it is given."""

    clock: Clock = time.monotonic
    total: int = 0
    recorded_before: int = 0
    recorded_now: int = 0
    graded: int = 0
    successes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    running: dict[TrialKey, Running] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)
    pool_statistics: dict[str, Any] = field(default_factory=dict)
    memory: int | None = None
    """Bytes of this process, the workers and the trial processes; None without a pool."""
    start: float = 0.0

    def planned(self, total: int, already_recorded: int) -> None:
        """Start counting."""
        self.total, self.recorded_before, self.start = total, already_recorded, self.clock()

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """A further attempt of a trial counts from now."""
        now = self.clock()
        self.running[key] = Running(key, worker, now, phase_since=now)

    def placed(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """A trial that is not known as running is left out."""
        if (trial := self.running.get(key)) is not None:
            trial.worker, trial.is_placed = worker, True

    def phase(self, key: TrialKey, phase: str) -> None:
        """A trial that is not known as running is left out; the same phase again is no news."""
        trial = self.running.get(key)
        if trial is not None and trial.phase != phase:
            trial.phase, trial.phase_since = phase, self.clock()

    def recorded(self, result: TaskTrialResult) -> None:
        """The trial runs no longer, if it ever did."""
        self.running.pop(result.key, None)
        self.recorded_now += 1
        self.graded += result.graded
        self.successes += result.graded and result.success
        if result.failure is not None:
            self.failures[result.failure.value] += 1

    def waiting(self, counts: Mapping[str, int]) -> None:
        """The latest counts stand."""
        self.waits = dict(counts)

    def pool(self, statistics: object) -> None:
        """The latest statistics stand."""
        data = plain(statistics)
        self.pool_statistics = data if isinstance(data, dict) else {}
        self.memory = _memory(self.pool_statistics.get("workers"))

    @property
    def done(self) -> int:
        """Trials with a record, those of earlier runs of the session included."""
        return self.recorded_before + self.recorded_now

    @property
    def elapsed(self) -> float:
        """Seconds since the run was planned."""
        return max(0.0, self.clock() - self.start)

    @property
    def throughput(self) -> float | None:
        """Trials per second in this run; None before the first."""
        return self.recorded_now / self.elapsed if self.recorded_now and self.elapsed else None

    @property
    def remaining(self) -> float | None:
        """Seconds until the end at the throughput so far; None before the first trial."""
        pace = self.throughput
        return max(0, self.total - self.done) / pace if pace else None

    def oldest(self) -> list[Running]:
        """The running trials, those first that have run longest: a hang comes to the top."""
        return sorted(self.running.values(), key=lambda trial: (trial.since, trial.key))

    def success_text(self) -> str:
        """How many succeeded; of this run's trials, where earlier runs recorded some."""
        if not self.recorded_before:
            return f"{self.successes} succeeded"
        return f"{self.successes} of {self.recorded_now} new ones succeeded"

    def waits_text(self) -> str:
        """How many trials wait for which limit; empty where none does."""
        return waits(self.waits)

    def pace_text(self) -> str:
        """Time gone, throughput and time to go."""
        parts = [clock_time(self.elapsed)]
        if self.throughput is not None:
            parts.append(rate(self.throughput))
        if self.remaining:
            parts.append(f"about {clock_time(self.remaining)} to go")
        return ", ".join(parts)

    def pool_text(self) -> str:
        """``pool of 8: 6 leased, 2 idle, 1 restart``; empty without a pool."""
        pool = self.pool_statistics
        if "size" not in pool:
            return ""
        shown = [f"{pool[name]} {name}" for name in ("leased", "idle", "starting") if pool.get(name)]
        if nodes := pool.get("nodes"):
            lost = sum(node.get("lost") is not None for node in nodes)
            shown.append(f"{count(len(nodes) - lost, 'node')}" + (f", {lost} lost" if lost else ""))
        if pool.get("restarts"):
            shown.append(count(pool["restarts"], "restart"))
        if self.memory:
            shown.append(f"{self.memory / 2**30:.1f} GiB of memory")
        return f"pool of {pool['size']}" + (f": {', '.join(shown)}" if shown else "")


def _memory(workers: object) -> int | None:
    """Bytes of this process and of those of this machine that the pool's statistics name."""
    if not isinstance(workers, list):
        return None
    import psutil  # not every display is of a pool

    here = [worker for worker in workers if isinstance(worker, dict) and worker.get("node") is None]
    pids = [worker.get(name) for worker in here for name in ("pid", "trial_pid")]
    total = 0
    for pid in {os.getpid(), *(pid for pid in pids if isinstance(pid, int))}:
        with contextlib.suppress(psutil.Error):  # it has just ended
            total += psutil.Process(pid).memory_info().rss
    return total
