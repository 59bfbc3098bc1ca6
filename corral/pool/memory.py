"""NODE SIDE. The memory limit: watches the process trees of running trials and kills those that pass it."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from corral.errors import MemoryExceeded
from corral.pool.processes import tree_rss
from corral.pool.trial_handle import TrialProcess
from corral.threads import call_blocking

INTERVAL = 0.25
"""Seconds between two looks."""


class MemoryWatch:
    """Looks at every trial process a few times a second, if there is a limit (bytes)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    async def watch(self, processes: Callable[[], list[TrialProcess]]) -> None:
        """Until cancelled. ``processes``: those that there are."""
        limit = self._limit
        while limit is not None:
            await anyio.sleep(INTERVAL)
            running = [process for process in processes() if process.alive]
            sizes = await call_blocking(lambda pids: [tree_rss(pid) for pid in pids], [p.pid for p in running])
            for process, size in zip(running, sizes, strict=True):
                if size > limit:
                    await process.kill(MemoryExceeded.during("the trial", limit=limit, peak=size))
