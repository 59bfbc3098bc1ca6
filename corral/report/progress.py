"""What a run tells about itself while it goes, and the displays without a terminal.

The runner calls the methods of one ``Progress`` from its event loop. Guarantee of the displays here: none of them
raises into the run, even when its output is gone. ``LiveProgress``, for a terminal, is in ``live`` with rich.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TextIO, cast, runtime_checkable

from corral.errors import ConfigError
from corral.report.tally import Clock, Running, Silent, Tally
from corral.report.text import clock_time, count, kinds, printable
from corral.types import TaskTrialResult, TrialKey, WorkerRef, shown

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
    """Hears of a run. Every method returns at once.

    It may also have ``placed(key, worker)``, which hears that a trial that was started has its place now: a slot, or
    None for this process (or the server's). And ``tick()``, which is called every second.
    """

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


_HEARD = tuple(name for name in vars(Progress) if not name.startswith("_"))
# Asked for one by one: to isinstance, from Python 3.12 on, an object that passes on what it hears has no methods.


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
        parts += [self.waits_text()] if self.waits_text() and self.running else []
        for trial in self.oldest()[:1]:
            age = clock_time(self.clock() - trial.phase_since)
            where = f" ({trial.place})" if trial.place else ""
            parts.append(f"oldest {printable(trial.key)} in {printable(trial.phase)} for {age}{where}")
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
    if all(callable(getattr(progress, name, None)) for name in _HEARD):
        return cast("Progress", progress)
    if not callable(progress):
        raise ConfigError(f"progress must be None, True, False, a function or a Progress, not {shown(progress)}")
    if inspect.iscoroutinefunction(progress) or inspect.iscoroutinefunction(type(progress).__call__):
        raise ConfigError("progress must be a plain function: nothing awaits an async one")
    return Callback(progress)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether ``stream`` goes to a terminal that can redraw a line."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")
    except (AttributeError, OSError, ValueError):
        return False
