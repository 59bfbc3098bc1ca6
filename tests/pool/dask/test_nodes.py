"""A pool on the nodes of a Dask cluster: what is said of them, faults of slots, of agents, and of whole nodes."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

pytest.importorskip("distributed")

from rich.console import Console

from corral import BenchmarkResult, CorralRouter, TaskTrialResult
from corral.errors import ConfigError, EnvStartError, WorkerDied
from corral.pool import DaskConfig, Lease, LocalNodes, WorkerPool, WorkerPoolConfig
from corral.pool.dask import versions
from corral.report import stable_bytes
from corral.report.progress import Silent
from corral.report.rendering import print_result
from corral.report.timeline import timeline
from tests.support.benches import bench, dice, roll_and_read
from tests.support.dask_cluster import Cluster, cluster
from tests.support.graphs import CHAIN, builder, executions, solve
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.pool_waiting import eventually, gone, lives
from tests.support.scripts import python as script_python
from tests.support.serving import serving

pytestmark = pytest.mark.anyio

PID = "import os; result = os.getpid()"


def on(nodes: Cluster, size: int = 2, **settings: Any) -> WorkerPool:
    """A pool whose slots are shared out evenly."""
    config = DaskConfig(nodes.address, nodes.certificates, **settings)
    return pool(size=size, backend="dask", dask=config)


async def ready(workers: WorkerPool) -> None:
    await eventually(lambda: workers.statistics().idle == workers.size, within=60)


def agent_above(pid: int) -> psutil.Process:
    """The agent that a slot's process descends from."""
    return next(parent for parent in psutil.Process(pid).parents() if "corral.pool.dask.agent_main" in parent.cmdline())


# ---- what is said of nodes ----


async def test_slots_are_shared_out_and_trials_say_where_they_ran(dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=1) as workers:
        with anyio.fail_after(30):
            while len(workers.statistics().nodes) < 2:  # else the one that came first would have all
                await anyio.sleep(0.01)
        workers.resize(4)
        await ready(workers)
        statistics = workers.statistics()
        assert sorted(worker.node or "" for worker in statistics.workers) == ["a", "a", "b", "b"]
        nodes = sorted((node.name, node.slots, node.lost) for node in statistics.nodes)
        assert nodes == [("a", 2, None), ("b", 2, None)]
        async with workers.lease() as lease:
            pid = await python(lease, await opened(lease), PID)
            assert (lease.worker.trial_pid, lease.worker.node) == (pid, statistics.workers[lease.slot.index].node)


async def test_an_episode_stays_where_it_is_and_the_next_one_sees_nothing_of_it(dask_nodes: Cluster) -> None:
    count = "stained.append(1); import os; result = [os.getpid(), len(stained)]"
    async with on(dask_nodes, size=2) as workers:
        for _ in range(2):
            async with workers.lease() as lease:
                seen = [await python(lease, await opened(lease), count) for _ in range(3)]
                assert [number for _, number in seen] == [1, 2, 3]
                assert len({pid for pid, _ in seen}) == 1


async def test_a_nodes_limit_of_slots_is_kept(dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=3, slots_per_node=1) as workers:
        await eventually(lambda: workers.statistics().idle == 2, within=60)
        assert sorted(worker.node or "-" for worker in workers.statistics().workers) == ["-", "a", "b"]


@pytest.mark.parametrize("large", [100, 3_000_000])
async def test_data_of_any_size_passes_unread(large: int, dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=1) as workers:
        assert await once(workers, f"result = 'x' * {large}") == "x" * large


async def test_the_environment_of_the_nodes_workers(dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=1, environment={"SOLVER": "fast"}, prefix=("nice", "-n", "3")) as workers:
        assert await once(workers, "import os; result = [os.environ['SOLVER'], os.nice(0)]") == ["fast", os.nice(0) + 3]


# ---- slots ----


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by signal 9 (SIGKILL)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by signal 11 (SIGSEGV)"),
        ("import os; os._exit(3)", "ended with exit code 3"),
    ],
    ids=["SIGKILL", "SIGSEGV", "exit"],
)
async def test_a_slot_that_dies_in_a_call_says_how_and_where(code: str, said: str, dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=1) as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = await python(lease, runtime_id, PID)
            with pytest.raises(WorkerDied) as caught:
                await respond(lease, runtime_id, f"print('last words', flush=True); {code}")
            place = f"pid {pid}, slot 0, node {lease.worker.node}"
            assert str(caught.value) == f"the trial process ({place}) {said} during tool python"
            assert caught.value.output.startswith("last words\n")
        assert await once(workers, "result = 1") == 1
        assert workers.statistics().restarts == 0


