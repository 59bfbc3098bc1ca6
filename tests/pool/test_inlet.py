"""How bytes come in: nothing is lost, and nobody waits longer than for what comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from corral.pool.inlet import Inlet, open_inlet
from tests.conftest import UVLOOP

pytestmark = pytest.mark.anyio

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["asyncio", "trio", pytest.param(UVLOOP, id="uvloop")])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Each loop has its own way to tell what is readable."""
    if request.param is UVLOOP:
        pytest.importorskip("uvloop")
    return request.param


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def taking(sock: socket.socket) -> Callable[[], bytes]:
    return partial(sock.recv, 100)


async def test_one_read_after_the_other_takes_what_has_come(pair: Pair) -> None:
    ours, theirs = pair
    inlet = open_inlet(ours)
    for data in (b"one", b"two"):
        theirs.send(data)
        assert await inlet.read(taking(ours)) == data
    theirs.close()
    assert await inlet.read(taking(ours)) == b""
    inlet.close()


async def test_a_read_waits_until_something_comes(pair: Pair) -> None:
    ours, theirs = pair
    inlet = open_inlet(ours)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_later, theirs, b"late")
        assert await inlet.read(taking(ours)) == b"late"
    inlet.close()


async def _later(sock: socket.socket, data: bytes) -> None:
    await anyio.wait_all_tasks_blocked()
    sock.send(data)


async def test_a_read_that_is_cancelled_leaves_the_rest_to_the_next_one(pair: Pair) -> None:
    ours, theirs = pair
    inlet = open_inlet(ours)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(inlet.read, taking(ours))
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    theirs.send(b"for the next one")
    while getattr(inlet, "_registered", False):  # until the loop has seen that there is something that nobody wants
        await anyio.lowlevel.checkpoint()
    with anyio.fail_after(5):
        assert await inlet.read(taking(ours)) == b"for the next one"
    inlet.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_taken_is_not_lost_to_a_cancellation_in_the_same_moment(pair: Pair) -> None:
    """The bytes have left the socket, and in the same round of the loop the reader is cancelled."""
    ours, theirs = pair
    inlet, got = open_inlet(ours), list[bytes]()

    async def read() -> None:
        got.append(await inlet.read(taking(ours)))
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()

        def take_and_cancel() -> None:
            inlet._on_readable()  # type: ignore[attr-defined]
            tasks.cancel_scope.cancel()

        theirs.send(b"whole")
        asyncio.get_running_loop().call_soon(take_and_cancel)
    assert got == [b"whole"]
    inlet.close()


async def test_a_wake_up_for_nothing_wakes_nobody(pair: Pair) -> None:
    """As where another process took the bytes: the socket is readable, and then it is not."""
    ours, theirs = pair
    inlet, tries = open_inlet(ours), list[int]()

    def take() -> bytes:
        tries.append(1)
        if len(tries) < 3:
            raise BlockingIOError
        return ours.recv(100)

    theirs.send(b"at last")
    with anyio.fail_after(5):
        assert await inlet.read(take) == b"at last"
    assert len(tries) == 3
    inlet.close()


async def test_the_error_of_a_socket_is_raised_where_it_is_read(pair: Pair) -> None:
    ours, theirs = pair
    inlet = open_inlet(ours)
    ours.send(b"never read")
    theirs.close()  # with bytes unread: a reset
    with anyio.fail_after(5), pytest.raises(ConnectionResetError):
        await inlet.read(taking(ours))
    inlet.close()


async def test_who_waits_when_it_is_closed_is_told_and_so_is_who_comes_later(pair: Pair) -> None:
    ours, _ = pair
    inlet, told = open_inlet(ours), list[bool]()

    async def read() -> None:
        try:
            await inlet.read(taking(ours))
        except anyio.ClosedResourceError:
            told.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        _close(inlet, ours)
    await read()
    assert told == [True, True]


def _close(inlet: Inlet, sock: socket.socket) -> None:
    """As a channel does it."""
    inlet.close()
    anyio.notify_closing(sock)
    sock.close()
