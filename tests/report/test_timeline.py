"""Lanes and steps from the attempts' times."""

from __future__ import annotations

from corral.report.timeline import timeline
from corral.types import Attempt, TaskTrialResult, Timings
from tests.support.results import graded
from tests.support.sessions import START, everything


def inside(index: int, start: float, seconds: float, queued: float = 0.0) -> TaskTrialResult:
    attempt = Attempt(1, started_at=START + start, opened=0.0, seconds=seconds)
    return graded("a", index, attempts=(attempt,), timings=Timings(queued, 0.0, seconds, 0.0))


def test_a_slot_is_a_lane_and_in_process_trials_share_as_few_as_they_can() -> None:
    line = timeline(everything().trials)
    assert [(lane.name, len(lane.spans)) for lane in line.lanes] == [
        ("slot 0", 2), ("slot 1", 4), ("in-process 0", 2), ("in-process 1", 1),
    ]  # fmt: skip
    assert line.origin == START
    assert line.length == 9.5
    for lane in line.lanes:
        assert all(a.end <= b.start for a, b in zip(lane.spans, lane.spans[1:], strict=False))


def test_an_attempt_that_was_repeated_failed_whatever_came_after() -> None:
    crash = [span for span in timeline(everything().trials).lanes[1].spans if span.trial.task_id == "crash"]
    assert [(span.attempt.number, span.outcome, span.is_last) for span in crash] == [
        (1, "failed", False), (2, "failed", True), (1, "failed", True),
    ]  # fmt: skip


def test_phases_fill_an_attempt_in_order() -> None:
    span = timeline(everything().trials).lanes[0].spans[0]
    assert span.parts == [
        ("opening", 0.0, 0.5), ("configure", 0.5, 0.75), ("agent", 0.75, 2.75), ("scoring", 2.75, 3.0),
    ]  # fmt: skip


def test_waiting_and_running_are_steps() -> None:
    line = timeline([inside(0, 0.0, 2.0), inside(1, 2.0, 1.0, queued=2.0), inside(2, 2.0, 3.0, queued=2.0)])
    assert line.waiting == ((0.0, 2), (2.0, 0))
    assert line.running == ((0.0, 1), (2.0, 2), (3.0, 1), (5.0, 0))


def test_records_without_times_give_an_empty_timeline() -> None:
    line = timeline([graded("a", 0, attempts=(Attempt(1),))])
    assert (line.lanes, line.length, line.waiting) == ((), 0.0, ())
