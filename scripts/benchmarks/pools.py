"""A worker pool with what stands before it in a run: the service that places trials, and a router."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from corral.pool import WorkerPool, WorkerPoolConfig
from corral.routers import AsyncLocalRouter
from corral.scratch import scratch_folder
from corral.service import TrialService
from corral.source import EnvironmentSource


class Served:
    """A pool that serves: open trials, call tools, close."""

    def __init__(self, pool: WorkerPool, service: TrialService) -> None:
        self.pool = pool
        self.router = AsyncLocalRouter(service)

    async def open(self, task_id: str) -> Trial:
        """A trial, its environment open."""
        opened = await self.router.create_trial(task_id)
        return Trial(self.router, opened["trial_runtime_id"], task_id)

    def pids(self, slot: int = 0) -> tuple[int, int | None]:
        """The worker of a slot, and its trial process."""
        worker = self.pool.statistics().workers[slot]
        if worker.pid is None:
            raise SystemExit(f"slot {slot} has no worker")
        return worker.pid, worker.trial_pid

    def pids_of_all(self) -> list[int]:
        """The workers of all slots."""
        return [worker.pid for worker in self.pool.statistics().workers if worker.pid is not None]

    async def all_ready(self) -> None:
        """Return when every slot is ready: all of them are leased at once for that."""
        async with anyio.create_task_group() as tasks:
            meeting = anyio.Event()
            here = 0

            async def lease() -> None:
                nonlocal here
                async with self.pool.lease():
                    here += 1
                    if here == self.pool.size:
                        meeting.set()
                    await meeting.wait()

            for _ in range(self.pool.size):
                tasks.start_soon(lease)


class Trial:
    """An open trial."""

    def __init__(self, router: AsyncLocalRouter, runtime_id: str, task_id: str) -> None:
        self._router = router
        self._bound = router.for_trial(runtime_id, task_id)
        self._runtime_id = runtime_id
        self._task_id = task_id

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """What the tool gives; SystemExit where it failed."""
        response = await self._bound.execute_tool(self._task_id, tool, arguments)
        if not response.success:
            raise SystemExit(f"{tool} failed: {response.error}")
        return response.result

    async def prompt(self) -> Any:
        """The task's prompt."""
        return await self._bound.get_task_prompt(self._task_id)

    async def close(self) -> None:
        """Close it."""
        await self._router.close_trial(self._runtime_id)


@asynccontextmanager
async def serving(build: Callable[[], Mapping[str, Any]], size: int, **settings: Any) -> AsyncIterator[Served]:
    """A pool with a service and a router. ``settings``: others of WorkerPoolConfig."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(WorkerPool(build, WorkerPoolConfig(size=size, **settings)))
        folder = Path(stack.enter_context(scratch_folder()))
        service = TrialService(EnvironmentSource(build), pool.catalogue, pool=pool, work_root=folder)
        stack.push_async_callback(service.aclose)
        yield Served(pool, service)
