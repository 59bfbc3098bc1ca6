"""NODE SIDE. The memory limit: watches the process trees of running trials and kills those that pass it.

What counts
    Resident memory, of all processes of a trial together. Helpers that it forks share what was loaded before, and would
    be charged for it once each. So where the sum is over the limit, though no process is by itself, they are looked at
    more closely: a page that several share then counts once, in parts.
Guarantees
    A trial is killed for no more than it holds. The closer look reads the tables of all pages, and keeps their
    processes from new ones meanwhile: no more than SHARE of the time goes into it, so with large trials it comes less
    often than every INTERVAL.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio

from corral.errors import MemoryExceeded
from corral.pool.processes import tree_shares, tree_sizes
from corral.pool.trial_handle import TrialProcess
from corral.threads import call_blocking

INTERVAL = 0.25
"""Seconds between two looks."""
SHARE = 0.1
"""Of the time: how much closer looks may take."""


class MemoryWatch:
    """Looks at every trial process a few times a second, if there is a limit (bytes)."""

    def __init__(
        self,
        limit: int | None,
        *,
        sizes: Callable[[int], list[int]] = tree_sizes,
        shares: Callable[[int], int] = tree_shares,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``sizes``, ``shares``: how a process is measured, and how more closely."""
        self._limit = limit
        self._sizes = sizes
        self._shares = shares
        self._clock = clock
        self._closer_from = 0.0
        """When there may be closer looks again."""

    async def watch(self, processes: Callable[[], list[TrialProcess]]) -> None:
        """Until cancelled. ``processes``: those that there are."""
        limit = self._limit
        while limit is not None:
            await anyio.sleep(INTERVAL)
            running = [process for process in processes() if process.alive]
            used = await call_blocking(self.look, [process.pid for process in running], limit)
            for process, size in zip(running, used, strict=True):
                if size > limit:
                    await process.kill(MemoryExceeded.during("the trial", limit=limit, peak=size))

    def look(self, pids: list[int], limit: int) -> list[int]:
        """Bytes that each of them, and all below it, hold for certain."""
        sizes = [self._sizes(pid) for pid in pids]
        certain = [sum(each) if sum(each) <= limit else max(each) for each in sizes]
        unclear = [at for at, each in enumerate(sizes) if certain[at] <= limit < sum(each)]
        began = self._clock()
        if unclear and began >= self._closer_from:
            for at in unclear:
                certain[at] = max(certain[at], self._shares(pids[at]))
            ended = self._clock()
            self._closer_from = ended + (ended - began) * (1 - SHARE) / SHARE
        return certain
