"""SUPERVISOR SIDE. How bytes come in from a socket: as cheaply as each event loop allows.

Why not ``anyio.wait_readable`` alone: on asyncio it registers and unregisters the socket with the selector for every
wait, which is a third of what a tool call costs. There the socket stays registered, and who waits goes on in the very
callback that says that there is something to read; on trio, waiting is cheap already.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import anyio

from corral.waiting import Waiting

T = TypeVar("T")


class Inlet(Protocol):
    """Where bytes come in. One task may wait at a time."""

    async def read(self, take: Callable[[], T]) -> T:
        """What ``take`` gives, which reads from the socket: called once there is something to read.

        Raises OSError for a socket that failed, anyio.ClosedResourceError for one that was closed.
        """

    def close(self) -> None:
        """Let go of the socket, which is about to be closed."""


def open_inlet(sock: socket.socket) -> Inlet:
    """The inlet for this event loop."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return _WaitingInlet(sock)
    loop = asyncio.get_running_loop()
    if isinstance(loop, getattr(asyncio, "ProactorEventLoop", ())):  # of Windows: it has no readiness to tell
        return _WaitingInlet(sock)
    return _RegisteredInlet(sock, loop)


class _WaitingInlet:
    """Waits anew each time."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._closed = False

    async def read(self, take: Callable[[], T]) -> T:
        while not self._closed:
            await anyio.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                return take()
        raise anyio.ClosedResourceError

    def close(self) -> None:
        self._closed = True
        anyio.notify_closing(self._socket)


class _RegisteredInlet:
    """Stays registered with asyncio's selector. Bytes are read only while somebody waits: the rest is the kernel's."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = sock
        self._loop = loop
        self._wait: Waiting | None = None
        self._take: Callable[[], Any] = lambda: None
        self._registered = False
        self._closed = False

    async def read(self, take: Callable[[], T]) -> T:
        if self._closed:
            raise anyio.ClosedResourceError
        self._wait = wait = Waiting(self._loop)
        self._take = take
        if not self._registered:
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
            self._registered = True
        try:
            return await wait  # type: ignore[no-any-return]
        finally:
            self._wait = None

    def _on_readable(self) -> None:
        wait = self._wait
        if wait is None or wait.done():  # nobody waits: come back when somebody does
            self._unregister()
            return
        try:
            value = self._take()
        except BlockingIOError:
            return
        except OSError as error:
            wait.fail(error)
        else:
            wait.give(value)

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._socket.fileno())

    def close(self) -> None:
        self._closed = True
        self._unregister()
        if self._wait is not None and not self._wait.done():
            self._wait.fail(anyio.ClosedResourceError())
