"""The collector, with a journal whose disk the test holds in its hands."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint

from corral.collector import Collector
from corral.errors import JournalError, ProtocolError
from corral.header import Header
from corral.journal import Journal
from corral.records import Line, Record
from corral.types import TaskTrialResult, TrialKey

pytestmark = pytest.mark.anyio


class SlowDisk:
    """A journal in memory. Each write waits until the test lets it happen."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.records: list[Record] = []
        self.started = threading.Semaphore(0)
        self.gate = threading.Semaphore(0 if held else 1_000_000)
        self.error: Exception | None = None

    def append(self, lines: list[Line]) -> None:
        records = [json.loads(line.data) for line in lines]
        self.started.release()
        assert self.gate.acquire(timeout=20)
        if self.error is not None:
            raise self.error
        self.batches.append([record["trial_index"] for record in records])
        self.records += records

    async def write_started(self) -> None:
        await anyio.to_thread.run_sync(self.started.acquire)


def trial(index: int, **more: float) -> TaskTrialResult:
    return TaskTrialResult("t", index, **more)  # type: ignore[arg-type]


async def queue_up(group: anyio.abc.TaskGroup, collector: Collector, indices: range) -> None:
    """Start a task for each trial, and wait until each has handed over its result."""
    for index in indices:
        group.start_soon(collector.record, trial(index))
        for _ in range(3):
            await checkpoint()


async def test_a_result_is_durable_when_record_returns() -> None:
    disk = SlowDisk()
    seen: list[TaskTrialResult] = []

    def on_recorded(result: TaskTrialResult) -> None:
        assert disk.batches  # durable first
        seen.append(result)

    async with Collector(disk, on_recorded) as collector:
        result = await collector.record(TaskTrialResult("t", 0, score=0.5, state={"x": (1, float("nan"))}))
    # What is reported is what a resumed run would read.
    assert result == TaskTrialResult("t", 0, score=0.5, state={"x": [1, None]})
    assert seen == [result]
    assert "replaces" not in disk.records[0]


async def test_what_queues_behind_a_write_goes_out_together_and_in_order() -> None:
    disk = SlowDisk(held=True)
    seen: list[int] = []
    async with Collector(disk, lambda result: seen.append(result.trial_index)) as collector, create_task_group() as tg:
        await queue_up(tg, collector, range(1))
        await disk.write_started()
        await queue_up(tg, collector, range(1, 50))
        disk.gate.release()
        await disk.write_started()
        await queue_up(tg, collector, range(50, 60))
        disk.gate.release(2)
    assert disk.batches == [[0], list(range(1, 50)), list(range(50, 60))]
    assert seen == list(range(60))


async def test_a_newcomer_may_take_the_pen_before_the_one_it_was_handed_to() -> None:
    disk = SlowDisk(held=True)

    async def two_in_a_row() -> None:
        await collector.record(trial(0))
        await collector.record(trial(10))  # at once, before any other task runs

    async with Collector(disk) as collector, create_task_group() as tg:
        tg.start_soon(two_in_a_row)
        await disk.write_started()
        await queue_up(tg, collector, range(1, 3))
        disk.gate.release()
        await disk.write_started()
        await queue_up(tg, collector, range(3, 5))
        disk.gate.release(2)
    assert disk.batches == [[0], [1, 2, 10], [3, 4]]


async def test_many_tasks_at_once(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, Header("s", "now", {}, {}, {}))
    async with Collector(journal) as collector, create_task_group() as tg:
        for index in range(300):
            tg.start_soon(collector.record, trial(index))
    journal.close()
    journal, _, records = Journal.open_existing(tmp_path)
    journal.close()
    assert sorted(record["trial_index"] for record in records) == list(range(300))


