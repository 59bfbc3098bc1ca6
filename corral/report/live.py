"""The progress display of a terminal: a bar, the counts, and the trials that run, oldest first.

Rich's refresh thread reads what the event loop writes, so both hold one lock for the short time that takes. Events
refresh at most ten times a second, and the thread makes ages tick while nothing happens.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from corral.report.console import TerminalConsole
from corral.report.progress import is_terminal
from corral.report.tally import Clock, Silent, Tally
from corral.report.text import clock_time, kinds, printable
from corral.types import TaskTrialResult, TrialKey, WorkerRef

REFRESH_SECONDS = 0.1
"""Least time between two refreshes that events cause: a fast run must not spend its time on drawing."""

LONG_SECONDS = 30.0
"""From then on the age of a phase stands out: it may hang."""


class LiveProgress(Silent):
    """Draws a run on a terminal from ``planned`` to ``finished``, and leaves one line behind."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        console: Console | None = None,
        clock: Clock = time.monotonic,
        rows: int = 8,
        auto_refresh: bool = True,
    ) -> None:
        self._console = console or TerminalConsole(file=stream or sys.stderr, highlight=False)
        self._tally = Tally(clock)
        self._clock = clock
        self._rows = rows
        self._auto_refresh = auto_refresh
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._drawn = clock()

    def planned(self, total: int, already_recorded: int) -> None:
        """Show the display."""
        with self._lock:
            self._tally.planned(total, already_recorded)
        if self._live is not None:
            return
        self._live = Live(
            get_renderable=self.render,
            console=self._console,
            auto_refresh=self._auto_refresh,
            transient=True,
            # What tasks print goes above the display. An output that is no terminal is somebody's data: not touched.
            redirect_stdout=is_terminal(sys.stdout),
            redirect_stderr=is_terminal(sys.stderr),
        )
        self._draw(lambda live: live.start(refresh=True))

    def started(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """Show the trial among those that run."""
        with self._lock:
            self._tally.started(key, worker)
        self._refresh()

    def placed(self, key: TrialKey, worker: WorkerRef | None) -> None:
        """Show where the trial is."""
        with self._lock:
            self._tally.placed(key, worker)
        self._refresh()

    def phase(self, key: TrialKey, phase: str) -> None:
        """Show what the trial is at."""
        with self._lock:
            self._tally.phase(key, phase)
        self._refresh()

    def recorded(self, result: TaskTrialResult) -> None:
        """Count the trial."""
        with self._lock:
            self._tally.recorded(result)
        self._refresh()

    def waiting(self, counts: Mapping[str, int]) -> None:
        """Show what trials wait for."""
        with self._lock:
            self._tally.waiting(counts)
        self._refresh()

    def pool(self, statistics: object) -> None:
        """Show how the pool is."""
        with self._lock:
            self._tally.pool(statistics)
        self._refresh()

    def finished(self) -> None:
        """Take the display away and leave its counts."""
        self._draw(self._end)
        self._live = None

    def _end(self, live: Live) -> None:
        live.stop()
        self._console.print(self._counts())

    def render(self) -> RenderableType:
        """The display as it should look now."""
        with self._lock:
            parts: list[RenderableType] = [self._bar(), self._counts(), *self._notes()]
            if self._tally.running:
                parts.append(self._trials())
            return Group(*parts)

    def _refresh(self) -> None:
        now = self._clock()
        if self._live is None or now - self._drawn < REFRESH_SECONDS:
            return
        self._drawn = now
        self._draw(Live.refresh)

    def _draw(self, step: Callable[[Live], None]) -> None:
        live = self._live
        if live is None:
            return
        try:
            step(live)
        except (OSError, ValueError):  # the terminal is gone: the run is worth more than its display
            self._live = None
            with contextlib.suppress(Exception):
                live.stop()

    def _bar(self) -> RenderableType:
        tally = self._tally
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=max(tally.total, 1), completed=tally.done, complete_style="cyan", finished_style="cyan")
        line.add_row(f"{tally.done}/{tally.total}", bar, tally.pace_text())
        return line

    def _counts(self) -> Text:
        tally = self._tally
        text = Text(f"{tally.done} of {tally.total} recorded, {tally.success_text()}", no_wrap=True)
        if tally.failures:
            text.append(", ").append(kinds(tally.failures), style="yellow")
        text.overflow = "ellipsis"
        return text

    def _notes(self) -> list[Text]:
        notes = [self._tally.pool_text(), self._tally.waits_text()]
        return [Text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes if note]

    def _trials(self) -> RenderableType:
        oldest, now = self._tally.oldest(), self._clock()
        shown = oldest[: max(1, min(self._rows, self._console.height - 6))]
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(ratio=3, no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, style="dim")
        table.add_column(ratio=4, no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        for trial in shown:
            age = now - trial.phase_since
            phase = Text(
                f"{printable(trial.phase)} {clock_time(age)}", style="yellow" if age >= LONG_SECONDS else "dim"
            )
            table.add_row(Text(f"  {printable(trial.key)}"), trial.place, phase, clock_time(now - trial.since))
        if len(oldest) > len(shown):
            table.add_row(Text(f"  and {len(oldest) - len(shown)} more"), "", "", "")
        return table
