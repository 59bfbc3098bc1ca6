"""The memory limit: what counts as used, and how often that is looked at closely."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from corral.errors import MemoryExceeded
from corral.pool import agent, memory
from corral.pool.memory import MemoryWatch
from corral.pool.processes import tree_shares
from tests.support.pool_driving import opened, pool, python, respond

MIB = 2**20


class Measured:
    """Trees of processes whose closer look takes a second of its clock."""

    def __init__(self, sizes: dict[int, list[int]], shares: dict[int, int]) -> None:
        self.now = 100.0
        self.asked: list[int] = []
        self._shares = shares
        self.watch = MemoryWatch(None, sizes=sizes.__getitem__, shares=self._look, clock=lambda: self.now)

    def _look(self, pid: int) -> int:
        self.now += 1
        self.asked.append(pid)
        return self._shares[pid]


def test_only_a_tree_that_is_over_the_limit_as_a_whole_is_looked_at_closely() -> None:
    sizes = {1: [40, 40], 2: [90, 90], 3: [150, 10], 4: [60, 60], 5: [], 6: [101], 7: [99, 99]}
    measured = Measured(sizes, {2: 95, 4: 110, 7: 50})
    assert measured.watch.look(list(sizes), 100) == [80, 95, 150, 110, 0, 101, 99]
    assert measured.asked == [2, 4, 7]


def test_closer_looks_take_a_tenth_of_the_time() -> None:
    measured = Measured({1: [90, 90], 2: [70, 70]}, {1: 120, 2: 90})
    assert measured.watch.look([1, 2], 100) == [120, 90]
    measured.now += 17.9
    assert measured.watch.look([1, 2], 100) == [90, 70]
    assert measured.asked == [1, 2]
    measured.now += 0.2
    assert measured.watch.look([1, 2], 100) == [120, 90]
    assert measured.asked == [1, 2, 1, 2]


READERS = """
    import os, time
    held = b"x" * ({loaded} * 2**20)
    pids = []
    for _ in range(4):
        pid = os.fork()
        if not pid:
            own = b"y" * ({own} * 2**20)
            while not os.path.exists({end!r}):
                time.sleep(0.01)
            os._exit(0)
        pids.append(pid)
    result = [os.waitpid(pid, 0)[1] for pid in pids]
"""
"""Four helpers that share what is loaded, and hold some MiB of their own."""


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what is shared")
async def test_what_helpers_share_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    end = tmp_path / "end"

    def look(pid: int) -> int:
        looks.append(tree_shares(pid))
        if len(looks) > 2 and looks[-1] > 100 * MIB:  # fewer while one is being forked
            end.touch()
        return looks[-1]

    monkeypatch.setattr(agent, "MemoryWatch", partial(MemoryWatch, shares=look))
    monkeypatch.setattr(memory, "INTERVAL", 0.05)
    async with pool(memory_limit="200MiB") as workers, workers.lease() as lease:
        code = READERS.format(loaded=100, own=0, end=str(end))
        assert await python(lease, await opened(lease), code) == [0, 0, 0, 0]
    assert max(looks) < 200 * MIB


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
async def test_what_each_helper_holds_for_itself_counts_for_each(tmp_path: Path) -> None:
    """None of them is over the limit by itself."""
    async with pool(memory_limit="200MiB") as workers, workers.lease() as lease:
        code = READERS.format(loaded=50, own=60, end=str(tmp_path / "end"))
        with anyio.fail_after(30), pytest.raises(MemoryExceeded, match="over the memory limit of 200 MiB"):
            await respond(lease, await opened(lease), code)
