"""What a run tells about itself while it goes, and the displays without a terminal.

The runner calls the methods of one ``Progress`` from its event loop. Guarantee of the displays here: none of them
raises into the run, even when its output is gone. ``LiveProgress``, for a terminal, is in ``live`` with rich.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeAlias, runtime_checkable

from corral.errors import ConfigError
from corral.plain import plain
from corral.report.text import clock_time, count, kinds, printable, rate
from corral.types import TaskTrialResult, TrialKey, WorkerRef

if TYPE_CHECKING:
    from corral.report.live import LiveProgress

__all__ = [
    "Callback",
    "LineProgress",
    "LiveProgress",
    "Progress",
    "Running",
    "Silent",
    "Tally",
    "choose",
    "is_terminal",
]

Clock: TypeAlias = Callable[[], float]
"""Seconds by a monotonic clock."""

CALM_SECONDS = 30.0
"""Between two lines of a run that was not asked for any."""

_log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    if name == "LiveProgress":
        from corral.report.live import LiveProgress

        return LiveProgress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@runtime_checkable
class Progress(Protocol):
    """Hears of a run. Every method returns at once."""

    def planned(self, total: int, already_recorded: int) -> None:
        """The run has ``total`` trials, of which a resumed session has recorded some before."""

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """An attempt of the trial has begun."""

    def phase(self, key: TrialKey, phase: str) -> None:
        """The trial is at something else now, such as ``agent`` or ``tool titrate``."""

    def recorded(self, result: TaskTrialResult) -> None:
        """The trial has its final record."""

    def waiting(self, counts: Mapping[str, int]) -> None:
        """How many trials wait for each resource."""

    def pool(self, statistics: object) -> None:
        """The pool's statistics have changed."""

    def finished(self) -> None:
        """The run is over, in whatever way."""


class Silent:
    """Hears everything and shows nothing."""

    def planned(self, total: int, already_recorded: int) -> None:
        """Nothing."""

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
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
        if pool.get("restarts"):
            shown.append(count(pool["restarts"], "restart"))
        if self.memory:
            shown.append(f"{self.memory / 2**30:.1f} GiB of memory")
        return f"pool of {pool['size']}" + (f": {', '.join(shown)}" if shown else "")


def _memory(workers: object) -> int | None:
    """Bytes of this process and of those that the pool's statistics name."""
    if not isinstance(workers, list):
        return None
    import psutil  # not every display is of a pool

    pids = [worker.get(name) for worker in workers if isinstance(worker, dict) for name in ("pid", "trial_pid")]
    total = 0
    for pid in {os.getpid(), *(pid for pid in pids if isinstance(pid, int))}:
        with contextlib.suppress(psutil.Error):  # it has just ended
            total += psutil.Process(pid).memory_info().rss
    return total


class LineProgress(Tally):
    """For logs and pipes: a line every ``every`` seconds while the run tells something, and one at the end.

    ``tick`` makes the line due even when nothing else happens, as in a run that hangs. A ``patient`` one says nothing
    of a run that has ended before its first line is due.
    """

    def __init__(
        self, stream: TextIO, *, clock: Clock = time.monotonic, every: float = 10.0, patient: bool = False
    ) -> None:
        super().__init__(clock)
        self._silent = patient
        self._stream: TextIO | None = stream
        self._every = every
        self._last = clock()
        self._ended = False

    def planned(self, total: int, already_recorded: int) -> None:
        """The first line: how much there is to do."""
        super().planned(total, already_recorded)
        self._last = self.clock()
        before = f", {already_recorded} of them recorded before" if already_recorded else ""
        if not self._silent:
            self._write(f"{count(total, 'trial')} planned{before}")

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """May print the line that is due."""
        super().started(key, worker)
        self.tick()

    def phase(self, key: TrialKey, phase: str) -> None:
        """May print the line that is due."""
        super().phase(key, phase)
        self.tick()

    def recorded(self, result: TaskTrialResult) -> None:
        """May print the line that is due."""
        super().recorded(result)
        self.tick()

    def waiting(self, counts: Mapping[str, int]) -> None:
        """May print the line that is due."""
        super().waiting(counts)
        self.tick()

    def pool(self, statistics: object) -> None:
        """May print the line that is due."""
        super().pool(statistics)
        self.tick()

    def tick(self) -> None:
        """Print a line if one is due."""
        now = self.clock()
        if now - self._last >= self._every:
            self._last, self._silent = now, False
            self._write(self._line())

    def finished(self) -> None:
        """The last line."""
        if not self._ended:
            self._ended = True
            if not self._silent:
                self._write(self._line())

    def _line(self) -> str:
        parts = [f"{self.done} of {self.total} recorded", self.success_text()]
        parts += [kinds(self.failures)] if self.failures else []
        parts += [f"{len(self.running)} running"] if self.running else []
        parts += [f"waiting for {kinds(self.waits)}"] if self.waits and self.running else []
        for trial in self.oldest()[:1]:
            parts.append(
                f"oldest {printable(trial.key)} in {printable(trial.phase)} for "
                f"{clock_time(self.clock() - trial.phase_since)}"
            )
        return "; ".join([*parts, self.pace_text()])

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(f"corral: {line}\n".encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # gone or closed: the run is worth more than its display
            self._stream = None


class Callback(Tally):
    """Calls a function with one dict for each recorded trial. An error in it is logged and the run goes on."""

    def __init__(self, function: Callable[[dict[str, Any]], object]) -> None:
        super().__init__()
        self._function = function
        self._failed = False

    def recorded(self, result: TaskTrialResult) -> None:
        """Tell the function."""
        super().recorded(result)
        try:
            self._function(self._event(result))
        except Exception:
            if not self._failed:
                _log.warning("the progress function raised; the run goes on", exc_info=True)
            self._failed = True

    def _event(self, result: TaskTrialResult) -> dict[str, Any]:
        return {
            "task_id": result.task_id,
            "trial_index": result.trial_index,
            "score": result.score,
            "success": result.success,
            "graded": result.graded,
            "failure": None if result.failure is None else result.failure.value,
            "error_message": result.error_message,
            "surrendered": result.surrendered,
            "attempts": len(result.attempts),
            "duration": result.duration,
            "done": self.done,
            "planned": self.total,
        }


def choose(
    progress: Progress | Callable[[dict[str, Any]], object] | bool | None, stream: TextIO | None = None
) -> Progress:
    """The display that ``progress`` asks for, on ``stream`` (standard error).

    None: live on a terminal, else a line every half minute of a run that takes so long. True: live on a terminal, else
    (in a log, or a notebook) lines from the start. False: nothing. A function gets one dict for each recorded trial. A
    ``Progress`` is used as it is.
    """
    stream = sys.stderr if stream is None else stream
    if progress is None or isinstance(progress, bool):
        if progress is False or stream is None:
            return Silent()
        if is_terminal(stream):
            from corral.report.live import LiveProgress

            return LiveProgress(stream)
        return LineProgress(stream) if progress else LineProgress(stream, every=CALM_SECONDS, patient=True)
    if isinstance(progress, type):
        raise ConfigError(f"progress must be an object, not the class {progress.__qualname__}: call it first")
    if isinstance(progress, Progress):
        return progress
    if not callable(progress):
        raise ConfigError(f"progress must be None, True, False, a function or a Progress, not {progress!r}")
    if inspect.iscoroutinefunction(progress) or inspect.iscoroutinefunction(type(progress).__call__):
        raise ConfigError("progress must be a plain function: nothing awaits an async one")
    return Callback(progress)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether ``stream`` goes to a terminal that can redraw a line."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, OSError, ValueError):
        return False
