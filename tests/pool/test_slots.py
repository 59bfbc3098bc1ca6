"""Who gets a slot: first come, first served; nothing lost when a waiter gives up; nobody left waiting for nothing.

The races are made certain: the two events happen in one step of the test, with no await between them.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel
import pytest

from corral.errors import EnvStartError, ErrorRecord
from corral.pool.lifecycle import WorkerEvent, WorkerState
from corral.pool.slots import Slot, Slots

pytestmark = pytest.mark.anyio


def ready(slots: Slots, count: int = 1) -> list[Slot]:
    """``count`` new slots with a worker each."""
    new = [slots.add() for _ in range(count)]
    for slot in new:
        slot.advance(WorkerEvent.START)
        slot.advance(WorkerEvent.LOADED)
    slots.hand_out()
    return new


def die(slot: Slot) -> None:
    slot.advance(WorkerEvent.DIED)


def revive(slots: Slots, slot: Slot) -> None:
    slot.advance(WorkerEvent.START)
    slot.advance(WorkerEvent.LOADED)
    if slot.leased:
        slot.advance(WorkerEvent.LEASE)
    slots.hand_out()


class Queue:
    """Tasks that wait for a slot, each with a scope to cancel it and a note of what it got."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.got: dict[str, Slot | Exception] = {}
        self.scopes: dict[str, anyio.CancelScope] = {}

    async def wait(self, name: str) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            try:
                self.got[name] = await self.slots.take()
            except EnvStartError as error:
                self.got[name] = error


async def test_a_ready_slot_is_taken_at_once_and_only_once() -> None:
    slots = Slots()
    first, second = ready(slots, 2)
    assert await slots.take() is first
    assert (first.state, first.leased) == (WorkerState.BUSY, True)
    assert await slots.take() is second
    with anyio.move_on_after(0.01) as waited:
        await slots.take()
    assert waited.cancelled_caught


async def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    order: list[str] = []

    async def wait(name: str) -> None:
        await queue.wait(name)
        order.append(name)
        slots.give_back(slot)

    async with anyio.create_task_group() as tasks:
        for name in "abcdef":
            tasks.start_soon(wait, name)
            await anyio.wait_all_tasks_blocked()
        slots.give_back(slot)
    assert order == list("abcdef")


async def test_who_comes_later_does_not_overtake_the_queue() -> None:
    """A slot given back while others wait is theirs, even if a newcomer asks in the same step."""
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "first")
        await anyio.wait_all_tasks_blocked()
        slots.give_back(slot)
        with anyio.move_on_after(0.01) as late:
            await slots.take()
        assert late.cancelled_caught
    assert queue.got == {"first": slot}


async def test_a_waiter_cancelled_before_it_is_served_leaves_the_queue() -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(queue.wait, name)
            await anyio.wait_all_tasks_blocked()
        queue.scopes["a"].cancel()
        await anyio.wait_all_tasks_blocked()
        slots.give_back(slot)
    assert queue.got == {"b": slot}


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_a_waiter_cancelled_as_it_is_served_passes_its_slot_on(cancelled_first: bool) -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        for name in "ab":
            tasks.start_soon(queue.wait, name)
            await anyio.wait_all_tasks_blocked()
        steps: list[Callable[[], None]] = [lambda: slots.give_back(slot), queue.scopes["a"].cancel]
        for step in reversed(steps) if cancelled_first else steps:
            step()
        await anyio.wait_all_tasks_blocked()
        # Whether "a" notices its cancellation or its slot is the event loop's choice; the slot is never lost.
        assert list(queue.got.values()) == [slot]
        if "a" in queue.got:
            slots.give_back(slot)
    assert queue.got["b"] is slot


async def test_the_last_waiter_cancelled_as_it_is_served_leaves_the_slot_ready() -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "a")
        await anyio.wait_all_tasks_blocked()
        slots.give_back(slot)
        queue.scopes["a"].cancel()
    if "a" not in queue.got:
        assert (slot.state, slot.leased) == (WorkerState.READY, False)
        assert await slots.take() is slot


async def test_a_worker_that_dies_under_a_lease_keeps_its_lease() -> None:
    """The slot is not handed to another when its new worker is ready: its lease goes on with it."""
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    die(slot)
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "other")
        await anyio.wait_all_tasks_blocked()
        revive(slots, slot)
        await anyio.wait_all_tasks_blocked()
        assert queue.got == {}
        assert slot.state is WorkerState.BUSY
        slots.give_back(slot)
    assert queue.got == {"other": slot}


async def test_a_slot_given_back_without_a_worker_waits_for_the_next_worker() -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    die(slot)
    slots.give_back(slot)
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "next")
        await anyio.wait_all_tasks_blocked()
        assert queue.got == {}
        revive(slots, slot)
    assert queue.got == {"next": slot}
    assert slot.leased


def give_up(slots: Slots, slot: Slot, text: str) -> None:
    slot.error = EnvStartError(text, record=ErrorRecord("ImportError", text))
    slot.advance(WorkerEvent.GIVE_UP)
    slots.hand_out()


async def test_a_hopeless_pool_wakes_everyone_with_the_reason() -> None:
    slots = Slots()
    slot, other = slots.add(), slots.add()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(queue.wait, name)
        await anyio.wait_all_tasks_blocked()
        give_up(slots, slot, "no module named chemistry")
        await anyio.wait_all_tasks_blocked()
        assert queue.got == {}, "one slot may still come"
        give_up(slots, other, "no module named chemistry")
    errors = list(queue.got.values())
    assert len(errors) == 3
    for error in errors:
        assert isinstance(error, EnvStartError)
        assert "no module named chemistry" in str(error)
        assert error.record is not None
        assert error.record.type == "ImportError"
    with pytest.raises(EnvStartError, match="no module named chemistry"):
        await slots.take()


async def test_a_waiter_cancelled_as_the_pool_becomes_hopeless_is_just_cancelled() -> None:
    slots = Slots()
    slot = slots.add()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "a")
        await anyio.wait_all_tasks_blocked()
        queue.scopes["a"].cancel()
        give_up(slots, slot, "no module named chemistry")
    assert all(isinstance(got, EnvStartError) for got in queue.got.values())


async def test_closing_wakes_everyone() -> None:
    slots = Slots()
    (slot,) = ready(slots)
    await slots.take()
    queue = Queue(slots)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.wait, "a")
        await anyio.wait_all_tasks_blocked()
        slot.advance(WorkerEvent.STOP)
        slots.hand_out()
    assert "closed" in str(queue.got["a"])


async def test_many_random_cancellations_lose_no_slot() -> None:
    """200 waiters on 3 slots, two thirds of them cancelled at awkward moments: afterwards all slots are ready."""
    slots = Slots()
    ready(slots, 3)
    served = 0

    async def use(number: int) -> None:
        nonlocal served
        with anyio.CancelScope() as scope:
            if number % 3:
                tasks.start_soon(cancel_later, scope, number % 7)
            slot = await slots.take()
            try:
                for _ in range(number % 5):
                    await anyio.lowlevel.checkpoint()
                served += 1
            finally:
                slots.give_back(slot)

    async def cancel_later(scope: anyio.CancelScope, steps: int) -> None:
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(use, number)
    assert served >= 67
    assert [slot.state for slot in slots.all] == [WorkerState.READY] * 3
    assert not any(slot.leased for slot in slots.all)
