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
from asyncio.subprocess import PIPE, Process
from itertools import count
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from corral.pool.dask.messages import HEADER

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
        link = None
        with tempfile.TemporaryFile() as log:
            try:
                environment = {**os.environ, **self._environment}
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, stderr=log, env=environment, start_new_session=True
                )
                link = _Link(process)
                async with asyncio.timeout(START_PATIENCE):
                    await link.begin(self._order)
            except (OSError, ValueError, EOFError) as error:
                if link is not None:
                    await link.close(patience=0)
                log.seek(0)
                said = log.read()[-LAST_WORDS:].decode("utf-8", "backslashreplace").strip()
                why = said.rpartition("\n")[2] or str(error) or type(error).__name__
                raise RuntimeError(f"the agent ({' '.join(command)}) did not start: {why}") from error
        return link


class _Link:
    """The streams to an agent, and the requests that wait for its answers."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self.greeting = ""
        self.incarnation = ""
        self.has_ended = False

    async def begin(self, order: bytes) -> None:
        """Give it its order and hear its greeting."""
        import json

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(HEADER.pack(0, len(order)) + order)
        self.greeting = (await self._process.stdout.readuntil(b"\n")).decode()
        self.incarnation = str(json.loads(self.greeting)["incarnation"])
        self._reading = asyncio.ensure_future(self._read(self._process.stdout))

    async def ask(self, body: bytes) -> bytes:
        """The answer to a request. ConnectionError if the agent ends first."""
        if self.has_ended or self._process.stdin is None:
            raise ConnectionError
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._process.stdin.write(HEADER.pack(number, len(body)) + body)
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    number, size = HEADER.unpack(await stream.readexactly(HEADER.size))
                    body = await stream.readexactly(size)
                    if (answer := self._waiting.get(number)) and not answer.done():
                        answer.set_result(body)
        finally:
            self.has_ended = True
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError())

    async def close(self, patience: float = END_PATIENCE) -> None:
        """End its input, and wait until it has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
