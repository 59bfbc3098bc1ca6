"""When and where each attempt ran: the run as lanes over time, for the report's page and for trace viewers. Pure.

A lane is a slot of the pool, or one of the places in which trials of this process ran side by side. Times are seconds
from the first attempt of the session; between two runs of a resumed session nothing ran, and the gap is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from corral.plain import plain
from corral.report.figures import tool_seconds
from corral.types import Attempt, TaskTrialResult


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt."""

    trial: TaskTrialResult
    attempt: Attempt
    start: float
    """When it was admitted; in its lane, not before that was free for it: until then it waited."""
    end: float
    is_last: bool
    waited: float = 0.0
    """Seconds from its admission until ``start``."""

    @property
    def opened(self) -> float:
        """When its environment was open, having waited for its place; ``end`` where it never was."""
        if self.attempt.opened is None:
            return self.end
        return min(self.end, max(self.start, self.start - self.waited + self.attempt.opened))

    @property
    def outcome(self) -> str:
        """``success``, ``partial`` (graded, no success), or ``failed`` (not graded, or ended by an error)."""
        if not self.is_last or self.attempt.failure is not None:
            return "failed"
        return outcome(self.trial)

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """(phase, start, end) in order: waiting for its place, configuring, the agent with its tools, scoring."""
        phases = [("opening", self.start, self.opened)]
        if self.is_last:
            times = self.trial.timings
            at = self.opened
            for name, seconds in (("configure", times.configured), ("agent", times.agent), ("scoring", times.scored)):
                phases.append((name, at, min(self.end, at + seconds)))
                at = phases[-1][2]
        else:
            phases.append(("agent", self.opened, self.end))
        return [phase for phase in phases if phase[2] > phase[1]]


def outcome(trial: TaskTrialResult) -> str:
    """A trial in one word: ``success``, ``partial`` (graded without success) or ``failed``."""
    if not trial.graded or trial.failure is not None:
        return "failed"
    return "success" if trial.success else "partial"


@dataclass(frozen=True, slots=True)
class Lane:
    """A place where one attempt ran at a time: its spans do not overlap."""

    name: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run over time. Empty where the records say no times."""

    origin: float
    """The first attempt's start in seconds since 1970 UTC."""
    length: float
    lanes: tuple[Lane, ...]
    waiting: tuple[tuple[float, int], ...]
    """(second, trials that were planned and had not yet a place from then on), as steps."""
    running: tuple[tuple[float, int], ...]
    """(second, trials at work from then on), as steps."""


def timeline(trials: Iterable[TaskTrialResult]) -> Timeline:
    """The lanes of a session. A slot has one, or more where the records say that trials overlapped there, as after a
    change of the system's clock; trials in-process get as few as they need.
    """
    known = [
        (trial, attempt, attempt.started_at, number == len(trial.attempts))
        for trial in trials
        for number, attempt in enumerate(trial.attempts, 1)
        if attempt.started_at is not None
    ]
    origin = min((start for _, _, start, _ in known), default=0.0)
    spans = [
        Span(trial, attempt, at - origin, at - origin + attempt.seconds, last) for trial, attempt, at, last in known
    ]
    spans.sort(key=lambda span: (span.start, span.trial.key))
    slots: dict[tuple[str, int], list[Span]] = {}
    inside: list[Span] = []
    for span in spans:
        worker = span.attempt.worker
        (inside if worker is None else slots.setdefault((worker.node or "", worker.slot), [])).append(span)
    lanes = [
        Lane(_lane_name(*place) + (f" ({number})" if number > 1 else ""), tuple(row))
        for place in sorted(slots)
        for number, row in enumerate(_one_by_one(slots[place]), 1)
    ]
    lanes += [Lane(f"in-process {number}", tuple(row)) for number, row in enumerate(_packed(inside))]
    length = max((span.end for span in spans), default=0.0)
    waits = [change for span in spans for change in _waits(span)]
    works = [change for span in spans for change in ((span.opened, 1), (span.end, -1))]
    return Timeline(origin, length, tuple(lanes), _steps(waits), _steps(works))


