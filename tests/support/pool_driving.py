"""SUPERVISOR SIDE: short ways to drive a pool in tests."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from itertools import count
from typing import Any

from corral.pool import Lease, WorkerPool, WorkerPoolConfig
from corral.types import Action, ToolResponse, TrialSpec
from tests.support import pool_envs

_numbers = count(1)


def pool(build: Callable[[], Any] = pool_envs.build, **settings: Any) -> WorkerPool:
    """A pool of one worker, unless told otherwise."""
    return WorkerPool(build, WorkerPoolConfig(**{"size": 1, **settings}))


async def opened(lease: Lease, task_id: str = "a") -> str:
    """Open a trial; its id."""
    runtime_id = f"tr_{next(_numbers)}"
    await lease.open(TrialSpec(runtime_id, task_id))
    return runtime_id


async def python(lease: Lease, runtime_id: str, code: str) -> Any:
    """Run lines in the trial process; what they leave in ``result``. AssertionError if they raise."""
    response = await respond(lease, runtime_id, code)
    assert response.success, response.error
    return response.result


async def respond(lease: Lease, runtime_id: str, code: str) -> ToolResponse:
    """Run lines in the trial process; the tool's response."""
    arguments = ("python", {"code": textwrap.dedent(code)})
    response = await lease.perform(runtime_id, Action.EXECUTE, arguments, "tool python")
    assert isinstance(response, ToolResponse)
    return response


async def once(workers: WorkerPool, code: str, task_id: str = "a") -> Any:
    """Run lines in one trial on a lease of its own."""
    async with workers.lease() as lease:
        return await python(lease, await opened(lease, task_id), code)
