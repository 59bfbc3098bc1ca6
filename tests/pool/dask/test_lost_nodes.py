"""Nodes that are lost without a word: the cable pulled between two networks, a frozen machine; and one that is late.

What is lost is known within the driver's patience; what ran there ends by its lease, as nobody can tell it to.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import psutil
import pytest

pytest.importorskip("distributed")

from corral.errors import WorkerDied
from corral.pool import Lease, WorkerPool
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.launch import LocalNodes
from tests.support import networks
from tests.support.dask_cluster import Cluster, cluster
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.pool_waiting import eventually, gone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.anyio]

needs_networks = pytest.mark.skipif(bool(networks.missing()), reason=networks.missing())

LEASE = 6.0

SLEEP = "import time; time.sleep(600)"
PID = "import os; result = os.getpid()"


@pytest.fixture
def cable() -> Iterator[networks.Cable]:
    with networks.cable() as laid:
        yield laid


@contextlib.asynccontextmanager
async def pool_on(there: Cluster, size: int) -> AsyncIterator[WorkerPool]:
    config = DaskConfig(there.address, there.certificates, lease=LEASE, slots_per_node=1)
    async with pool(size=size, backend="dask", dask=config) as workers:
        await eventually(lambda: workers.statistics().idle == size, within=60)
        yield workers


@contextlib.asynccontextmanager
async def leases(workers: WorkerPool, number: int) -> AsyncIterator[dict[str, tuple[Lease, str, int]]]:
    """A trial open on each node: by the node's name its lease, its id and the pid of its process."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for _ in range(number):
            lease = await stack.enter_async_context(workers.lease())
            runtime_id = await opened(lease)
            found[str(lease.worker.node)] = (
                lease,
                runtime_id,
                await python(lease, runtime_id, "import os; result = os.getpid()"),
            )
        yield found


def below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


async def check_loss(workers: WorkerPool, lost: str, trial: tuple[Lease, str, int]) -> None:
    """The trial's call, under way, ends with its node; the pool serves on."""
    lease, runtime_id, _ = trial
    with pytest.raises(
        WorkerDied, match=rf"node {lost} was lost during tool python \(.*\), and the trial process"
    ) as caught:
        await respond(lease, runtime_id, SLEEP)
    assert caught.value.kind.retried


@needs_networks
@pytest.mark.parametrize("how", ["pull", "swallow"])
async def test_a_node_behind_a_cable_that_is_pulled(how: str, cable: networks.Cable, tmp_path: Path) -> None:
    with cluster(tmp_path, cable.near) as there:
        there.add("near")
        far = there.add("far", cable.prefix)
        async with pool_on(there, 2) as workers, leases(workers, 2) as trials:
            assert sorted(trials) == ["far", "near"]
            on_far = below(far.pid)
            assert trials["far"][2] in on_far
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(check_loss, workers, "far", trials["far"])
                await anyio.sleep(0.5)  # the call is under way; if it were not, it would fail all the same
                getattr(cable, how)()
            near, runtime_id, pid = trials["near"]
            assert await python(near, runtime_id, "import os; result = os.getpid()") == pid
            await gone(*on_far, within=60)  # nobody could tell them


async def test_a_frozen_node(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        there.add("sound")
        cold = there.add("cold")
        async with pool_on(there, 2) as workers, leases(workers, 2) as trials:
            on_cold = below(cold.pid)
            assert trials["cold"][2] in on_cold
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(check_loss, workers, "cold", trials["cold"])
                await anyio.sleep(0.5)
                os.kill(cold.pid, signal.SIGSTOP)
            await gone(*on_cold, within=60)
            sound, runtime_id, pid = trials["sound"]
            assert await python(sound, runtime_id, "import os; result = os.getpid()") == pid


async def test_a_frozen_node_that_thaws_answers_for_no_old_slot(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        cold = there.add("cold")
        async with pool_on(there, 1) as workers:
            async with leases(workers, 1) as trials:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(check_loss, workers, "cold", trials["cold"])
                    await anyio.sleep(0.5)
                    os.kill(cold.pid, signal.SIGSTOP)
                os.kill(cold.pid, signal.SIGCONT)
                lease, runtime_id, old = trials["cold"]
                with pytest.raises(WorkerDied):
                    await respond(lease, runtime_id, "result = 1")
            with anyio.fail_after(60):
                assert await once(workers, "import os; result = os.getpid()") != old


async def test_a_node_that_comes_late(tmp_path: Path) -> None:
    with cluster(tmp_path) as there:
        there.add("early")
        async with pool(
            size=2, backend="dask", dask=DaskConfig(there.address, there.certificates, slots_per_node=1)
        ) as workers:
            async with leases(workers, 1) as trials:
                assert list(trials) == ["early"]
                there.add("late")
                with anyio.fail_after(60):
                    async with leases(workers, 1) as more:
                        assert list(more) == ["late"]


def nodes_of(workers: WorkerPool) -> list[str]:
    return sorted(str(worker.node) for worker in workers.statistics().workers)


async def test_a_node_that_comes_late_gets_its_share_of_a_pool_that_had_room_before(tmp_path: Path) -> None:
    """Idle workers move at once, the others when their lease is over."""
    with cluster(tmp_path) as there:
        there.add("early")
        dask = DaskConfig(there.address, there.certificates)
        async with contextlib.AsyncExitStack() as stack:
            workers = await stack.enter_async_context(pool(size=4, backend="dask", dask=dask))
            held = [await stack.enter_async_context(workers.lease()) for _ in range(2)]
            trials = [(lease, await opened(lease)) for lease in held]
            pids = [await python(lease, runtime_id, PID) for lease, runtime_id in trials]
            last = await workers.acquire()
            await eventually(lambda: workers.statistics().idle == 1, within=60)
            there.add("late")
            await eventually(lambda: nodes_of(workers) == ["early", "early", "early", "late"], within=60)
            await workers.release(last)
            await eventually(lambda: nodes_of(workers) == ["early", "early", "late", "late"], within=60)
            assert [await python(lease, runtime_id, PID) for lease, runtime_id in trials] == pids
            await eventually(lambda: workers.statistics().idle == 2, within=60)
            restarts = workers.statistics().restarts
            for _ in range(4):  # it is even now, and stays so
                await once(workers, PID)
            assert nodes_of(workers) == ["early", "early", "late", "late"]
            assert workers.statistics().restarts == restarts == 2


async def test_slots_wait_for_nodes_that_are_launched_rather_than_crowd_the_first(
    tmp_path: Path,
) -> None:
    launch = LocalNodes(2, python=str(slow_python(tmp_path)))
    async with pool(size=4, backend="dask", dask=DaskConfig(launch=launch)) as workers:
        await eventually(lambda: workers.statistics().idle == 4, within=60)
        assert nodes_of(workers) == ["local-0", "local-0", "local-1", "local-1"]
        assert workers.statistics().restarts == 0


def slow_python(folder: Path) -> Path:
    """An interpreter that is slow to start the second node."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\ncase "$*" in *local-1*) sleep 4;; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return script
