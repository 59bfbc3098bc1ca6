"""Doors: who is on the way in when one is shut is turned back, and nobody is in without having been noted."""

from __future__ import annotations

import anyio
import pytest

from corral.door import Door

pytestmark = pytest.mark.anyio


class Refused(Exception):
    """The door was shut."""


async def enter(door: Door, way: anyio.Event, seen: list[str]) -> None:
    try:
        with door.entering():
            await way.wait()
            seen.append("in")
    except Refused:
        seen.append("refused")


async def test_who_is_on_the_way_is_turned_back_and_waited_for() -> None:
    door, seen = Door(Refused), list[str]()
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(enter, door, anyio.Event(), seen)
        await anyio.wait_all_tasks_blocked()
        assert door.in_use
        door.shut()
        assert seen == []
        with anyio.fail_after(5):
            await door.emptied()
        assert (seen, door.in_use) == (["refused"] * 2, False)
    with pytest.raises(Refused), door.entering():
        pytest.fail("it is shut")


async def test_who_is_in_is_not_turned_back() -> None:
    door, seen, way = Door(Refused), list[str](), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter, door, way, seen)
        await anyio.wait_all_tasks_blocked()
        way.set()
        await anyio.wait_all_tasks_blocked()
        door.shut()
        await door.emptied()
    assert seen == ["in"]


async def test_who_cannot_be_stopped_any_more_is_in_before_the_door_is_empty() -> None:
    """What is shielded goes on to its end; it has been noted by then, and can be closed."""
    door, inside, way = Door(Refused), list[str](), anyio.Event()

    async def enter_shielded() -> None:
        with door.entering():
            with anyio.CancelScope(shield=True):
                await way.wait()
            inside.append("noted")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(enter_shielded)
        await anyio.wait_all_tasks_blocked()
        door.shut()
        with anyio.move_on_after(0) as early:
            await door.emptied()
        assert early.cancelled_caught
        way.set()
        await door.emptied()
        assert inside == ["noted"]


async def test_a_cancellation_from_elsewhere_is_no_refusal() -> None:
    door, seen = Door(Refused), list[str]()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await enter(door, anyio.Event(), seen)
    assert (scope.cancelled_caught, seen, door.in_use) == (True, [], False)
