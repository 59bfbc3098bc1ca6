"""NODE SIDE. What is put into a Dask worker: a plugin that starts the node's agent, and passes bytes on to it.

Purpose
    Environments are not run in Dask's own processes, and Dask's tasks and actors are not used: a call that holds the
    interpreter would be taken for a dead worker, and nothing but that worker could be killed. So all that Corral does
    on a node is done by a process of its own, the agent, and this is the way to it.
Guarantees
    * Nothing that passes is opened here. A request for another incarnation of the agent than the one that runs is
      answered as such, and goes no further.
    * When the plugin is taken out, or the Dask worker closes or is killed, the agent's input ends, and it ends with all
      that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from asyncio.subprocess import PIPE
from itertools import count
from typing import Any, cast

from distributed.diagnostics.plugin import WorkerPlugin

from corral.pool.dask.messages import HEADER, Bodies

START_PATIENCE = 60.0
"""Seconds for an agent to say that it is there."""
END_PATIENCE = 15.0
"""Seconds for an agent to end what it started, and itself."""
LAST_WORDS = 2000
"""Bytes of an agent's log that are shown where it does not start."""

Reply = dict[str, Any]
"""``{"body": bytes}``, ``{"greeting": text}``, ``{"failed": why}`` or ``{"stale": True}``."""


class AgentPlugin(WorkerPlugin):  # type: ignore[misc]  # its base is untyped
    """One pool's agent in one Dask worker."""

    def __init__(
        self, name: str, order: bytes, prefix: tuple[str, ...], interpreter: str | None, environment: dict[str, str]
    ) -> None:
        """``order``: a pickled AgentOrder, for the agent alone to open. ``name``: of the plugin, and its handler."""
        self.name = name
        self._order = order
        self._command = [*prefix, interpreter or "", "-u", "-m", "corral.pool.dask.agent_main"]
        self._command_at = len(prefix)
        self._environment = environment

    def setup(self, worker: Any) -> None:
        """Called by Dask, on the worker's event loop."""
        self._link: _Link | None = None
        self._starting = asyncio.Lock()
        worker.handlers[self.name] = self.handle

    async def teardown(self, worker: Any) -> None:
        """Called by Dask when the plugin is taken out, or the worker closes."""
        worker.handlers.pop(self.name, None)
        async with self._starting:
            await self._end_agent()

    async def handle(self, incarnation: str = "", body: bytes = b"", lost: tuple[str, ...] = ()) -> Reply:
        """Answer the driver. Without a ``body``: greet; an agent among those that it calls ``lost`` is replaced."""
        if not body:
            async with self._starting:
                return await self._greet(lost)
        if self._link is None or self._link.incarnation != incarnation:
            return {"stale": True}
        try:
            return {"body": await self._link.ask(body)}
        except ConnectionError:
            return {"stale": True}

    async def _greet(self, lost: tuple[str, ...]) -> Reply:
        if self._link is not None and (self._link.has_ended or self._link.incarnation in lost):
            await self._end_agent()
        if self._link is None:
            try:
                link = await self._start()
            except RuntimeError as error:
                return {"failed": str(error)}
            self._link = link
        return {"greeting": self._link.greeting}

    async def _end_agent(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _start(self) -> _Link:
        command = list(self._command)
        command[self._command_at] = command[self._command_at] or sys.executable
        link = _Link()
        with tempfile.TemporaryFile() as log:
            try:
                environment = {**os.environ, **self._environment}
                await asyncio.get_running_loop().subprocess_exec(
                    lambda: link, *command, stdin=PIPE, stdout=PIPE, stderr=log, env=environment, start_new_session=True
                )
                async with asyncio.timeout(START_PATIENCE):
                    await link.begin(self._order)
            except (OSError, ValueError) as error:
                await link.close(patience=0)
                log.seek(0)
                said = log.read()[-LAST_WORDS:].decode("utf-8", "backslashreplace").strip()
                why = said.rpartition("\n")[2] or str(error) or type(error).__name__
                raise RuntimeError(f"the agent ({' '.join(command)}) did not start: {why}") from error
        return link


class _Link(asyncio.SubprocessProtocol):
    """An agent's process, its streams, and the requests that wait for its answers."""

    def __init__(self) -> None:
        self._process: asyncio.SubprocessTransport | None = None
        self._commands: asyncio.WriteTransport
        self._numbers = count(1)
        self._bodies = Bodies()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._greeted: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._first = b""
        """What came of the greeting, which is a line."""
        self._exited = asyncio.Event()
        self.greeting = ""
        self.incarnation = ""
        self.has_ended = False

    async def begin(self, order: bytes) -> None:
        """Give it its order and hear its greeting. ConnectionError, or ValueError, if that is not one."""
        import json

        self._commands.write(HEADER.pack(0, len(order)) + order)
        self.greeting = (await self._greeted).decode()
        self.incarnation = str(json.loads(self.greeting)["incarnation"])

    async def ask(self, body: bytes) -> bytes:
        """The answer to a request. ConnectionError if the agent ends first."""
        if self.has_ended or self._commands.is_closing():
            raise ConnectionError
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._commands.write(HEADER.pack(number, len(body)) + body)
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self, patience: float = END_PATIENCE) -> None:
        """End its input, and wait until it has ended."""
        if self._process is None:
            return
        self._commands.close()
        try:
            async with asyncio.timeout(patience):
                await self._exited.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._exited.wait()
        self._process.close()

    # ---- what asyncio calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._process = cast(asyncio.SubprocessTransport, transport)
        self._commands = cast(asyncio.WriteTransport, self._process.get_pipe_transport(0))

    def pipe_data_received(self, descriptor: int, data: bytes) -> None:
        if not self._greeted.done():
            line, end, data = (self._first + data).partition(b"\n")
            self._first = line
            if not end:
                return
            self._greeted.set_result(line)
        for number, body in self._bodies.feed(data):
            if (answer := self._waiting.get(number)) is not None and not answer.done():
                answer.set_result(body)

    def pipe_connection_lost(self, descriptor: int, error: Exception | None) -> None:
        if descriptor != 1:
            return
        self.has_ended = True
        for answer in (self._greeted, *self._waiting.values()):
            if not answer.done():
                answer.set_exception(ConnectionResetError("it ended"))

    def process_exited(self) -> None:
        self._exited.set()
