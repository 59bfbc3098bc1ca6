from __future__ import annotations

from math import inf

import anyio
import pytest

from corral.agents.llm.throttle import Throttle, held_back, throttle_of

pytestmark = pytest.mark.anyio


async def test_at_first_nothing_is_held_back() -> None:
    throttle = Throttle()
    async with throttle.turn(), throttle.turn(), throttle.turn():
        assert throttle.in_flight == 3
    assert not throttle.is_lowered


async def test_a_refusal_halves_what_was_in_flight_and_once_only() -> None:
    throttle = Throttle()
    async with throttle.turn() as first, throttle.turn(), throttle.turn(), throttle.turn() as last:
        first.limited = last.limited = True  # sent at the same time: the second one tells nothing new
    assert throttle.limit == 2
    assert throttle.is_lowered


async def test_answers_raise_it_until_it_holds_nothing_back() -> None:
    throttle = Throttle()
    async with throttle.turn(), throttle.turn(), throttle.turn(), throttle.turn() as last:
        last.limited = True
    limits = []
    while throttle.is_lowered:
        async with throttle.turn() as turn:
            turn.succeeded = True
        limits.append(throttle.limit)
    assert limits == sorted(limits)
    assert (len(limits), throttle.limit) == (6, inf)


async def test_only_so_many_at_once_in_the_order_they_came() -> None:
    throttle = Throttle()
    throttle.limit = 2
    order: list[int] = []
    ends = [anyio.Event() for _ in range(6)]

    async def request(number: int) -> None:
        async with throttle.turn():
            order.append(number)
            await ends[number].wait()

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(request, number)
            await anyio.wait_all_tasks_blocked()
        for number in range(6):
            assert order == list(range(min(6, number + 2)))
            ends[number].set()
            await anyio.wait_all_tasks_blocked()


async def test_a_cancelled_waiter_passes_its_turn_on() -> None:
    throttle = Throttle()
    throttle.limit = 1
    got = anyio.Event()

    async def wait(scope: anyio.CancelScope, then: anyio.Event | None) -> None:
        with scope:
            async with throttle.turn():
                if then is not None:
                    then.set()

    first = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        async with throttle.turn():
            tasks.start_soon(wait, first, None)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(wait, anyio.CancelScope(), got)
            await anyio.wait_all_tasks_blocked()
        first.cancel()  # its turn had come in the same step
        with anyio.fail_after(5):
            await got.wait()


async def test_one_for_each_model_of_a_run_and_the_view_of_those_that_are_held_back() -> None:
    assert throttle_of("a/x") is throttle_of("a/x")
    assert throttle_of("a/x") is not throttle_of("b/y")
    assert held_back() == {}
    async with throttle_of("a/x").turn(), throttle_of("a/x").turn() as turn:
        turn.limited = True
    assert held_back() == {"requests to a/x (1 at once)": 0}
