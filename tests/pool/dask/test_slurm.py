"""Nodes that are jobs of a real SLURM: two slurmd on this machine, started by the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("distributed")

from distributed import Client

from corral.errors import EnvStartError, WorkerDied
from corral.pool import Lease, WorkerPool
from corral.pool.dask.cluster import launched
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.launch import BatchNodes
from tests.support import slurm
from tests.support.pool_driving import opened, pool, python, respond
from tests.support.pool_waiting import eventually, gone
from tests.support.scripts import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.anyio,
    pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing()),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def nodes_of(folder: Path, nodes: int = 2, **more: object) -> BatchNodes:
    """Jobs that fit one at a time on a node of the test's SLURM, so that two are on two."""
    return BatchNodes("slurm", nodes, cores=4, memory="1GB", folder=folder, **more)  # type: ignore[arg-type]


async def test_nodes_are_jobs(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    async with launched(nodes_of(tmp_path)) as started:
        async with Client(started.address, security=started.security, asynchronous=True) as client:
            await client.wait_for_workers(2, timeout=60)
            seen = await client.run(lambda: (os.uname().nodename, os.environ["SLURM_JOB_ID"]))
        assert sorted(node for node, _ in seen.values()) == list(slurm.NODES)
        running = {job.id: (job.state, job.node) for job in slurm_here.jobs()}
        assert running == {job: ("RUNNING", node) for node, job in seen.values()}
    await eventually(lambda: not slurm_here.jobs(), within=30)
    # They were asked to end, or did so because the scheduler said good-bye: never were they killed for being late.
    assert {slurm_here.ending(job) for job in running} <= {"CANCELLED", "COMPLETED"}
    assert not list(tmp_path.iterdir())


async def test_a_cancelled_job_is_replaced(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    async with launched(nodes_of(tmp_path)) as started:
        async with Client(started.address, security=started.security, asynchronous=True) as client:
            await client.wait_for_workers(2, timeout=60)
            first, second = slurm_here.jobs()
            slurm_here.run("scancel", first.id)

            def replaced() -> bool:
                jobs = {job.id for job in slurm_here.jobs() if job.state == "RUNNING"}
                return len(jobs) == 2 and first.id not in jobs and second.id in jobs

            await eventually(replaced, within=60)
            await client.wait_for_workers(2, timeout=60)
            seen = await client.run(lambda: os.environ["SLURM_JOB_ID"])
            assert second.id in seen.values()
            assert first.id not in seen.values()
    await eventually(lambda: not slurm_here.jobs(), within=30)


async def test_a_job_that_slurm_refuses(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    with pytest.raises(EnvStartError, match=r"^sbatch refused the job: sbatch: error: invalid partition specified: no"):
        async with launched(nodes_of(tmp_path, queue="none")):
            raise AssertionError("there is no node")
    assert not slurm_here.jobs()


async def test_jobs_that_cannot_work_show_their_output(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    lines = ["echo 'module: command not found' >&2", "exit 3"]
    with pytest.raises(EnvStartError) as failed:
        async with launched(nodes_of(tmp_path, prologue=lines)):
            raise AssertionError("there is no node")
    assert "2 of 2 jobs of slurm have started and ended" in str(failed.value)
    assert ".err ends:\nmodule: command not found" in str(failed.value)
    await eventually(lambda: not slurm_here.jobs(), within=30)


async def test_a_job_that_waits_for_too_long(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    with pytest.raises(EnvStartError, match=r"^no node came within 2 s: 0 of 1 jobs of slurm have started and ended$"):
        async with launched(nodes_of(tmp_path, 1, options={"job_extra_directives": ["--begin=now+1hour"]},
                                     start_timeout=2)):  # fmt: skip
            raise AssertionError("there is no node")
    await eventually(lambda: not slurm_here.jobs(), within=30)


# ---- a pool on it ----


async def test_a_pool_that_is_given_up_while_its_jobs_wait(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    later = nodes_of(tmp_path, options={"job_extra_directives": ["--begin=now+1hour"]})

    async def leave_once_they_wait(scope: anyio.CancelScope) -> None:
        await eventually(lambda: [job.state for job in slurm_here.jobs()] == ["PENDING"] * 2, within=60)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(leave_once_they_wait, scope)
            async with pool(backend="dask", dask=DaskConfig(launch=later)):
                raise AssertionError("there is no node")
    assert not slurm_here.jobs()
    assert not list(tmp_path.iterdir())


SLEEP = "import time; time.sleep(600)"

WHERE = "import os; result = (os.environ['SLURM_JOB_ID'], os.getpid())"


def pool_on(folder: Path) -> WorkerPool:
    return pool(size=2, backend="dask", dask=DaskConfig(launch=nodes_of(folder), slots_per_node=1))


@contextlib.asynccontextmanager
async def trials_on(workers: WorkerPool, number: int = 2) -> AsyncIterator[dict[str, tuple[Lease, str, int]]]:
    """Open trials: by the job that each is in its lease, its id and the pid of its process."""
    async with contextlib.AsyncExitStack() as stack:
        found = {}
        for _ in range(number):
            lease = await stack.enter_async_context(workers.lease())
            runtime_id = await opened(lease)
            job, pid = await python(lease, runtime_id, WHERE)
            found[job] = lease, runtime_id, pid
        yield found


async def test_a_call_in_flight_in_a_job_that_is_cancelled(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    async with pool_on(tmp_path) as workers:
        async with trials_on(workers) as trials:
            (lost, (lease, runtime_id, pid)), (kept, (other, its_id, its_pid)) = trials.items()

            async def call() -> None:
                with pytest.raises(WorkerDied, match=r"node SLURMCluster-.* during tool python") as caught:
                    await respond(lease, runtime_id, SLEEP)
                assert caught.value.kind.retried

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await anyio.sleep(0.5)  # the call is under way; if it were not, it would fail all the same
                slurm_here.run("scancel", lost)
            await gone(pid, within=30)
            assert await python(other, its_id, WHERE) == [kept, its_pid]
        # A job in its place, and a worker on it: two trials are open at once again.
        with anyio.fail_after(120):
            async with trials_on(workers) as again:
                assert kept in again
                assert lost not in again
                assert len(again) == 2
    await eventually(lambda: not slurm_here.jobs(), within=30)


DRIVER = """
import anyio
from pathlib import Path
from tests.pool.dask.test_slurm import pool_on, trials_on
async def main():
    async with pool_on(Path({folder!r})) as workers, trials_on(workers) as trials:
        print(*(pid for _, _, pid in trials.values()), flush=True)
        await anyio.sleep(600)
if __name__ == "__main__":
    anyio.run(main)
"""


async def test_nothing_is_left_of_a_killed_driver(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER.format(folder=str(tmp_path)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        pids = [int(word) for word in (await anyio.to_thread.run_sync(driver.stdout.readline)).split()]
        assert len(pids) == 2
        assert [job.state for job in slurm_here.jobs()] == ["RUNNING"] * 2
        driver.kill()
    await eventually(lambda: not slurm_here.jobs(), within=60)
    await gone(*pids, within=60)


async def test_the_walltime(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    # SLURM counts in minutes and looks every half: the shortest job takes between 60 and 90 seconds.
    launch = nodes_of(tmp_path, 1, walltime="00:01:00")
    async with pool(backend="dask", dask=DaskConfig(launch=launch)) as workers:
        async with trials_on(workers, 1) as trials:
            ((first, (lease, runtime_id, pid)),) = trials.items()
            with pytest.raises(WorkerDied, match=r"node SLURMCluster-.* during tool python"):
                await respond(lease, runtime_id, SLEEP)
            await gone(pid, within=30)
        assert slurm_here.ending(first) in {"TIMEOUT", "COMPLETING"}
        with anyio.fail_after(60):
            async with trials_on(workers, 1) as again:
                assert first not in again
    await eventually(lambda: not slurm_here.jobs(), within=30)
