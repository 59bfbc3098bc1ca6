"""SUPERVISOR SIDE. From settings to a running Dask cluster, on the asyncio loop of the driver.

Guarantees
    * Entered, the scheduler runs in this process and at least one node has come; the others join when they come. A node
      that is lost is replaced.
    * Left, no process and no job of it is there; a supervisor that is killed takes its nodes along: they end when their
      connection to the scheduler breaks.
    * All traffic is encrypted and both ends show certificates: given ones, or some that exist only for this run.
Assumptions
    distributed is imported here and in the modules below, late: nobody pays for it who does not use it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from corral.errors import ConfigError, EnvStartError
from corral.pool.dask.batch import batch_nodes
from corral.pool.dask.launch import BatchNodes, Launch
from corral.pool.dask.piped import piped_nodes
from corral.pool.dask.started import Started

if TYPE_CHECKING:
    from distributed import Security


@contextlib.asynccontextmanager
async def launched(launch: Launch, security: Security | None = None) -> AsyncIterator[Started]:
    """Start what ``launch`` says; without ``security``, with certificates of its own.

    Raises:
        ConfigError: something that it needs is not installed, or the batch system's commands are not there.
        EnvStartError: no node came within the launch's ``start_timeout``, or none can come.
    """
    security = security or _temporary_security()
    opening = batch_nodes(launch, security) if isinstance(launch, BatchNodes) else piped_nodes(launch, security)
    async with opening as started:
        await _first_node(started, launch.start_timeout)
        yield started


def _temporary_security() -> Security:
    try:
        from distributed import Security

        return Security.temporary()
    except ImportError as error:
        raise ConfigError(
            f"nodes of a pool need {error.name or 'distributed and cryptography'}: pip install 'corral[dask]'"
        ) from error


async def _first_node(started: Started, patience: float) -> None:
    waits = [asyncio.ensure_future(started.arrival()), asyncio.ensure_future(started.hopeless())]
    try:
        done, _ = await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if waits[0] in done:
            return
    finally:
        for wait in waits:
            wait.cancel()
    what = "no node can be started" if done else f"no node came within {patience:g} s"
    raise EnvStartError(f"{what}: {started.troubles()}")
