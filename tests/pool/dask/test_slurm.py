"""Nodes that are jobs of a real SLURM: two slurmd on this machine, started by the tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from distributed import Client

from corral.errors import EnvStartError
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import BatchNodes
from tests.support import slurm
from tests.support.pool_waiting import eventually

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


DRIVER = """
import asyncio
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import BatchNodes
async def main():
    async with launched(BatchNodes("slurm", 2, cores=4, memory="1GB", folder={folder!r})) as started:
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_the_jobs_of_a_killed_driver_end(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER.format(folder=str(tmp_path))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "up\n"
        await eventually(lambda: [job.state for job in slurm_here.jobs()] == ["RUNNING"] * 2, within=30)
        driver.kill()
    await eventually(lambda: not slurm_here.jobs(), within=60)


async def test_the_walltime(slurm_here: slurm.Slurm, tmp_path: Path) -> None:
    # SLURM counts in minutes and looks every half: the shortest job takes between 60 and 90 seconds.
    async with launched(nodes_of(tmp_path, 1, walltime="00:01:00")) as started:
        async with Client(started.address, security=started.security, asynchronous=True) as client:
            await client.wait_for_workers(1, timeout=60)
            (first,) = slurm_here.jobs()
            await eventually(lambda: first.id not in {job.id for job in slurm_here.jobs()}, within=150)
            assert slurm_here.ending(first.id) == "TIMEOUT"
            await eventually(lambda: [job.state for job in slurm_here.jobs()] == ["RUNNING"], within=60)
            with contextlib.suppress(TimeoutError):
                await client.wait_for_workers(1, timeout=60)
            assert first.id not in (await client.run(lambda: os.environ["SLURM_JOB_ID"])).values()
    await eventually(lambda: not slurm_here.jobs(), within=30)
