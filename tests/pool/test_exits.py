"""Who may end when many could at once."""

from __future__ import annotations

from collections import defaultdict

import anyio
import pytest
from anyio.lowlevel import checkpoint

from corral.pool import exits
from corral.pool.exits import Exits

pytestmark = pytest.mark.anyio


class Queue:
    """Those that want to end, and who has had its turn."""

    def __init__(self, most: int) -> None:
        self.exits = Exits(most)
        self.let = list[str]()
        self.ended: dict[str, anyio.Event] = defaultdict(anyio.Event)

    async def come(self, name: str) -> None:
        await self.exits.turn(self.ended[name])
        self.let.append(name)

    def go(self, name: str) -> None:
        self.ended[name].set()
        self.exits.has_gone(self.ended[name])


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


async def test_as_many_at_once_as_there_is_room_for_and_the_others_in_the_order_in_which_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exits, "PATIENCE", 60.0)
    queue = Queue(2)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for name in "abcde":
                tasks.start_soon(queue.come, name)
                await settle()
            assert queue.let == ["a", "b"]
            queue.go("b")
            await settle()
            assert queue.let == ["a", "b", "c"]
            queue.go("b")  # of one that has gone already there is no news
            await settle()
            assert queue.let == ["a", "b", "c"]
            queue.go("a")
            await settle()
            queue.go("c")
    assert queue.let == ["a", "b", "c", "d", "e"]


async def test_nobody_waits_for_those_that_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "PATIENCE", 0.01)
    queue = Queue(1)
    with anyio.fail_after(10):
        await queue.come("slow")
        await queue.come("next")
        await queue.come("last")
    queue.go("next")  # it never had its turn: there is no more room for that
    monkeypatch.setattr(exits, "PATIENCE", 60.0)
    with anyio.move_on_after(0.05):
        await queue.come("another")
    assert queue.let == ["slow", "next", "last"]
    queue.go("slow")
    with anyio.fail_after(10):
        await queue.come("another")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_one_that_ends_by_itself_takes_no_turn(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that has crashed is closed all the same."""
    monkeypatch.setattr(exits, "PATIENCE", 60.0)
    queue = Queue(1)
    with anyio.fail_after(10):
        if when == "before":
            queue.go("crashed")
            await queue.come("crashed")
        else:
            await queue.come("first")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(queue.come, "crashed")
                await settle()
                queue.go("crashed")
                queue.go("first")
        await queue.come("next")
        queue.go("next")
        await queue.come("last")


async def test_one_that_gives_up_waiting_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "PATIENCE", 60.0)
    queue = Queue(1)
    with anyio.fail_after(10):
        await queue.come("a")
        with anyio.move_on_after(0.01):
            await queue.come("b")
        queue.go("a")
        await queue.come("c")
    assert queue.let == ["a", "c"]
