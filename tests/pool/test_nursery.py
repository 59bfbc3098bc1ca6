"""Workers as forks of the nursery: new to the user's code, independent of it once made, replaced at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from corral.errors import EnvStartError, JournalError
from corral.pool import nursery
from corral.pool.main_script import MainScript, taken_from_corral
from corral.pool.starts import MAX_STARTS
from corral.report import metrics
from corral.runner import CorralRunner
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
        await eventually(lambda: workers.statistics().workers[0].pid != before)
        after, second = await once(workers, PARENTS)
    assert before != after
    assert second != first
    await gone(second, after)


def build_once_the_nursery_is_gone() -> Any:
    """Kills it, if it is the first that is asked, and then takes for ever."""
    first = Path(os.environ["NURSERY_MARK"])
    if not first.exists():
        first.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(300)
    return pool_envs.build()


async def test_a_worker_that_was_loading_when_the_nursery_died_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NURSERY_MARK", str(tmp_path / "mark"))
    with anyio.fail_after(60):
        async with pool(build_once_the_nursery_is_gone, size=3) as workers:
            async with workers.lease(), workers.lease(), workers.lease():
                assert workers.statistics().nursery_pid is not None


def build_and_fail() -> Any:
    """Notes that it ran."""
    with open(os.environ["NURSERY_MARK"], "a") as mark:
        mark.write("x")
    raise ValueError("never")


async def test_a_builder_that_cannot_work_runs_in_the_first_slot_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other workers are there, and wait."""
    monkeypatch.setenv("NURSERY_MARK", str(tmp_path / "mark"))
    with pytest.raises(EnvStartError, match="never"):
        async with pool(build_and_fail, size=4):
            pass
    assert (tmp_path / "mark").read_text() == "x" * MAX_STARTS


async def test_a_worker_loads_nothing_that_its_environment_does_not_need(tmp_path: Path) -> None:
    script = tmp_path / "light.py"
    script.write_text(LIGHT)
    done = await anyio.run_process([sys.executable, str(script)], check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split() == [b"[]", b"True"]


LIGHT = """
import sys
from corral import Environment, tool

class Light(Environment):
    concurrency = "process"
    def get_task_prompt(self): return ""
    def score(self): return 1.0
    @tool
    def loaded(self, what: str, times: int = 1) -> list:
        "What is loaded."
        heavy = ("anyio", "asyncio", "pydantic", "pydantic_core", "docstring_parser")
        return [name for name in heavy if name in sys.modules]

def build():
    return {"a": Light("a")}

if __name__ == "__main__":
    import anyio
    from corral.pool import WorkerPool, WorkerPoolConfig
    from corral.types import Action, TrialSpec
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=1)) as pool:
            async with pool.lease() as lease:
                await lease.open(TrialSpec("t", "a"))
                found = await lease.perform("t", Action.EXECUTE, ("loaded", {"what": "x"}), "a tool")
                print(found.result, pool.statistics().nursery_pid is not None)
    anyio.run(main)
"""


def test_what_a_script_takes_from_corral_at_its_top_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "import os\nfrom corral.errors import JournalError as taken\nimport corral.report.metrics as a_module\n"
        "if __name__ == '__main__':\n    from corral.runner import CorralRunner as guarded\n"
    )
    for name, value in {"taken": JournalError, "a_module": metrics, "guarded": CorralRunner}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    assert taken_from_corral(MainScript(str(path))) == {"corral.errors", "corral.report.metrics"}
    path.write_text("this is no Python")
    assert taken_from_corral(MainScript(str(path))) == set()


async def test_each_end_is_reported_also_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "STATUS_PATIENCE", 1000.0)  # nobody has to give up waiting for a report
    with anyio.fail_after(30):
        async with pool(size=3) as workers:
            async with workers.lease(), workers.lease(), workers.lease():
                assert workers.statistics().nursery_pid is not None


async def test_a_nursery_that_was_stopped_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool() as workers:
        before, first = await once(workers, PARENTS)
        assert first == workers.statistics().nursery_pid
        monkeypatch.setattr(nursery, "PATIENCE", 1.0)
        os.kill(first, signal.SIGSTOP)
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: workers.statistics().workers[0].pid != before)
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