def _one_by_one(spans: list[Span]) -> list[list[Span]]:
    """Rows in which nothing overlaps: attempts wait for a slot from their admission on, but hold it from its end."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.opened, span.start)):
        row = next((row for row in rows if row[-1].end <= span.opened), None)
        if row is None:
            rows.append([span])
            continue
        since = max(span.start, row[-1].end)
        row.append(replace(span, start=since, waited=since - span.start))
    return rows


def _packed(spans: list[Span]) -> list[list[Span]]:
    """Rows in which nothing overlaps: each span, in the order of starts, into the row that is free for longest."""
    rows: list[list[Span]] = []
    free: list[tuple[float, int]] = []
    for span in spans:
        if free and free[0][0] <= span.start:
            _, row = heapq.heappop(free)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(span)
        heapq.heappush(free, (span.end, row))
    return rows


def _waits(span: Span) -> list[tuple[float, int]]:
    # A repeated attempt is preceded by one that ran: what it waits for lies between its start and its opening.
    is_only = span.is_last and len(span.trial.attempts) == 1
    since = span.opened - span.trial.timings.queued if is_only else span.start
    return [(max(0.0, since), 1), (span.opened, -1)]


def _steps(changes: list[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    steps: list[tuple[float, int]] = []
    level = 0
    for at, change in sorted(changes):
        level += change
        if steps and steps[-1][0] == at:
            steps[-1] = (at, level)
        else:
            steps.append((at, level))
    return tuple(steps)


def _lane_name(node: str, slot: int) -> str:
    return f"slot {slot}" + (f" on {node}" if node else "")


def restarts(pool: object, line: Timeline) -> dict[str, list[float]]:
    """By lane, when a slot's worker was gone and a new one started, where the pool's statistics tell."""
    statistics = plain(pool)
    workers = statistics.get("workers") if isinstance(statistics, dict) else None
    return {
        _lane_name(worker.get("node") or "", worker.get("slot")): [
            max(0.0, at - line.origin) for at in worker.get("losses") or ()
        ]
        for worker in workers or ()
    }


def chrome_trace(trials: Iterable[TaskTrialResult], *, name: str = "corral", pool: object = None) -> dict[str, Any]:
    """The timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.

    A lane is a thread, an attempt a slice with its phases inside it, repeated attempts are linked by arrows, a new
    worker is an instant, and waiting and running are counters. ``pool``: its statistics, where there was one.
    """
    line = timeline(trials)
    renewed = restarts(pool, line)
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}]
    for thread, lane in enumerate(line.lanes, 1):
        events.append({"ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": {"name": lane.name}})
        events.append({"ph": "M", "pid": 1, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}})
        for span in lane.spans:
            events += _slices(span, thread)
        events += [
            {"ph": "i", "s": "t", "pid": 1, "tid": thread, "name": "new worker", "cat": "pool", "ts": _micro(at)}
            for at in renewed.get(lane.name, ())
        ]
    events += _arrows(line)
    for counter, steps in (("waiting", line.waiting), ("running", line.running)):
        events += [
            {"ph": "C", "pid": 1, "name": counter, "ts": _micro(at), "args": {"trials": level}} for at, level in steps
        ]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"origin_s": line.origin},
    }


def _slices(span: Span, thread: int) -> list[dict[str, Any]]:
    trial, attempt = span.trial, span.attempt
    place = {"ph": "X", "pid": 1, "tid": thread}
    facts = {
        "score": trial.score,
        "graded": trial.graded,
        "attempt": attempt.number,
        "failure": attempt.failure,
        "message": attempt.message,
        "peak_rss": attempt.peak_rss,
        "tools_s": tool_seconds(trial) if span.is_last else None,
        "waited_s": span.waited,
    }
    colour = {"success": "good", "partial": "bad", "failed": "terrible"}[span.outcome]
    whole = {
        **place, "name": trial.trial_id, "cat": span.outcome, "cname": colour, "args": facts,
        "ts": _micro(span.start), "dur": _micro(span.end) - _micro(span.start),
    }  # fmt: skip
    inner = [
        {**place, "name": phase, "cat": "phase", "ts": _micro(start), "dur": _micro(end) - _micro(start)}
        for phase, start, end in span.parts
    ]
    return [whole, *inner]


def _arrows(line: Timeline) -> Iterator[dict[str, Any]]:
    """From each attempt that was repeated to the next one; none back in time, where the system's clock was changed."""
    places = {
        (span.trial.key, span.attempt.number): (thread, span)
        for thread, lane in enumerate(line.lanes, 1)
        for span in lane.spans
    }
    for arrow_id, ((key, number), (thread, span)) in enumerate(places.items(), 1):
        into, repeated = places.get((key, number + 1), (0, span))
        if into and _micro(repeated.start) > _micro(span.start):
            arrow = {"pid": 1, "cat": "attempts", "name": "repeated", "id": arrow_id}
            yield {**arrow, "ph": "s", "tid": thread, "ts": _micro(span.start)}
            yield {**arrow, "ph": "f", "bp": "e", "tid": into, "ts": _micro(repeated.start)}


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)