async def test_a_call_that_holds_the_interpreter_is_killed_with_what_it_started(
    dask_nodes: Cluster, tmp_path: Path
) -> None:
    noted = tmp_path / "child"
    hang = f"""
        import re, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open({str(noted)!r}, "w").write(str(child.pid))
        re.match("(a+)+$", "a" * 60 + "b")
    """
    async with on(dask_nodes, size=1) as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = await python(lease, runtime_id, PID)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(respond, lease, runtime_id, hang)
                child = int(await eventually(lambda: noted.exists() and noted.read_text(), within=30))
                tasks.cancel_scope.cancel()
            assert not lives(pid)
            await gone(child)
        assert await once(workers, "result = 1") == 1


async def test_an_idle_worker_that_is_lost_is_replaced(dask_nodes: Cluster) -> None:
    async with on(dask_nodes, size=1) as workers:
        await ready(workers)
        pid = workers.statistics().workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: workers.statistics().restarts == 1 and workers.statistics().idle == 1, within=30)
        assert await once(workers, "result = 1") == 1


async def test_memory_is_watched_on_the_node(dask_nodes: Cluster) -> None:
    config = DaskConfig(dask_nodes.address, dask_nodes.certificates)
    async with pool(size=1, backend="dask", dask=config, memory_limit="200MiB") as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        with pytest.raises(Exception, match="over the memory limit of 200 MiB"):
            await respond(lease, runtime_id, "import time; kept = bytearray(400 * 2**20); time.sleep(60)")


# ---- agents and nodes ----


async def test_an_agent_that_is_killed_takes_its_slots_along_and_another_incarnation_follows(
    dask_nodes: Cluster,
) -> None:
    async with on(dask_nodes, size=1) as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        pid = await python(lease, runtime_id, PID)
        node, agent = lease.worker.node, agent_above(pid)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_fails_with_its_node, lease, runtime_id, node)
            await anyio.sleep(0.3)
            agent.kill()
        await gone(pid)
        assert [loss.reason for loss in workers._backend.losses()] == ["its agent ended"]
        assert await python(lease, await opened(lease), "result = 1") == 1  # on another node, or another agent
        await eventually(lambda: len(workers._backend.nodes()) == 2, within=60)


