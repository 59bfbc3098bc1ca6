"""What a task of asyncio waits for: it goes on at once, is told of errors, and can be cancelled as from a future."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from corral.waiting import Waiting
from tests.conftest import UVLOOP

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", pytest.param(UVLOOP, id="uvloop")])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The loops of asyncio."""
    if request.param is UVLOOP:
        pytest.importorskip("uvloop")
    return request.param


@pytest.fixture(params=["Task", "_PyTask"])
def begin(request: pytest.FixtureRequest) -> Callable[[Any], asyncio.Task[Any]]:
    """Both kinds of tasks that asyncio has: in C, and in Python, as some debuggers want them."""
    kind = vars(asyncio.tasks)[request.param]

    def begin(coroutine: Any) -> Any:
        return kind(coroutine, loop=asyncio.get_running_loop())

    return begin


async def wait_for(waiting: Waiting, told: list[Any]) -> Any:
    try:
        told.append(await waiting)
    except BaseException as error:
        told.append(type(error))
        raise
    return "over"


async def test_the_task_goes_on_in_the_very_callback(begin: Callable[[Any], asyncio.Task[Any]]) -> None:
    loop, told = asyncio.get_running_loop(), list[Any]()
    waiting = Waiting(loop)
    task = begin(wait_for(waiting, told))
    await asyncio.sleep(0)
    order: list[Any] = []

    def give() -> None:
        waiting.give("it")
        order.append(list(told))

    loop.call_soon(give)
    assert await task == "over"
    assert order == [["it"]]
    assert waiting.done()


async def test_what_was_given_before_is_there(begin: Callable[[Any], asyncio.Task[Any]]) -> None:
    waiting, told = Waiting(asyncio.get_running_loop()), list[Any]()
    waiting.give(1)
    waiting.give(2)
    await begin(wait_for(waiting, told))
    assert told == [1]


async def test_an_error_is_raised_where_it_is_waited_for(begin: Callable[[Any], asyncio.Task[Any]]) -> None:
    waiting, told = Waiting(asyncio.get_running_loop()), list[Any]()
    task = begin(wait_for(waiting, told))
    await asyncio.sleep(0)
    waiting.fail(OSError("gone"))
    with pytest.raises(OSError, match="gone"):
        await task
    assert told == [OSError]


async def test_who_is_cancelled_hears_nothing_of_what_comes_late(begin: Callable[[Any], asyncio.Task[Any]]) -> None:
    waiting, told = Waiting(asyncio.get_running_loop()), list[Any]()
    task = begin(wait_for(waiting, told))
    await asyncio.sleep(0)
    assert task.cancel("enough")
    waiting.give("late")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert told == [asyncio.CancelledError]


async def test_a_cancelled_scope_ends_the_wait() -> None:
    waiting = Waiting(asyncio.get_running_loop())
    with anyio.move_on_after(0.01) as scope:
        await waiting
    assert scope.cancelled_caught


@pytest.mark.parametrize("end", ["give", "fail", "cancel"])
async def test_who_waited_is_not_kept(begin: Callable[[Any], asyncio.Task[Any]], end: str) -> None:
    """Nor what it held, and not only until the garbage collector comes."""

    class Held:
        """What the task has in hand."""

    async def hold(held: Held) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await waiting

    waiting, held = Waiting(asyncio.get_running_loop()), Held()
    gone = weakref.ref(held)
    task = begin(hold(held))
    del held
    await asyncio.sleep(0)
    gc.disable()
    try:
        if end == "cancel":
            task.cancel()
        else:
            asyncio.get_running_loop().call_soon(waiting.give if end == "give" else lambda: waiting.fail(OSError()))
        await asyncio.wait([task])
        kept = weakref.ref(task)
        del task
        await asyncio.sleep(0)
        assert (gone(), kept()) == (None, None)
    finally:
        gc.enable()
