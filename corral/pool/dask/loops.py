"""The event loops past one machine: those of a node's processes, and the driver's.

A node's processes use uvloop where it is installed, for it computes less for each call. The driver's loop stays that of
the user's process, where uvloop would take over the signal by which a process learns of the ends of its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of the best kind that there is, for a process on a node."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_driver(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the driver on a loop in this thread, to its end, and close the connections that it leaves open.

    Where the making of a connection is cancelled at the moment when it is there, it belongs to nobody: only the loop
    still knows it, and it would be open for as long as garbage is not collected.
    """
    from tornado.ioloop import IOLoop
    from tornado.platform.asyncio import BaseAsyncIOLoop

    known: list[BaseAsyncIOLoop] = []

    async def run() -> None:
        current = IOLoop.current()
        assert isinstance(current, BaseAsyncIOLoop)
        known.append(current)
        await main()

    try:
        asyncio.run(run())
    finally:
        for loop in known:
            for connection, _ in loop.handlers.values():
                loop.close_fd(connection)
