"""When a slot is given up whose workers fail in a row, and how long the next start waits."""

from __future__ import annotations

import os
import signal

import pytest

from corral.errors import EnvStartError, ErrorRecord
from corral.pool import WorkerPool, starts
from corral.pool.backend import SlotWorker
from corral.pool.slots import Slot
from corral.pool.starts import LONGEST_PAUSE, LOST_PATIENCE, MAX_STARTS, LostStart, SlowStart, Streak, last_lines
from tests.support.pool_driving import once, pool
from tests.support.pool_waiting import eventually

LOST = LostStart.unused(pid=7, status=-9)
SLOW = SlowStart.at("loading", seconds=3, output="")
RAISED = EnvStartError.because("loading", ErrorRecord("ImportError", "no chemistry"))


def test_an_error_of_the_builder_is_tried_a_few_times_at_once() -> None:
    streak = Streak()
    pauses = [streak.pause_after(RAISED, now, loaded=True) for now in range(MAX_STARTS)]
    assert pauses == [0.0] * (MAX_STARTS - 1) + [None]
    assert streak.reason(RAISED) is RAISED


def test_a_hang_is_tried_again_only_where_the_builder_is_known_to_work() -> None:
    assert Streak().pause_after(SLOW, 0.0, loaded=False) is None
    assert Streak().pause_after(SLOW, 0.0, loaded=True) == 0.0


def test_lost_workers_are_replaced_later_and_later_and_not_for_ever() -> None:
    streak, now, pauses = Streak(), 1000.0, []
    while (pause := streak.pause_after(LOST, now, loaded=True)) is not None:
        pauses.append(pause)
        now += pause + 0.2  # each lives for a moment
    assert pauses[: MAX_STARTS - 1] == [0.0] * (MAX_STARTS - 1)
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE or now - 1000 < 2 * LOST_PATIENCE
    assert LOST_PATIENCE <= now - 1000 < LOST_PATIENCE + 2 * LONGEST_PAUSE
    assert len(pauses) < 60
    assert str(streak.reason(LOST)) == (
        f"workers keep dying, {len(pauses) + 1} in a row: the worker process (pid 7) was killed by signal 9 (SIGKILL) "
        "before a trial began on it"
    )


def test_lost_workers_whose_builder_has_never_worked_are_not_waited_for() -> None:
    streak = Streak()
    assert [streak.pause_after(LOST, 0.0, loaded=False) for _ in range(MAX_STARTS)][-1] is None


def test_a_sentence_shows_the_last_lines_only() -> None:
    output = (
        "".join(f"line {n}\n" for n in range(100)) + "x" * 1000 + '\n  File "/a/corral/pool/host.py", line 7 in run\n'
    )
    lines = last_lines(output).splitlines()
    assert lines[0] == "; its last output:"
    assert (lines[1], lines[-2], len(lines)) == ("line 89", "line 99", 13)
    assert lines[-1] == "x" * 200
    assert last_lines(" \n") == ""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every worker is killed in the moment in which it is ready; their pids."""
    start, pids = WorkerPool._start_worker, []

    async def start_and_kill(workers: WorkerPool, slot: Slot) -> SlotWorker:
        worker = await start(workers, slot)
        pids.append(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        return worker

    monkeypatch.setattr(WorkerPool, "_start_worker", start_and_kill)
    return pids


@pytest.mark.anyio
async def test_workers_that_die_as_soon_as_they_are_ready_end_the_pool(
    killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "LOST_PATIENCE", 2.0)
    async with pool(size=1) as workers:
        await eventually(lambda: workers.statistics().workers[0].state == "failed", within=30)
        with pytest.raises(EnvStartError, match=rf"workers keep dying, {len(killed)} in a row: .*signal 9 \(SIGKILL\)"):
            await once(workers, "result = 1")
        assert MAX_STARTS <= len(killed) < 12


@pytest.mark.anyio
async def test_workers_that_serve_before_they_die_are_replaced_at_once_each_time() -> None:
    async with pool(size=1) as workers:
        for number in range(1, 2 * MAX_STARTS):
            pid = await once(workers, "import os; result = os.getppid()")
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda number=number: workers.statistics().restarts == number)  # type: ignore[misc]
        assert await once(workers, "result = 1") == 1
