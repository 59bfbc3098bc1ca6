"""The displays of a run that goes, on a clock of their own and without a terminal."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from corral import CorralRunner, Environment, TaskDefinition, build_environments, tool
from corral.agents import ScriptedAgent
from corral.errors import ConfigError, FailureKind
from corral.report.console import TerminalConsole
from corral.report.live import LiveProgress
from corral.report.progress import Callback, LineProgress, Progress, Silent, Tally, choose
from corral.types import TrialKey, WorkerRef
from tests.support.benches import benches
from tests.support.results import graded, lost

A0, A1, B0 = TrialKey("a", 0), TrialKey("a", 1), TrialKey("b", 0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def run_something(progress: Progress, clock: Clock) -> None:
    progress.planned(4, 1)
    progress.started(A0, WorkerRef(0, 11))
    clock.now += 2
    progress.started(A1, None)
    progress.phase(A0, "tool titrate")
    progress.phase(B0, "not started")
    progress.waiting({"slot": 3})
    progress.pool({"size": 2, "leased": 2, "idle": 0, "restarts": 1})
    clock.now += 8
    progress.recorded(graded("a", 1))
    progress.recorded(lost("b", 0))


class TestTally:
    def test_counts(self) -> None:
        clock = Clock()
        tally = Tally(clock)
        run_something(tally, clock)
        assert (tally.done, tally.recorded_now, tally.graded, tally.successes) == (3, 2, 1, 1)
        assert dict(tally.failures) == {"worker_died": 1}
        assert [trial.key for trial in tally.oldest()] == [A0]
        assert tally.elapsed == 10
        assert tally.throughput == 0.2
        assert tally.remaining == 5

    @pytest.mark.parametrize(
        ("counts", "text"),
        [
            ({}, ""),
            ({"max_concurrency (2)": 0}, ""),
            ({"max_concurrency (2)": 1}, "1 waits for max_concurrency (2)"),
            ({"requests to m (4 at once)": 1, "max_concurrency (2)": 30, "none": 0},
             "30 wait for max_concurrency (2), 1 for requests to m (4 at once)"),
        ],
    )  # fmt: skip
    def test_waits(self, counts: dict[str, int], text: str) -> None:
        tally = Tally(Clock())
        tally.waiting(counts)
        assert tally.waits_text() == text

    def test_nothing_is_known_before_the_first_trial(self) -> None:
        tally = Tally(Clock())
        tally.planned(3, 3)
        assert (tally.throughput, tally.remaining, tally.elapsed) == (None, None, 0)
        assert tally.pool_text() == ""
        assert tally.pace_text() == "0:00"

    def test_the_oldest_come_first_and_a_further_attempt_starts_anew(self) -> None:
        clock = Clock()
        tally = Tally(clock)
        for key in (B0, A1, A0):
            tally.started(key, None)
            clock.now += 1
        tally.started(B0, None)
        assert [trial.key for trial in tally.oldest()] == [A1, A0, B0]

    def test_a_clock_that_stands_is_no_division_by_nought(self) -> None:
        tally = Tally(Clock())
        tally.planned(2, 0)
        tally.recorded(graded("a", 0))
        assert tally.throughput is None


class Seen(Silent):
    """Lets a tool end once the display was told that it runs."""

    def __init__(self) -> None:
        self.told = threading.Event()
        self.phases: list[tuple[TrialKey, str]] = []
        self.waits: list[dict[str, int]] = []

    def phase(self, key: TrialKey, phase: str) -> None:
        self.phases.append((key, phase))
        if phase.startswith("tool "):
            self.told.set()

    def waiting(self, counts: Mapping[str, int]) -> None:
        self.waits.append(dict(counts))


class Slow(Environment):
    told: threading.Event

    def get_task_prompt(self) -> str:
        return "wait"

    @tool
    def titrate(self) -> bool:
        """Wait until the display knows."""
        return self.told.wait(20)

    def score(self) -> float:
        return 1.0


def test_a_run_tells_which_tool_runs_and_which_limit_is_waited_for(tmp_path: Path) -> None:
    seen = Seen()
    Slow.told = seen.told
    runner = CorralRunner(
        {"a": Slow("a"), "b": Slow("b")},
        agent_factory=lambda context: ScriptedAgent(lambda lab, prompt: lab.call("titrate")),
        checkpoint_dir=tmp_path,
    )
    result = runner.bench(trials_per_task=2, max_concurrency=2, progress=seen)
    assert result.average_score() == 1.0
    assert (A0, "tool titrate (call 1)") in seen.phases
    assert {"max_concurrency (2)": 2} in seen.waits or {"max_concurrency_per_task (1)": 2} in seen.waits


class Placed(Silent):
    """Hears where trials are, and lets the set-up of the first one end once it has."""

    def __init__(self, door: Path) -> None:
        self.door = door
        self.places: dict[TrialKey, WorkerRef | None] = {}

    def placed(self, key: TrialKey, worker: WorkerRef | None) -> None:
        self.places[key] = worker
        self.door.touch()


def build_waiting(door: Path) -> Callable[[], dict[str, Environment]]:
    """A process-class task whose set-up waits until the display knows of it, and a thread-class one."""

    def wait(env: Environment) -> None:
        deadline = time.monotonic() + 20
        while not door.exists():
            assert time.monotonic() < deadline, "nobody was told"
            time.sleep(0.01)

    def score(answer: str) -> float:
        return 1.0

    def build() -> dict[str, Environment]:
        tasks = [TaskDefinition("a", "", [], score, "text", setup_fn=wait)]
        return build_environments(tasks, concurrency="process") | benches(b="thread")()

    return build


def answering(context: Any) -> ScriptedAgent:
    return ScriptedAgent(lambda lab, prompt: 1.0)


def test_a_run_tells_where_its_trials_are_even_while_they_are_set_up(tmp_path: Path) -> None:
    seen = Placed(tmp_path / "door")
    runner = CorralRunner(build_waiting(seen.door), agent_factory=answering, checkpoint_dir=tmp_path)
    result = runner.bench(worker_pool=1, progress=seen)
    assert result.average_score() == 1.0
    (a, b) = result.trials
    assert (seen.places[a.key], seen.places[b.key]) == (a.worker, None)
    assert a.worker is not None
    assert a.worker.slot == 0


def test_a_display_that_hears_no_places_is_none_the_worse(tmp_path: Path) -> None:
    """As one is that was written before there was that method."""
    told = Silent()
    heard = ("planned", "started", "phase", "recorded", "waiting", "pool", "finished")
    old = type("Old", (), {name: staticmethod(getattr(told, name)) for name in heard})()
    runner = CorralRunner(benches(a="thread"), agent_factory=answering, checkpoint_dir=tmp_path)
    assert runner.bench(progress=old).average_score() == 1.0


class TestLines:
    def test_one_line_in_ten_seconds_and_one_at_the_end(self) -> None:
        clock, stream = Clock(), io.StringIO()
        lines = LineProgress(stream, clock=clock)
        run_something(lines, clock)
        lines.recorded(graded("a", 0, 0.0))
        lines.finished()
        lines.finished()
        assert stream.getvalue().splitlines() == [
            "corral: 4 trials planned, 1 of them recorded before",
            "corral: 2 of 4 recorded; 1 of 1 new ones succeeded; 1 running; 3 wait for slot; "
            "oldest a#0 in tool titrate for 0:08 (slot 0); 0:10, 6.0/min, about 0:20 to go",
            "corral: 4 of 4 recorded; 1 of 3 new ones succeeded; worker_died 1; 0:10, 18.0/min",
        ]

    def test_a_patient_one_says_nothing_of_a_short_run(self) -> None:
        clock, stream = Clock(), io.StringIO()
        lines = LineProgress(stream, clock=clock, every=30, patient=True)
        run_something(lines, clock)
        lines.finished()
        assert stream.getvalue() == ""
        lines = LineProgress(stream, clock=clock, every=30, patient=True)
        run_something(lines, clock)
        clock.now += 30
        lines.tick()
        lines.finished()
        assert len(stream.getvalue().splitlines()) == 2

    def test_a_tick_shows_a_run_that_hangs(self) -> None:
        clock, stream = Clock(), io.StringIO()
        lines = LineProgress(stream, clock=clock, every=5)
        lines.planned(1, 0)
        lines.started(A0, None)
        lines.tick()
        assert len(stream.getvalue().splitlines()) == 1
        clock.now += 65
        lines.tick()
        assert "1 running; oldest a#0 in starting for 1:05" in stream.getvalue()

    @pytest.mark.parametrize("break_it", [Gone, lambda: _closed()])  # noqa: PLW0108 (defined below)
    def test_an_output_that_is_gone_does_not_stop_the_run(self, break_it: Callable[[], io.StringIO]) -> None:
        clock = Clock()
        lines = LineProgress(break_it(), clock=clock)
        run_something(lines, clock)
        lines.finished()

    def test_odd_names_in_a_narrow_encoding(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        lines = LineProgress(stream, clock=Clock())
        lines.planned(1, 0)
        lines.started(TrialKey("ä\x1b\ud800", 0), None)
        lines.finished()
        assert b"\\xe4\\x1b\\ud800#0" in raw.getvalue()


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


class TestLive:
    def live(self, clock: Clock, **more: Any) -> tuple[LiveProgress, Callable[[], str]]:
        console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24, color_system=None)
        live = LiveProgress(console=console, clock=clock, auto_refresh=False, **more)

        def look() -> str:
            page = Console(file=io.StringIO(), width=80, color_system=None)
            page.print(live.render())
            assert isinstance(page.file, io.StringIO)
            return page.file.getvalue()

        return live, look

    def output(self, live: LiveProgress) -> str:
        stream = live._console.file
        assert isinstance(stream, io.StringIO)
        return stream.getvalue()

    def test_shows_counts_waits_pool_and_running_trials(self) -> None:
        clock = Clock()
        live, look = self.live(clock)
        run_something(live, clock)
        page = look()
        live.finished()
        assert page.splitlines()[0].startswith("3/4 ")
        assert "0:10, 12.0/min, about 0:05 to go" in page
        assert "3 of 4 recorded, 1 of 2 new ones succeeded, worker_died 1" in page
        assert "pool of 2: 2 leased, 1 restart" in page
        assert "3 wait for slot" in page
        assert "a#0" in page
        assert "tool titrate 0:08" in page
        assert page.splitlines()[-1].rstrip().endswith("0:10")
        assert max(map(len, page.splitlines())) <= 80

    def test_every_running_trial_has_its_place(self) -> None:
        live, look = self.live(Clock())
        live.planned(9, 0)
        for key, place in {A0: WorkerRef(12, 100, 200), A1: None}.items():
            live.started(key, None)
            live.placed(key, place)
        live.started(B0, None)
        live.placed(TrialKey("unknown", 0), None)
        rows = [line.split() for line in look().splitlines()[2:]]
        live.finished()
        assert rows == [
            ["a#0", "slot", "12", "starting", "0:00", "0:00"],
            ["a#1", "in-process", "starting", "0:00", "0:00"],
            ["b#0", "starting", "0:00", "0:00"],
        ]

    def test_the_oldest_of_many_come_first_and_the_rest_are_counted(self) -> None:
        clock = Clock()
        live, look = self.live(clock, rows=3)
        live.planned(20, 0)
        for index in range(10):
            live.started(TrialKey("task-" + "x" * 100, index) if index else TrialKey("hangs", 0), None)
            clock.now += 1
        page = look()
        live.finished()
        assert page.splitlines()[2].startswith("  hangs#0")
        assert page.splitlines()[-1].rstrip() == "  and 7 more"
        assert len(page.splitlines()) == 6
        assert max(map(len, page.splitlines())) <= 80

    def test_events_refresh_but_not_more_often_than_needed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = Clock()
        live, _ = self.live(clock)
        live.planned(1000, 0)
        drawn = len(self.output(live))
        for index in range(100):
            live.recorded(graded("a", index))
        assert len(self.output(live)) == drawn
        clock.now += 1
        live.recorded(graded("a", 100))
        assert "101/1000" in self.output(live)[drawn:]
        live.finished()

    def test_the_end_leaves_the_counts_and_the_cursor(self) -> None:
        clock = Clock()
        live, _ = self.live(clock)
        run_something(live, clock)
        live.finished()
        live.finished()
        live.recorded(graded("a", 5))
        assert self.output(live).rstrip().endswith("3 of 4 recorded, 1 of 2 new ones succeeded, worker_died 1")
        assert self.output(live).count("\x1b[?25l") == self.output(live).count("\x1b[?25h") == 1

    def test_with_the_refresh_thread(self) -> None:
        console = Console(file=io.StringIO(), force_terminal=True, width=80)
        live = LiveProgress(console=console)
        live.planned(500, 0)
        for index in range(500):
            live.started(TrialKey("a", index), None)
            live.recorded(graded("a", index))
        live.finished()
        assert "500 of 500 recorded" in self.output(live)

    def test_nothing_happens_before_it_is_planned(self) -> None:
        live, look = self.live(Clock())
        live.recorded(lost("a", 0, FailureKind.MEMORY))
        live.finished()
        assert self.output(live) == ""
        assert "memory 1" in look()

    def test_a_terminal_that_is_gone_does_not_stop_the_run(self) -> None:
        class Hung(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(5, "Input/output error")

        for stream in (Gone(), Hung(), _closed()):
            clock = Clock()
            console = TerminalConsole(file=stream, force_terminal=True, width=80)
            live = LiveProgress(console=console, clock=clock, auto_refresh=False)
            run_something(live, clock)
            live.finished()

    def test_a_piped_standard_output_is_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pipe = io.StringIO()
        monkeypatch.setattr(sys, "stdout", pipe)
        live, _ = self.live(Clock())
        live.planned(1, 0)
        sys.stdout.write(json.dumps({"a": 1}))
        live.finished()
        assert pipe.getvalue() == '{"a": 1}'

    def test_odd_names(self) -> None:
        live, look = self.live(Clock())
        live.planned(1, 0)
        live.started(TrialKey("[red]\x1b[2J\ud800", 0), None)
        live.phase(TrialKey("[red]\x1b[2J\ud800", 0), "[/bold]")
        assert r"[red]\x1b[2J\ud800#0" in look()
        live.finished()


class TestCallback:
    def test_one_dict_for_each_recorded_trial(self) -> None:
        events: list[dict[str, Any]] = []
        clock = Clock()
        run_something(Callback(events.append), clock)
        assert [(e["task_id"], e["trial_index"], e["failure"], e["done"], e["planned"]) for e in events] == [
            ("a", 1, None, 2, 4),
            ("b", 0, "worker_died", 3, 4),
        ]
        assert json.loads(json.dumps(events)) == events

    def test_an_error_in_it_is_logged_once_and_the_run_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[Any] = []

        def broken(event: dict[str, Any]) -> None:
            calls.append(event)
            raise ValueError("mine")

        with caplog.at_level(logging.WARNING):
            run_something(Callback(broken), Clock())
        assert len(calls) == 2
        assert len(caplog.records) == 1


class TestChoose:
    @pytest.mark.parametrize(
        ("progress", "stream", "expected"),
        [
            (None, Terminal, LiveProgress),
            (True, Terminal, LiveProgress),
            (False, Terminal, Silent),
            (None, io.StringIO, LineProgress),
            (True, io.StringIO, LineProgress),
            (False, io.StringIO, Silent),
            (None, _closed, LineProgress),
        ],
    )
    def test_by_flag_and_stream(
        self, progress: Any, stream: Any, expected: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TERM", "xterm")
        assert type(choose(progress, stream())) is expected

    def test_a_dumb_terminal_gets_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "dumb")
        assert type(choose(True, Terminal())) is LineProgress

    def test_no_standard_error_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        assert type(choose(True)) is Silent

    def test_functions_and_objects(self) -> None:
        mine = Silent()
        assert choose(mine) is mine
        assert type(choose(print)) is Callback
        assert type(choose(functools.partial(print, "x"))) is Callback

    def test_an_object_that_passes_on_what_it_hears(self) -> None:
        class Relay:
            def __getattr__(self, name: str) -> Any:
                return getattr(Silent(), name)

        mine = Relay()
        assert choose(mine) is mine

    @pytest.mark.parametrize("bad", ["yes", 1.5, Silent])
    def test_anything_else_is_refused(self, bad: Any) -> None:
        with pytest.raises(ConfigError, match="progress must be"):
            choose(bad)

    def test_an_async_function_is_refused(self) -> None:
        async def tell(event: dict[str, Any]) -> None: ...

        class Teller:
            async def __call__(self, event: dict[str, Any]) -> None: ...

        for bad in (tell, Teller(), functools.partial(tell)):
            with pytest.raises(ConfigError, match="plain function"):
                choose(bad)

    @pytest.mark.parametrize("display", [Silent(), LineProgress(io.StringIO()), Callback(print)])
    def test_every_display_is_a_progress(self, display: Any) -> None:
        assert isinstance(display, Progress)
        with contextlib.redirect_stdout(io.StringIO()):
            run_something(display, Clock())
        display.finished()
