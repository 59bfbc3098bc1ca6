"""The connection to a cluster ends: whoever waits for an answer, or asks too late, is told so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import anyio
import pytest

pytest.importorskip("distributed")

from corral.pool.dask.config import DaskConfig
from corral.pool.dask.engine import CLOSED, Engine, NodeGone

pytestmark = pytest.mark.anyio


class Mute(Engine):
    """Its cluster is there, and answers nothing."""

    asked = False

    async def _main(self, opened: Callable[[], None]) -> None:
        self._over, self._opening = asyncio.Event(), asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        opened()
        await self._over.wait()

    def _begin(self, *request: Any) -> None:
        self.asked = True


class Masked(Mute):
    """Knows which signals its thread holds off."""

    held_off: set[Any]

    async def _main(self, opened: Callable[[], None]) -> None:
        self.held_off = set(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        await super()._main(opened)


class Broken(Mute):
    """Its driver fails while a call is under way."""

    def _begin(self, *request: Any) -> None:
        self._over.set()

    async def _main(self, opened: Callable[[], None]) -> None:
        await super()._main(opened)
        raise KeyError("a fault")


def never() -> Any:
    raise AssertionError


@pytest.fixture
async def engine() -> Mute:
    engine = Mute(DaskConfig("tls://nowhere:1"), never, None, lambda event: None)
    await engine.open()
    return engine


async def test_what_is_written_to_a_lost_node_sends_the_driver_no_signal() -> None:
    engine = Masked(DaskConfig("tls://nowhere:1"), never, None, lambda event: None)
    await engine.open()
    await engine.close()
    assert engine.held_off == {signal.SIGPIPE}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), "other threads have it as the user wants it"


async def test_a_call_that_is_under_way_ends_with_the_connection(engine: Mute) -> None:
    told: list[str] = []

    async def call() -> None:
        with pytest.raises(NodeGone) as gone:
            await engine.call("node", b"a request")
        told.append(gone.value.reason)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            await engine.close()
    assert (engine.asked, told) == (True, [CLOSED])


async def test_a_call_that_comes_too_late_is_not_made(engine: Mute) -> None:
    await engine.close()
    with anyio.fail_after(10), pytest.raises(NodeGone, match=CLOSED):
        await engine.call("node", b"a request")
    assert not engine.asked
    await engine.close()  # once more is no error


async def test_a_driver_that_failed_is_no_pool_that_was_closed() -> None:
    engine = Broken(DaskConfig("tls://nowhere:1"), never, None, lambda event: None)
    await engine.open()
    for _ in range(2):  # under way, and too late
        with anyio.fail_after(10), pytest.raises(NodeGone, match="its driver failed: KeyError: 'a fault'"):
            await engine.call("node", b"a request")
    await engine.close()
