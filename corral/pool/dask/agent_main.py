"""NODE SIDE. ``python -m corral.pool.dask.agent_main``: an agent as a process of its own, with a lease.

Purpose
    Requests come on standard input, from the Dask worker that started it, and answers go to what was standard output.
Guarantees
    * Without word from the driver for the lease's length, or at the end of its input, it ends all that it started, and
      itself, within END_PATIENCE. Neither a Dask worker that is stopped nor one that holds its interpreter keeps it.
    * What is not ended in order ends because this process does: its workers see the end of their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import platform
import secrets
import signal
import sys
import threading
import time
from dataclasses import replace
from importlib.metadata import version

import anyio

from corral.errors import ErrorRecord, ProtocolError
from corral.pool.agent import Agent, AgentSettings
from corral.pool.config import available_cpus
from corral.pool.dask.desk import Desk
from corral.pool.dask.loops import new_event_loop
from corral.pool.dask.messages import HEADER, AgentOrder, Bodies, Greeting, NotStarted, pack_answer, unpack_request
from corral.pool.inherited import close_inherited

END_PATIENCE = 3.0
"""Seconds for ending in order what it started, once its lease is over or its input has ended."""
TICK = 0.5
"""Seconds between two looks at the lease."""


def main() -> None:
    """Be an agent, to the end of this process."""
    close_inherited()
    commands, answers = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the driver decides, and the end of the input
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a Dask worker may have been started with it ignored
    order = _read_order(commands)
    if order is not None:
        _settle(order)
        anyio.run(_serve, order, commands, answers, backend_options={"loop_factory": new_event_loop})
    os._exit(0)


def greeting() -> Greeting:
    """What this agent is."""
    return Greeting(
        secrets.token_hex(8),
        os.getpid(),
        platform.node(),
        available_cpus(),
        platform.python_version(),
        version("corral"),
        version("cloudpickle"),
    )


def _read_order(commands: int) -> AgentOrder | None:
    data = b""
    size = HEADER.size
    while len(data) < size:
        part = os.read(commands, size - len(data))
        if not part:
            return None
        data += part
        if len(data) == HEADER.size:
            size += HEADER.unpack(data)[1]
    try:
        order: AgentOrder = pickle.loads(data[HEADER.size :])
    except Exception:  # of another version: the greeting will tell
        return AgentOrder(AgentSettings(None, None, None), lease=60.0)
    return order


def _settle(order: AgentOrder) -> None:
    """Where the user's modules are found, if these places are there on this machine."""
    if os.path.isdir(order.folder):
        with contextlib.suppress(OSError):
            os.chdir(order.folder)
    sys.path[:0] = [place for place in order.path if os.path.exists(place) and place not in sys.path]


async def _serve(order: AgentOrder, commands: int, answers: int) -> None:
    settings = order.settings
    if settings.main is not None and not os.path.isfile(settings.main.path):
        settings = replace(settings, main=None)
    over = anyio.Event()
    loop = asyncio.get_running_loop()
    async with Agent(settings) as agent:
        inlet = _Inlet(Desk(agent, over.set), over)
        await loop.connect_read_pipe(lambda: inlet, os.fdopen(commands, "rb", buffering=0))
        inlet.outlet, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(answers, "wb", buffering=0))
        inlet.outlet.write(greeting().to_line())
        await inlet.wait_for_the_end(order.lease)
        if not inlet.in_order:
            _end_soon()


def _end_soon() -> None:
    def end() -> None:
        time.sleep(END_PATIENCE)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


class _Inlet(asyncio.Protocol):
    """Takes requests from the stream, each to be answered in a task of its own."""

    outlet: asyncio.WriteTransport

    def __init__(self, desk: Desk, over: anyio.Event) -> None:
        self._desk = desk
        self._over = over
        self._bodies = Bodies()
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard = time.monotonic()
        self.in_order = True
        """Whether the driver itself said that it is over."""

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        for number, body in self._bodies.feed(data):
            task = asyncio.get_running_loop().create_task(self._answer(number, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, body: bytes) -> None:
        try:
            answer = pack_answer(await self._desk.answer(unpack_request(body)))
        except Exception as error:  # a fault of Corral's: the driver is to hear of it, and not to wait for ever
            answer = pack_answer(NotStarted.of(ProtocolError(f"an agent failed: {ErrorRecord.of(error)}")))
        self.outlet.write(HEADER.pack(number, len(answer)) + answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.in_order = False
        self._over.set()

    async def wait_for_the_end(self, lease: float) -> None:
        """Until the driver has no more use for this agent, its input has ended, or the lease is over."""
        while not self._over.is_set():
            if time.monotonic() - self._heard > lease:
                self.in_order = False
                return
            with anyio.move_on_after(TICK):
                await self._over.wait()


if __name__ == "__main__":
    main()
