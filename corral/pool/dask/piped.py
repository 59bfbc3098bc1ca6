"""SUPERVISOR SIDE. Nodes that are processes started from here, on this machine or at the other end of ``ssh``.

Guarantees
    * A node process that ended is started again, after a wait that grows while its ends follow each other quickly.
    * Every node process hangs by its standard input, a leash: whatever ends this process ends them.
    * No certificate is in a command line or a file: they go through that input.
Why not distributed's LocalCluster and SSHCluster: the nodes of the first run the user's main script first, as
multiprocessing does it; the second shows keys in command lines, and its nodes outlive a supervisor that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from corral.errors import ConfigError, describe_exit
from corral.leash import Leash
from corral.pool.config import available_cpus
from corral.pool.dask.launch import LocalNodes, SSHNodes
from corral.pool.dask.started import SCHEDULER_OPTIONS, Started, end_of_log, quiet, worker_credentials
from corral.scratch import scratch_folder

if TYPE_CHECKING:
    from distributed import Scheduler, Security

MAX_STARTS = 3
"""Ends in a row, before any node has come, after which none is waited for."""

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds between the end of a node process and the next one's start; doubled each time."""

STEADY = 60.0
"""Seconds that a node process must have lived for its end to count as the first one again."""

END_PATIENCE = 8.0
"""Seconds from the end of its input until a node process, which allows itself 5, is killed."""

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""Asks for nothing, and notices within 15 s that the other end is gone."""


@contextlib.asynccontextmanager
async def piped_nodes(launch: LocalNodes | SSHNodes, security: Security) -> AsyncIterator[Started]:
    """A scheduler here, and the node processes that ``launch`` names."""
    from distributed import Scheduler

    where = {"host": "127.0.0.1"} if isinstance(launch, LocalNodes) else {"interface": launch.interface}
    with scratch_folder() as folder, quiet():
        async with Scheduler(protocol="tls://", port=0, security=security, **where, **SCHEDULER_OPTIONS) as scheduler:
            nodes = _PipedNodes(_commands(launch, scheduler.address), scheduler, security, Path(folder))
            try:
                await nodes.scale(len(launch.names))
                yield nodes
            finally:
                await nodes.scale(0)


def _commands(launch: LocalNodes | SSHNodes, scheduler: str) -> dict[str, list[str]]:
    """What starts each node, by its name."""
    python = launch.python or sys.executable
    nodes = {
        name: [python, "-m", "corral.pool.dask.node", scheduler, "--piped", "--name", name] for name in launch.names
    }
    if isinstance(launch, LocalNodes):
        if shutil.which(python) is None:
            raise ConfigError(f"the python of nodes, {python}, is no program of this machine")
        share = max(1, available_cpus() // launch.nodes)
        return {name: [*node, "--nthreads", str(share)] for name, node in nodes.items()}
    if shutil.which("ssh") is None:
        raise ConfigError("nodes by ssh need the program ssh, which is not on the PATH here")
    options = [part for name, value in launch.options.items() for part in ("-o", f"{name}={value}")]
    variables = [f"{name}={value}" for name, value in launch.environment.items()]
    return {
        name: [*SSH, *options, "--", host, shlex.join(["exec", "env", *variables, *nodes[name]])]
        for name, host in zip(launch.names, launch.hosts, strict=True)
    }


class _PipedNodes(Started):
    def __init__(self, commands: dict[str, list[str]], scheduler: Scheduler, security: Security, folder: Path) -> None:
        super().__init__(scheduler, security)
        self._commands = commands
        self._folder = folder
        self._nodes: dict[str, _Node] = {}

    async def scale(self, nodes: int) -> None:
        if nodes > len(self._commands):
            raise ConfigError(f"there can be {len(self._commands)} nodes, not {nodes}: the launch names no more")
        names = list(self._commands)
        credentials = json.dumps(worker_credentials(self.security)).encode() + b"\n"
        for name in names[:nodes]:
            if name not in self._nodes:
                self._nodes[name] = _Node(name, self._commands[name], credentials, self._folder / f"{name}.log")
        ended = [self._nodes.pop(name) for name in names[nodes:] if name in self._nodes]
        await asyncio.gather(*(node.end() for node in ended))

    async def hopeless(self) -> None:
        await asyncio.gather(*(node.given_up.wait() for node in self._nodes.values()))

    def troubles(self) -> str:
        told = [f"{name} {node.last_words()}" for name, node in self._nodes.items()]
        return "\n".join(dict.fromkeys(told))


class _Node:
    """Keeps one process running until it is told to end."""

    def __init__(self, name: str, command: list[str], credentials: bytes, log: Path) -> None:
        self._command = command
        self._credentials = credentials
        self._log = log
        self._status: int | None = None
        self.given_up = asyncio.Event()
        """Set after MAX_STARTS ends in a row; the node is tried all the same."""
        self._task = asyncio.create_task(self._keep(), name=f"node {name}")

    async def end(self) -> None:
        """End the process, and return when it is gone."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def last_words(self) -> str:
        """How its last process ended and what it printed."""
        how = "has not ended, and printed" if self._status is None else describe_exit(self._status)
        return how + end_of_log(self._log)

    async def _keep(self) -> None:
        clock = asyncio.get_running_loop().time
        ends, wait = 0, FIRST_WAIT
        while True:
            began = clock()
            self._status = None
            self._status = await self._live()
            if clock() - began > STEADY:
                ends, wait = 0, FIRST_WAIT
            ends += 1
            if ends >= MAX_STARTS:
                self.given_up.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _live(self) -> int:
        """One process, from its start to its end; its exit status."""
        with Leash() as leash:
            with self._log.open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=leash.end,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a terminal's Ctrl-C is for the supervisor, which ends them in order
                )
            leash.given()
            try:
                with contextlib.suppress(ConnectionError):  # it has ended already
                    leash.write(self._credentials)
                return await process.wait()
            finally:
                leash.let_go()
                await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(END_PATIENCE):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