@pytest.mark.parametrize("whom", ["the one that writes", "one that waits"])
async def test_a_cancelled_task_has_its_result_written(whom: str) -> None:
    disk = SlowDisk(held=True)
    scopes = [CancelScope(), CancelScope(), CancelScope()]
    ended: list[int] = []

    async def task(index: int) -> None:
        with scopes[index]:
            await collector.record(trial(index))
            ended.append(index)
            await checkpoint()

    async with Collector(disk) as collector, create_task_group() as tg:
        tg.start_soon(task, 0)
        await disk.write_started()
        for index in (1, 2):  # one by one: trio starts tasks in any order
            tg.start_soon(task, index)
            for _ in range(3):
                await checkpoint()
        chosen = 0 if whom == "the one that writes" else 1
        scopes[chosen].cancel()
        for _ in range(3):
            await checkpoint()
        disk.gate.release(2)
    assert disk.batches == [[0], [1, 2]]
    assert sorted(ended) == [0, 1, 2]
    assert [scope.cancelled_caught for scope in scopes] == [index == chosen for index in range(3)]


@pytest.mark.parametrize("seed", range(5))
async def test_cancelling_at_random_loses_and_stalls_nothing(seed: int) -> None:
    disk = SlowDisk()
    rng = random.Random(seed)
    scopes = [CancelScope() for _ in range(200)]
    handed_over: list[int] = []

    async def task(index: int) -> None:
        with scopes[index]:
            for _ in range(rng.randrange(5)):
                await checkpoint()
            handed_over.append(index)
            await collector.record(trial(index))

    async with Collector(disk) as collector, create_task_group() as tg:
        for index in range(len(scopes)):
            tg.start_soon(task, index)
            if rng.random() < 0.3:
                await checkpoint()
            scopes[rng.randrange(index + 1)].cancel()
    assert len(handed_over) > 20
    assert [index for batch in disk.batches for index in batch] == handed_over


async def test_leaving_waits_for_what_was_handed_over_even_when_cancelled() -> None:
    disk = SlowDisk(held=True)
    async with create_task_group() as outer:
        async with Collector(disk) as collector:
            await queue_up(outer, collector, range(1))
            await disk.write_started()
            await queue_up(outer, collector, range(1, 4))
            outer.cancel_scope.cancel()
            disk.gate.release(2)
        assert [sorted(batch) for batch in disk.batches] == [[0], [1, 2, 3]]
    with pytest.raises(ProtocolError, match="t#9 came after the collector was closed"):
        await collector.record(trial(9))
    await collector.aclose()


async def test_several_can_wait_for_the_end() -> None:
    disk = SlowDisk(held=True)
    collector = Collector(disk)
    async with create_task_group() as tg:
        await queue_up(tg, collector, range(2))
        tg.start_soon(collector.aclose)
        tg.start_soon(collector.aclose)
        disk.gate.release(2)
    assert disk.batches == [[0], [1]]


async def outcomes(collector: Collector, indices: range, during: Callable[[], None]) -> dict[int, Exception | None]:
    """What ``record`` raises in each of several tasks; ``during`` runs when all have handed over."""
    ends: dict[int, Exception | None] = {}

    async def task(index: int) -> None:
        try:
            await collector.record(trial(index))
            ends[index] = None
        except Exception as error:
            ends[index] = error

    async with create_task_group() as tg:
        for index in indices:
            tg.start_soon(task, index)
            for _ in range(3):
                await checkpoint()
        during()
    return ends


async def test_a_journal_that_cannot_be_written_stops_everyone() -> None:
    disk = SlowDisk(held=True)
    disk.error = JournalError("cannot write x: no space")
    seen: list[TaskTrialResult] = []
    async with Collector(disk, seen.append) as collector:
        ends = await outcomes(collector, range(5), lambda: disk.gate.release(10))
        with pytest.raises(JournalError, match="cannot write x: no space"):
            await collector.record(trial(9))
    assert all(isinstance(error, JournalError) and "no space" in str(error) for error in ends.values())
    assert len({id(error) for error in ends.values()}) == 5
    assert (len(ends), seen, disk.batches) == (5, [], [])
    assert disk.started.acquire(blocking=False)
    assert not disk.started.acquire(blocking=False)  # it was tried once


async def test_any_other_failure_of_a_write_stops_everyone_too() -> None:
    disk = SlowDisk(held=True)
    disk.error = MemoryError()
    async with Collector(disk) as collector:
        ends = await outcomes(collector, range(3), lambda: disk.gate.release(10))
        with pytest.raises(ProtocolError, match="MemoryError") as caught:
            await collector.record(trial(9))
    assert all(isinstance(error, ProtocolError) for error in ends.values())
    assert caught.value.__cause__ is disk.error


