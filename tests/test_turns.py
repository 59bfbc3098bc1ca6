"""Turns: shares, order, and waiters that are cancelled."""

from __future__ import annotations

import anyio
import pytest

from corral.turns import Turn, Turns

pytestmark = pytest.mark.anyio


async def start(turns: Turns, run: str, served: list[str], tasks: anyio.abc.TaskGroup) -> list[Turn]:
    """Ask for a turn in the background; what it gets is put into the list that is given back."""
    got: list[Turn] = []

    async def ask() -> None:
        got.append(await turns.take(run))
        served.append(run)

    tasks.start_soon(ask)
    await anyio.wait_all_tasks_blocked()
    return got


async def test_a_run_with_fewer_turns_comes_first() -> None:
    turns, served = Turns(2), list[str]()
    async with anyio.create_task_group() as tasks:
        held = [await turns.take("greedy"), await turns.take("greedy")]
        for run in ("greedy", "greedy", "late"):
            await start(turns, run, served, tasks)
        assert (served, turns.waiting, turns.free) == ([], 3, 0)
        turns.give_back(held[0])
        await anyio.wait_all_tasks_blocked()
        assert served == ["late"]  # though two of the other run had asked before
        turns.give_back(held[1])
        await anyio.wait_all_tasks_blocked()
        assert served == ["late", "greedy"]  # one each: now the order of asking counts
        tasks.cancel_scope.cancel()


async def test_within_a_run_the_order_is_that_of_asking() -> None:
    turns = Turns(1)
    first, order = await turns.take("a"), list[int]()

    async def ask(number: int) -> None:
        turn = await turns.take("a")
        order.append(number)
        turns.give_back(turn)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, number)
            await anyio.wait_all_tasks_blocked()
        turns.give_back(first)
    assert order == [0, 1, 2, 3, 4]
    assert (turns.free, turns.waiting) == (1, 0)


async def test_a_waiter_that_is_cancelled_loses_nothing() -> None:
    turns = Turns(1)
    held = await turns.take("a")
    with anyio.move_on_after(0.01):
        await turns.take("b")
    assert turns.waiting == 0
    turns.give_back(held)
    assert turns.free == 1


async def test_a_waiter_that_is_cancelled_as_it_is_served_keeps_no_turn() -> None:
    turns, served = Turns(1), list[str]()
    held = await turns.take("a")

    async def doomed() -> None:
        turns.give_back(await turns.take("doomed"))

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(doomed)
                await anyio.wait_all_tasks_blocked()
                await start(turns, "next", served, tasks)
                turns.give_back(held)  # served now; cancelled before it can run
                scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert served == ["next"]
