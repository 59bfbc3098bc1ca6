"""Workers as forks of the nursery: new to the user's code, independent of it once made, replaced at once."""

from __future__ import annotations

import os
import signal
from typing import Any

import anyio
import psutil
import pytest

from corral.pool import nursery
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python
from tests.support.pool_waiting import eventually, gone, lives

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name != "posix", reason="there is no fork")]


def build() -> Any:
    """Notes where and how it ran, for a tool to tell."""
    import random

    pool_envs.built_by = (os.getpid(), random.random())  # type: ignore[attr-defined]
    return pool_envs.build()


BUILT_BY = "from tests.support import pool_envs; result = list(pool_envs.built_by)"
PARENTS = """
import os, psutil
host = psutil.Process(os.getppid())
result = [host.pid, host.ppid()]
"""


async def test_workers_are_forks_of_one_interpreter_and_each_builds_for_itself() -> None:
    async with pool(build, size=3) as workers:
        async with workers.lease() as one, workers.lease() as two, workers.lease() as three:
            pids = {worker.pid for worker in workers.statistics().workers}
            built = [await python(lease, await opened(lease), BUILT_BY) for lease in (one, two, three)]
        parent = workers.statistics().nursery_pid
        assert parent is not None
        assert {psutil.Process(pid).ppid() for pid in pids if pid} == {parent}
        assert psutil.Process(parent).ppid() == os.getpid()
    assert len(pids) == 3
    assert {pid for pid, _ in built} == pids
    assert len({drawn for _, drawn in built}) == 3, "they were given the same random numbers"
    await gone(parent)


async def test_a_lost_worker_is_forked_anew_and_its_end_is_exact() -> None:
    async with pool() as workers:
        before, parent = await once(workers, PARENTS)
        worker = workers._slots.all[0].worker
        assert worker is not None
        os.kill(before, signal.SIGSEGV)
        await worker.gone.wait()
        assert worker.status == -signal.SIGSEGV
        after, same_parent = await once(workers, PARENTS)
    assert before != after
    assert parent == same_parent


async def test_workers_outlive_the_nursery_and_the_next_one_gets_another() -> None:
    async with pool() as workers:
        before, first = await once(workers, PARENTS)
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: workers.statistics().nursery_pid is None)
        assert (await once(workers, PARENTS))[0] == before
        os.kill(before, signal.SIGKILL)
        after, second = await once(workers, PARENTS)
    assert before != after
    assert second != first
    await gone(second, after)


async def test_a_nursery_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "PATIENCE", 1.0)
    async with pool() as workers:
        before, first = await once(workers, PARENTS)
        os.kill(first, signal.SIGSTOP)
        os.kill(before, signal.SIGKILL)
        with anyio.fail_after(30):
            after, second = await once(workers, PARENTS)
    assert before != after
    assert second != first
    await gone(first)


async def test_without_a_nursery_workers_are_interpreters_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "MAX_LOSSES", 0)
    async with pool(build, size=2) as workers:
        async with workers.lease(), workers.lease():
            pids = {worker.pid for worker in workers.statistics().workers}
        assert workers.statistics().nursery_pid is None
        assert {psutil.Process(pid).ppid() for pid in pids if pid} == {os.getpid()}


def end(spec: object) -> None:
    os._exit(3)


async def test_a_nursery_that_cannot_start_costs_two_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where something of the user's starts threads in every interpreter."""
    monkeypatch.setattr(nursery, "enter_nursery", end)
    async with pool(size=2) as workers:
        async with workers.lease(), workers.lease():
            pids = [worker.pid for worker in workers.statistics().workers]
        assert workers.statistics().nursery_pid is None
        assert all(pid is not None and lives(pid) for pid in pids)
        assert {psutil.Process(pid).ppid() for pid in pids if pid} == {os.getpid()}


async def test_a_pool_that_closes_while_a_worker_is_replaced_ends() -> None:
    """At every moment of it: no new nursery is made behind the back of the one that is being ended."""
    for number in range(20):
        with anyio.fail_after(30):
            async with pool() as workers:
                pid = workers.statistics().workers[0].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                await anyio.sleep(0.001 * number)
