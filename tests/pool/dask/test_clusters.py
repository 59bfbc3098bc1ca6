"""Launching: processes of this machine, hosts by ssh, jobs of a batch system; from settings to nodes, and to nothing.

Nodes are asked by a plain client of Dask's: what Corral runs on them is another test's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

pytest.importorskip("distributed")

from distributed import Client, Security
from distributed.comm import connect

from corral.errors import ConfigError, EnvStartError
from corral.pool.dask.batch import CLASSES
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import BatchNodes, BatchSystem, Launch, LocalNodes, SSHNodes
from corral.scratch import prefix_of
from tests.support import batch_system, ssh
from tests.support.pool_waiting import eventually, gone, lives, remain

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

with_ssh = pytest.mark.skipif(bool(ssh.missing()), reason=ssh.missing())


@pytest.fixture
def anyio_backend() -> str:
    """Dask is asyncio's; the pool on trio is the driver's business."""
    return "asyncio"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A batch system's folder."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    batch_system.install(folder)
    monkeypatch.setenv("PATH", batch_system.on_path(folder))
    return folder


def batch(folder: Path, nodes: int = 2, **more: Any) -> BatchNodes:
    return BatchNodes("pbs", nodes, cores=1, memory="1GB", folder=folder, **more)


@contextlib.asynccontextmanager
async def client_of(launch: Launch, security: Security | None = None) -> AsyncIterator[Client]:
    async with launched(launch, security) as started:
        async with Client(started.address, security=started.security, asynchronous=True) as client:
            yield client


async def ask(client: Client, nodes: int, question: Callable[[], Any]) -> dict[str, Any]:
    """What so many nodes answer, by their names; waits until as many are there."""
    await client.wait_for_workers(nodes, timeout=60)
    answers = await client.run(lambda dask_worker: (dask_worker.name, question()))
    return dict(answers.values())


async def eventually_true(condition: Callable[[], Awaitable[bool]], within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.1)


async def test_nodes_on_this_machine() -> None:
    async with client_of(LocalNodes(2)) as client:
        pids = await ask(client, 2, os.getpid)
        assert sorted(pids) == ["local-0", "local-1"]
        assert len({os.getpid(), *pids.values()}) == 3
        inputs = await ask(client, 2, lambda: os.readlink("/proc/self/fd/0"))
        assert set(inputs.values()) == {os.devnull}
        assert all(address.startswith("tls://127.0.0.1:") for address in client.scheduler_info()["workers"])
        assert [facts["memory_limit"] for facts in client.scheduler_info()["workers"].values()] == [0, 0]
    assert not remain(pids.values(), within=0)


async def test_a_node_that_died_comes_again_under_its_name_and_clears_away_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    async with client_of(LocalNodes(2)) as client:
        before = await ask(client, 2, os.getpid)
        os.kill(before["local-1"], signal.SIGKILL)
        await gone(before["local-1"])

        async def replaced() -> bool:
            with contextlib.suppress(OSError):  # a node that goes away while it is asked
                now = await ask(client, 2, os.getpid)
                return len(now) == 2 and now.items() & before.items() == {("local-0", before["local-0"])}
            return False

        await eventually_true(replaced)
        left = list(tmp_path.glob(f"{prefix_of(before['local-1'])}*"))
        kept = list(tmp_path.glob(f"{prefix_of(before['local-0'])}*"))
        assert (len(left), len(kept)) == (0, 1)


async def test_the_number_of_nodes_can_change() -> None:
    async with launched(LocalNodes(2)) as started:
        async with Client(started.address, security=started.security, asynchronous=True) as client:
            pids = await ask(client, 2, os.getpid)
            await started.scale(1)
            assert not lives(pids["local-1"])
            assert lives(pids["local-0"])
            await started.scale(2)

            async def another() -> bool:
                now = await ask(client, 2, os.getpid)
                return bool(now.get("local-1", pids["local-1"]) != pids["local-1"])

            await eventually_true(another)
            with pytest.raises(ConfigError, match="there can be 2 nodes, not 3"):
                await started.scale(3)


async def test_nobody_is_let_in_without_the_certificates() -> None:
    async with launched(LocalNodes(1)) as started:
        assert started.address.startswith("tls://127.0.0.1:")
        for stranger in (Security.temporary(), Security()):
            with pytest.raises((OSError, TypeError)):
                await connect(started.address, timeout=1, **stranger.get_connection_args("client"))


async def test_certificates_of_ones_own_need_not_be_on_the_nodes(tmp_path: Path) -> None:
    made = Security.temporary()
    files = {}
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        files[name] = tmp_path / name
        files[name].write_text(getattr(made, name))
    roles = {f"tls_{role}_{what}": str(files[f"tls_client_{what}"])
             for role in ("client", "scheduler", "worker") for what in ("cert", "key")}  # fmt: skip
    security = Security(require_encryption=True, tls_ca_file=str(files["tls_ca_file"]), **roles)
    async with client_of(LocalNodes(1), security) as client:
        arguments = await ask(client, 1, lambda: Path("/proc/self/cmdline").read_text())
        assert str(tmp_path) not in arguments["local-0"]


DRIVER = """
import asyncio, sys
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import BatchNodes, LocalNodes
async def main():
    async with launched({launch}) as started:
        while len(started._scheduler.workers) < 2:
            await asyncio.sleep(0.05)
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_the_nodes_of_a_killed_supervisor_end(jobs: Path) -> None:
    for launch in ("LocalNodes(2)", f"BatchNodes('pbs', 2, cores=1, memory='1GB', folder={str(jobs)!r})"):
        command = [sys.executable, "-c", DRIVER.format(launch=launch)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "up\n"
            if launch.startswith("Batch"):
                await eventually(lambda: len(batch_system.running(jobs)) == 2)
            driver.kill()
    await eventually(lambda: not batch_system.running(jobs), within=60)


FORKING_DRIVER = """
import asyncio, os, time
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import LocalNodes
async def main():
    async with launched(LocalNodes(2)) as started:
        while len(started._scheduler.workers) < 2:
            await asyncio.sleep(0.05)
        if (fork := os.fork()) == 0:
            time.sleep(600)
            os._exit(0)
        print(fork, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_the_nodes_of_a_killed_supervisor_end_though_a_fork_of_it_lives() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKING_DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        fork = int(driver.stdout.readline())
        try:
            nodes = {child.pid for child in psutil.Process(driver.pid).children(recursive=True)} - {fork}
            assert len(nodes) >= 2
            driver.kill()
            await gone(*nodes, within=15)
        finally:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.parametrize("launch", [LocalNodes(2, python="/usr/bin/env"), LocalNodes(1, python="/bin/false")])
async def test_nodes_that_cannot_be_started(launch: LocalNodes) -> None:
    with pytest.raises(EnvStartError, match=r"^no node can be started: local-0 ended with exit code 1"):
        async with launched(launch):
            raise AssertionError("there is no node")


async def test_no_interpreter() -> None:
    with pytest.raises(ConfigError, match="/no/python, is no program of this machine"):
        async with launched(LocalNodes(1, python="/no/python")):
            raise AssertionError("there is no node")


async def test_nodes_that_do_not_come_in_time(tmp_path: Path) -> None:
    sleepy = tmp_path / "python"
    sleepy.write_text("#!/bin/sh\necho waiting for the weekend\nexec cat >/dev/null\n")
    sleepy.chmod(0o755)
    with pytest.raises(EnvStartError) as late:
        async with launched(LocalNodes(1, python=str(sleepy), start_timeout=1)):
            raise AssertionError("there is no node")
    assert str(late.value) == ("no node came within 1 s: local-0 has not ended, and printed:\nwaiting for the weekend")


async def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(ConfigError, match=r"nodes by slurm need dask-jobqueue: pip install 'corral\[dask\]'"):
        async with launched(BatchNodes("slurm", 1)):
            raise AssertionError("there is no node")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigError, match=r"pip install 'corral\[dask\]'"):
        async with launched(LocalNodes(1)):
            raise AssertionError("there is no node")


# ---- a batch system ----


async def test_jobs(jobs: Path) -> None:
    launch = batch(jobs, prologue=["export CORRAL_TEST_COLOUR=red"], walltime="00:10:00", queue="short")
    async with client_of(launch) as client:
        assert await ask(client, 2, lambda: os.environ["CORRAL_TEST_COLOUR"]) == dict.fromkeys(
            ["PBSCluster-0", "PBSCluster-1"], "red"
        )
        assert len(batch_system.running(jobs)) == 2
        secrets = next(jobs.glob(".corral-jobs-*/tls_worker_key"))
        assert secrets.stat().st_mode & 0o777 == 0o600
        script = next(jobs.glob("*.sh")).read_text()
        assert "#PBS -q short\n" in script
        assert "#PBS -l walltime=00:10:00\n" in script
        assert "PRIVATE" not in script
    await eventually(lambda: not batch_system.running(jobs))
    assert not list(jobs.glob(".corral-jobs-*"))


async def test_jobs_of_which_no_number_is_known_yet_are_cancelled_too(jobs: Path) -> None:
    """The batch system has them, and still tells so, as they are given up."""
    launching = asyncio.ensure_future(_launch(batch(jobs, queue="slow")))
    await eventually(lambda: len(batch_system.running(jobs)) == 2)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    await eventually(lambda: not batch_system.running(jobs))
    assert not list(jobs.glob(".corral-jobs-*"))


async def _launch(launch: Launch) -> None:
    async with launched(launch):
        raise AssertionError("there is no node yet")


@pytest.mark.slow
async def test_a_lost_job_is_replaced(jobs: Path) -> None:
    async with client_of(batch(jobs)) as client:
        first = set((await ask(client, 2, os.getpid)).values())
        os.killpg(batch_system.running(jobs)[0], signal.SIGKILL)

        async def replaced() -> bool:
            with contextlib.suppress(OSError):
                now = set((await ask(client, 2, os.getpid)).values())
                return (len(now), len(first & now)) == (2, 1)
            return False

        await eventually_true(replaced)
        assert len(list(jobs.glob("*.sh"))) == 3


async def test_every_batch_system_has_its_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What of it is ours: the marks come first, the node is Corral's, and nothing is left for others to expand."""
    import dask_jobqueue

    scripts = {}
    for system, name in CLASSES.items():
        kind = getattr(dask_jobqueue, name)

        async def submit(job: Any, script: str, system: str = system) -> str:
            scripts[system] = Path(script).read_text()
            return "Job <1> 1.0 OAR_JOB_ID=1 Submitted batch job 1 submitted to cluster 1."

        monkeypatch.setattr(kind.job_cls, "_submit_job", submit)
        for command in (kind.job_cls.submit_command, kind.job_cls.cancel_command):
            program = tmp_path / command.split()[0]
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
    monkeypatch.setenv("PATH", batch_system.on_path(tmp_path))
    for system in get_args(BatchSystem):
        options = {"htcondor": {"disk": "1GB"}, "oar": {"memory_per_core_property_name": "not_applicable"}}
        launch = BatchNodes(system, 1, cores=2, memory="1GB", folder=tmp_path, prologue=["module load python"],
                            options=options.get(system, {}), start_timeout=0.1)  # fmt: skip
        with pytest.raises(EnvStartError, match="no node came within"):
            async with launched(launch):
                raise AssertionError("there is no node")
        script = scripts[system]
        places = [script.index(part) for part in ("trap", "module load python", "-m corral.pool.dask.node tls://")]
        assert places == sorted(places)
        assert "$" not in script[places[0] :].split("Executable")[0]


async def test_ctrl_c_stays_the_users(jobs: Path) -> None:
    """dask-jobqueue takes it for itself when it is imported."""
    code = """
import asyncio, signal, sys, threading
from corral.errors import EnvStartError
from corral.pool.dask.cluster import launched
from corral.pool.dask.launch import BatchNodes
before = signal.getsignal(signal.SIGINT)
async def main():
    try:
        async with launched(BatchNodes("pbs", 1, cores=1, memory="1GB", queue="closed")):
            pass
    except EnvStartError as error:
        print(error)
thread = threading.Thread(target=lambda: asyncio.run(main()))
thread.start()
thread.join()
assert "dask_jobqueue" in sys.modules
assert signal.getsignal(signal.SIGINT) is before
assert signal.signal(signal.SIGINT, signal.SIG_IGN) is before
assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "qsub refused the job: qsub: Unknown queue\n"), done.stderr


async def test_a_job_that_is_refused(jobs: Path) -> None:
    with pytest.raises(EnvStartError, match=r"^qsub refused the job: qsub: Unknown queue$"):
        async with launched(batch(jobs, queue="closed")):
            raise AssertionError("there is no node")
    assert not list(jobs.glob(".corral-jobs-*"))


async def test_jobs_that_end_at_once(jobs: Path) -> None:
    with pytest.raises(EnvStartError) as failed:
        async with launched(batch(jobs, python="/bin/false")):
            raise AssertionError("there is no node")
    assert str(failed.value) == "no node can be started: 2 of 2 jobs of pbs have started and ended"
    with pytest.raises(EnvStartError, match=r"job.e[0-9]+ ends:\n(.|\n)*No such file or directory"):
        async with launched(batch(jobs, python="/no/python")):
            raise AssertionError("there is no node")


async def test_settings_that_the_batch_system_lacks(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for launch, complaint in (
        (BatchNodes("pbs", 1, folder=jobs), "You must specify how much cores and memory"),
        (batch(jobs, options={"colour": "red"}), "unexpected keyword argument 'colour'"),
        (batch(jobs / "a folder"), "may not have blanks or quotes in its path, which jobs name: .*/a folder"),
        (batch(jobs / "none"), "the jobs' folder cannot be made in .*: No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            async with launched(launch):
                raise AssertionError("there is no node")
    monkeypatch.setenv("PATH", os.path.dirname(shutil.which("bash") or ""))
    with pytest.raises(ConfigError, match="qsub is not on the PATH here: jobs of pbs are submitted where it is"):
        async with launched(batch(jobs)):
            raise AssertionError("there is no node")


# ---- ssh ----


@with_ssh
async def test_hosts_by_ssh(tmp_path: Path) -> None:
    with ssh.running_ssh(tmp_path) as options:
        launch = SSHNodes(
            ("127.0.0.1", "localhost", "127.0.0.1"), environment={"CORRAL_TEST_COLOUR": "dark red"}, options=options
        )
        async with client_of(launch) as client:
            pids = await ask(client, 3, os.getpid)
            assert sorted(pids) == ["127.0.0.1", "127.0.0.1-2", "localhost"]
            colours = await ask(client, 3, lambda: os.environ["CORRAL_TEST_COLOUR"])
            assert set(colours.values()) == {"dark red"}
            commands = await ask(client, 3, lambda: Path("/proc/self/cmdline").read_text())
            assert not any("PRIVATE" in command for command in commands.values())
        await gone(*pids.values(), within=10)


@with_ssh
async def test_a_host_that_lets_nobody_in(tmp_path: Path) -> None:
    with ssh.running_ssh(tmp_path) as options:
        (tmp_path / "user.pub").write_text("")
        with pytest.raises(EnvStartError, match=r"127.0.0.1 ended with exit code 255:\n(.|\n)*Permission denied"):
            async with launched(SSHNodes(("127.0.0.1",), options=options)):
                raise AssertionError("there is no node")