async def _fails_with_its_node(lease: Lease, runtime_id: str, node: str | None) -> None:
    with pytest.raises(WorkerDied, match=rf"node {node} was lost during tool python \(.*\), and the trial process"):
        await respond(lease, runtime_id, "import time; time.sleep(600)")


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_driver_that_is_killed_leaves_nothing_after_the_lease(dask_nodes: Cluster, tmp_path: Path) -> None:
    given = dask_nodes.certificates
    files = [str(path) for path in (given.ca_file, given.cert, given.key)]
    script = f"""
import anyio, sys
from corral.pool import Certificates, DaskConfig, WorkerPool, WorkerPoolConfig
from tests.support import pool_envs
from tests.support.pool_driving import opened, python

async def main():
    certificates = Certificates(*{files!r})
    dask = DaskConfig({dask_nodes.address!r}, certificates, lease=5.0)
    async with WorkerPool(pool_envs.build, WorkerPoolConfig(size=2, backend="dask", dask=dask)) as pool:
        async with pool.lease() as lease:
            print(await python(lease, await opened(lease), "import os; result = os.getpid()"), flush=True)
            await anyio.sleep_forever()

if __name__ == "__main__":
    anyio.run(main)
"""
    (tmp_path / "driver.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    async with await anyio.open_process([sys.executable, str(tmp_path / "driver.py")], env=environment) as driver:
        assert driver.stdout is not None
        with anyio.fail_after(60):
            pid = int(await driver.stdout.receive())
        agent = agent_above(pid)
        left = [agent.pid, *(child.pid for child in agent.children(recursive=True))]
        assert pid in left
        driver.kill()
        await gone(*left, within=30)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_slots_of_many_agents_never_mix() -> None:
    """A counter per lease, on 64 slots of 8 agents, each in a module global of its process."""
    count = "stained.append(1); result = len(stained)"
    config = DaskConfig(launch=LocalNodes(8))

    async with pool(size=64, backend="dask", dask=config, start_timeout=180) as workers:
        await eventually(lambda: workers.statistics().idle == 64, within=180)
        assert {node.slots for node in workers.statistics().nodes} == {8}
        seen: dict[int, list[int]] = {}

        async def use(number: int) -> None:
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                seen[number] = [await python(lease, runtime_id, count) for _ in range(10)]

        async with anyio.create_task_group() as tasks:
            for number in range(128):
                tasks.start_soon(use, number)
        assert all(counts == list(range(1, 11)) for counts in seen.values())
        assert len(seen) == 128


# ---- runs ----


def test_a_run_on_nodes_has_the_report_of_one_on_this_machine(dask_nodes: Cluster, tmp_path: Path) -> None:
    def run(name: str, **settings: Any) -> BenchmarkResult:
        limits = {"max_concurrency": 4, "max_concurrency_per_task": 4, "trials_per_task": 4, "seed": 7}
        config = WorkerPoolConfig(size=2, **settings)
        return bench(dice, roll_and_read, tmp_path / name, worker_pool=config, **limits)

    there = run("there", backend="dask", dask=DaskConfig(dask_nodes.address, dask_nodes.certificates))
    assert stable_bytes(there) == stable_bytes(run("here"))
    places = [trial.worker for trial in there.task_results["process"].trials]
    nodes = {place.node or "" for place in places if place}
    assert nodes
    assert nodes <= {"a", "b"}  # both, unless one was ready too late
    shown = io.StringIO()
    print_result(there, Console(file=shown, width=200))
    assert "node" in shown.getvalue()
    assert {lane.name.partition(" on ")[2] for lane in timeline(there.trials).lanes} == {"", *nodes}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_chain_goes_on_elsewhere_from_its_stored_outputs(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        nodes.add("a")
        nodes.add("b")

        class Loses(Silent):
            """Ends the node on which ``b`` has just run."""

            def recorded(self, result: TaskTrialResult) -> None:
                if result.task_id == "b" and result.worker is not None:
                    nodes.nodes[str(result.worker.node)].kill()

        dask = DaskConfig(nodes.address, nodes.certificates)
        config = WorkerPoolConfig(size=2, backend="dask", dask=dask)
        result = bench(
            builder(CHAIN, "process", tmp_path), solve, tmp_path, worker_pool=config, progress=Loses(), retries=3
        )
    trials = {trial.task_id: trial for trial in result.trials}
    assert all(trial.success for trial in trials.values())
    before, after = trials["b"].worker, trials["c"].worker
    assert before is not None
    assert after is not None
    assert {before.node, after.node} == {"a", "b"}
    assert executions(tmp_path)["a#0"] == executions(tmp_path)["b#0"] == 1
    assert [node.name for node in result.pool.nodes if node.lost] == [before.node]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_from_the_shell(tmp_path: Path) -> None:
    arguments = ["-m", "corral.pool", "--size", "2", "--backend", "dask", "--launch", "local:2", "--json"]
    envs = ["--envs", "tests.support.benches:dice", "--agent", "tests.support.benches:roller", "--trials", "2"]
    done = script_python(*arguments, *envs, folder=tmp_path, within=100)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["graded"] == document["planned"] == 6
    assert {node["name"] for node in document["pool"]["nodes"]} <= {"local-0", "local-1"}
    assert all(worker["node"] for worker in document["pool"]["workers"] if worker["pid"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_server_whose_workers_are_on_nodes(tmp_path: Path) -> None:
    """The runner sees no difference."""
    options = ("--backend", "dask", "--launch", "local:2", "--pool-size", "2")
    with serving("tests.support.benches:dice", *options) as server:
        with CorralRouter(server.url) as router:
            far = bench(router, roll_and_read, tmp_path, trials_per_task=2, seed=1)
        assert server.stop() == 0
    here = bench(dice, roll_and_read, tmp_path, trials_per_task=2, seed=1, worker_pool=WorkerPoolConfig(size=2))
    assert stable_bytes(far) == stable_bytes(here)
    places = [trial.worker for trial in far.trials if trial.task_id == "process"]
    assert all(place is not None and place.node in ("local-0", "local-1") for place in places)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_call_that_holds_the_interpreter_outlives_dasks_own_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times as long as what Dask allows a worker of its own to be silent."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "4 s")
    hold = "import ctypes; ctypes.PyDLL(None).usleep(900_000)"
    with cluster(tmp_path) as nodes:
        nodes.add("a")
        async with on(nodes, size=1) as workers, workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = await python(lease, runtime_id, PID)
            await python(lease, runtime_id, "\n".join([hold] * 14))
            assert await python(lease, runtime_id, PID) == pid
        assert workers.statistics().restarts == 0


# ---- refusals ----


async def test_another_version_is_refused_in_a_sentence(dask_nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "0.0.7")
    # Of the two nodes one may still be at it when the time is over.
    said = r"node [ab]: it has Corral 0\.1\.0 and this process has 0\.0\.7; have the same at both ends"
    with pytest.raises(EnvStartError, match=said):
        async with on(dask_nodes, node_timeout=3.0):
            pass


async def test_an_interpreter_that_is_not_there_is_named(dask_nodes: Cluster) -> None:
    with pytest.raises(EnvStartError, match=r"node [ab]: the agent \(/no/python .*\) did not start"):
        async with on(dask_nodes, node_timeout=3.0, interpreter="/no/python"):
            pass


async def test_a_scheduler_that_is_not_there(dask_nodes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.pool.dask import client

    monkeypatch.setattr(client, "CONNECT_PATIENCE", 1.0)
    config = DaskConfig("tls://127.0.0.1:1", dask_nodes.certificates)
    with pytest.raises(ConfigError, match=r"the scheduler at tls://127.0.0.1:1 cannot be reached"):
        async with pool(backend="dask", dask=config):
            pass


async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"pip install '?corral\[dask\]"):
        async with pool(backend="dask"):
            pass
