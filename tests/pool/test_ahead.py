"""Trial processes that are made ahead of time: who gets them, and what comes of one that was harmed while it waited."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import anyio
import psutil
import pytest

from corral.errors import WorkerDied
from corral.pool import WorkerPool, ahead
from corral.pool.processes import find_process, is_there
from corral.types import Action
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.pool_waiting import eventually, gone, lives

pytestmark = pytest.mark.anyio

PID = "import os; result = os.getpid()"


async def waiting(workers: WorkerPool) -> int:
    """The pid of the process that waits on the only slot, once it is there."""

    def others() -> list[int]:
        (slot,) = workers.statistics().workers
        worker = find_process(slot.pid or 0)
        below = worker.children() if worker is not None else []
        return [child.pid for child in below if child.pid != slot.trial_pid and lives(child.pid)]

    (pid,) = await eventually(others)
    await anyio.sleep(0)
    return int(pid)


def sockets(pid: int) -> set[str]:
    """Which sockets a process has open."""
    targets = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            targets.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return {target for target in targets if target.startswith("socket:")}


async def test_a_lease_gets_the_process_that_waits_and_the_next_one_another(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        first = await waiting(workers)
        async with workers.lease() as lease:
            assert await python(lease, await opened(lease), PID) == first
            second = await waiting(workers)
            assert second != first
        assert await once(workers, PID) == second
        assert not lives(first)
        assert not lives(second)


async def test_what_happens_while_it_waits_does_not_reach_it(fresh: str) -> None:
    """Its worker's state is what it begins with, whatever the trial before it does meanwhile."""
    async with pool(fresh=fresh) as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            await waiting(workers)
            await python(lease, runtime_id, "import os, random; stained.append(1); os.environ['STAIN'] = '1'")
        assert await once(workers, "import os; result = [len(stained), os.environ.get('STAIN')]") == [0, None]


async def test_a_process_is_seeded_by_its_trial_not_by_what_it_did_before() -> None:
    draw = "import random; result = random.random()"
    async with pool() as workers:
        async with workers.lease() as lease:
            at_once = await python(lease, await opened(lease), draw)
        await waiting(workers)
        assert await once(workers, draw) == at_once


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
async def test_one_that_was_killed_or_stopped_is_replaced_and_nobody_is_charged(
    fresh: str, number: signal.Signals
) -> None:
    async with pool(fresh=fresh) as workers:
        pid = await waiting(workers)
        await once(workers, PID)
        pid = await waiting(workers)
        os.kill(pid, number)
        if number is signal.SIGSTOP:  # else its end may still be on its way when the trial is sent to it
            await eventually(lambda: not is_there(pid))
        assert await once(workers, PID) != pid
        assert not lives(pid)
        assert workers.statistics().restarts == 0


@pytest.mark.local
async def test_one_that_ends_before_it_has_read_that_a_trial_is_its_own_is_replaced_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was there when it was looked at: its end was on its way."""
    async with pool(fresh="fork") as workers:
        pid = await waiting(workers)
        worker = workers.statistics().workers[0].pid
        assert worker is not None
        # It has come: one socket is not its worker's, and it waits there, for it has said who it is.
        await eventually(lambda: sockets(pid) - sockets(worker) and psutil.Process(pid).status() == "sleeping")
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: not is_there(pid))
        monkeypatch.setattr(ahead, "is_there", lambda pid: True)
        async with anyio.create_task_group() as tasks:

            async def end_it() -> None:
                await eventually(lambda: workers.statistics().workers[0].trial_pid == pid)
                await anyio.sleep(0.1)
                os.kill(pid, signal.SIGKILL)

            tasks.start_soon(end_it)
            assert await once(workers, PID) != pid
        assert not lives(pid)
        assert workers.statistics().restarts == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_where_its_worker_was_killed_or_stopped_another_one_serves_and_nobody_is_charged(
    fresh: str, number: signal.Signals
) -> None:
    async with pool(fresh=fresh) as workers:
        await once(workers, PID)
        pid = await waiting(workers)
        before = workers.statistics().workers[0].pid
        assert before is not None
        os.kill(before, number)
        await eventually(lambda: not is_there(before))
        assert await once(workers, PID) != pid
        assert workers.statistics().workers[0].pid != before
        assert not lives(pid)
        assert not lives(before)


async def test_its_death_ends_nothing_of_the_trial_that_runs() -> None:
    """Least of all a daemon, which its worker has adopted."""
    daemon = """
        import os, time
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(write, str(os.getpid()).encode())
                time.sleep(300)
            os._exit(0)
        os.wait()
        result = int(os.read(read, 20))
    """
    async with pool() as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = await waiting(workers)
            started = await python(lease, runtime_id, daemon)
            await python(lease, runtime_id, "open('mine', 'w').close()")
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            await lease.perform(runtime_id, Action.STATUS, (), "status")
            assert lives(started)
            assert await python(lease, runtime_id, "import os; result = os.listdir()") == ["mine"]
        assert not lives(started)


async def test_each_trial_has_its_own_output_though_its_process_is_older(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        for word in ("first", "second", "third"):
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                await waiting(workers)
                await python(lease, runtime_id, f"print('the {word}')")
                with pytest.raises(WorkerDied) as caught:
                    await respond(lease, runtime_id, "import os; os._exit(3)")
                assert caught.value.output == f"the {word}\n"


async def test_output_of_a_process_that_dies_in_set_up_is_its_own(tmp_path: Any) -> None:
    """In a log that is kept, where the trials before it stand too."""

    def build() -> Any:
        worker = os.getpid()

        class Fragile(pool_envs.Lab):
            def __init__(self, task_id: str) -> None:
                super().__init__(task_id)
                if os.getpid() != worker and task_id == "b":  # only in a trial process
                    print("before the end", flush=True)
                    os._exit(5)

        return {"a": Fragile("a"), "b": Fragile("b")}

    async with pool(build, fresh="fork", log_dir=tmp_path) as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            await waiting(workers)
            await python(lease, runtime_id, "print('of another')")
        async with workers.lease() as lease:
            with pytest.raises(WorkerDied, match="exit code 5 during set-up") as caught:
                await opened(lease, "b")
    assert caught.value.output == "before the end\n"


async def test_none_is_made_where_none_will_be_needed() -> None:
    async with pool(reuse="worker") as workers:
        await once(workers, PID)
        (slot,) = workers.statistics().workers
        assert [child.pid for child in psutil.Process(slot.pid).children()] == [slot.trial_pid]


async def test_a_process_that_waits_ends_with_the_pool(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        await once(workers, PID)
        pid = await waiting(workers)
    assert not lives(pid)


async def test_each_way_to_make_a_process_has_one_that_waits() -> None:
    """Tasks of two kinds take turns: neither takes the other's."""
    look = "import os; from tests.support import pool_envs; result = pool_envs.LOADED_IN == os.getpid()"
    async with pool(pool_envs.build_mixed, fresh="fork") as workers:
        found = [await once(workers, look, task) for task in ("auto", "spawn") * 3]
    assert found == [False, True] * 3
