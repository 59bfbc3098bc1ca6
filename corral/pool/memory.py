"""SUPERVISOR SIDE. The memory limit: watches the process trees of running trials and kills those that pass it."""

from __future__ import annotations

import anyio
import psutil

from corral.errors import MemoryExceeded
from corral.pool.slots import Slot
from corral.pool.worker import TrialProcess
from corral.threads import call_blocking

INTERVAL = 0.25
"""Seconds between two looks."""


class MemoryWatch:
    """Looks at every trial process a few times a second, if there is a limit (bytes)."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    async def watch(self, slots: list[Slot]) -> None:
        """Until cancelled."""
        limit = self._limit
        while limit is not None:
            await anyio.sleep(INTERVAL)
            running = [slot.process for slot in slots if slot.process is not None and slot.process.alive]
            sizes = await call_blocking(lambda pids: [tree_rss(pid) for pid in pids], [p.pid for p in running])
            for process, size in zip(running, sizes, strict=True):
                if size > limit:
                    await self._kill(process, limit, size)

    async def _kill(self, process: TrialProcess, limit: int, size: int) -> None:
        await process.kill(MemoryExceeded.during("the trial", limit=limit, peak=size))


def tree_rss(pid: int) -> int:
    """Resident memory (bytes) of a process and all below it; 0 if it is gone."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