async def test_a_second_final_result_is_refused() -> None:
    disk = SlowDisk()
    async with Collector(disk, recorded=[TrialKey("t", 7)]) as collector:
        await collector.record(trial(0))
        for again in (0, 7):
            with pytest.raises(ProtocolError, match=f"second final result of t#{again}"):
                await collector.record(trial(again))
        with pytest.raises(ProtocolError, match="t#0"):
            await collector.record(trial(0), replaces=True)  # of this very run
    assert disk.batches == [[0]]


async def test_a_second_result_is_refused_while_the_first_is_on_its_way() -> None:
    disk = SlowDisk(held=True)
    async with Collector(disk) as collector, create_task_group() as tg:
        await queue_up(tg, collector, range(2))
        for index in range(2):
            with pytest.raises(ProtocolError, match="second final"):
                await collector.record(trial(index))
        disk.gate.release(2)
    assert disk.batches == [[0], [1]]


async def test_a_result_may_replace_one_of_an_earlier_run_once() -> None:
    disk = SlowDisk()
    async with Collector(disk, recorded=[TrialKey("t", 0)]) as collector:
        await collector.record(trial(0), replaces=True)
        await collector.record(trial(1), replaces=True)  # nothing to replace: an ordinary record
        with pytest.raises(ProtocolError):
            await collector.record(trial(0), replaces=True)
    assert [record.get("replaces") for record in disk.records] == [True, None]


async def test_a_result_that_is_none_concerns_its_own_task_only() -> None:
    disk = SlowDisk()
    async with Collector(disk) as collector:
        with pytest.raises(ProtocolError, match="the score of t#0 is nan"):
            await collector.record(trial(0, score=float("nan")))
        await collector.record(trial(1))
    assert disk.batches == [[1]]


async def test_a_listener_that_raises_fails_its_own_call_only() -> None:
    disk = SlowDisk()

    def on_recorded(result: TaskTrialResult) -> None:
        if result.trial_index == 0:
            raise ValueError("not my day")

    async with Collector(disk, on_recorded) as collector:
        with pytest.raises(ValueError, match="not my day"):
            await collector.record(trial(0))
        await collector.record(trial(1))
    assert disk.batches == [[0], [1]]


async def test_writes_do_not_wait_for_the_threads_of_others() -> None:
    disk = SlowDisk()
    release = threading.Event()
    async with Collector(disk) as collector, create_task_group() as tg:
        limiter = anyio.to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            tg.start_soon(anyio.to_thread.run_sync, lambda: release.wait(20))
        await checkpoint()
        try:
            await collector.record(trial(0))
        finally:
            release.set()


async def test_what_nobody_waits_for_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.collector.GATHER", 3600.0)
    disk = SlowDisk()
    with anyio.fail_after(20):
        async with Collector(disk) as collector:
            async with create_task_group() as tg:
                for index in range(3):
                    tg.start_soon(partial(collector.record, trial(index), hurry=False))
                for _ in range(20):
                    await checkpoint()
                assert disk.batches == []
                await collector.record(trial(3))  # it is in a hurry, and takes the others along
            async with create_task_group() as tg:
                tg.start_soon(partial(collector.record, trial(4), hurry=False))
                for _ in range(20):
                    await checkpoint()
                await collector.aclose()
    assert [sorted(batch) for batch in disk.batches] == [[0, 1, 2, 3], [4]]


async def test_without_company_a_record_is_written_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.collector.GATHER", 0.001)
    disk = SlowDisk()
    with anyio.fail_after(20):
        async with Collector(disk) as collector:
            for index in range(3):
                await collector.record(trial(index), hurry=False)
    assert disk.batches == [[0], [1], [2]]


async def test_who_waits_for_company_behind_a_write_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.collector.GATHER", 0.001)
    disk = SlowDisk(held=True)
    with anyio.fail_after(20):
        async with Collector(disk) as collector, create_task_group() as tg:
            await queue_up(tg, collector, range(1))
            await disk.write_started()
            for index in range(1, 4):
                tg.start_soon(partial(collector.record, trial(index), hurry=False))
            for _ in range(20):
                await checkpoint()
            disk.gate.release(2)
    assert [sorted(batch) for batch in disk.batches] == [[0], [1, 2, 3]]
