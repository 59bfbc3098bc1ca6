"""How trial processes and workers die, and what is left: the right reason in the error, nothing of the process, and a
slot that serves again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import psutil
import pytest

from corral.errors import FailureKind, MemoryExceeded, ToolError, TrialError, WorkerDied
from corral.pool import Lease, WorkerPool, trial_handle
from corral.pool import worker as worker_module
from corral.pool.processes import is_there
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.pool_waiting import eventually, gone, lives

pytestmark = pytest.mark.anyio

LINUX = sys.platform == "linux"

CLOSE_ALL = "import os, time; os.closerange(3, 65536); time.sleep(60)"
SEGFAULT = "import ctypes; ctypes.string_at(0)"


async def serves(workers: WorkerPool) -> bool:
    """Whether the pool answers again, soon."""
    with anyio.fail_after(10):
        return bool(await once(workers, "result = 6 * 7") == 42)


# ---- by itself ----


ENDS = [
    ("import os; os._exit(3)", 3, "ended with exit code 3"),
    ("import os; os._exit(0)", 0, "ended with exit code 0"),
    (SEGFAULT, -11, "was killed by signal 11 (SIGSEGV)"),
    ("import os; os.kill(os.getpid(), 9)", -9, "was killed by signal 9 (SIGKILL)"),
    ("import os; os.abort()", -6, "was killed by signal 6 (SIGABRT)"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15, "was killed by signal 15 (SIGTERM)"),
]


def place_of(pid: int | None, lease: Lease) -> str:
    """As errors name it."""
    node = lease.worker.node
    return f"pid {pid}, slot 0" + (f", node {node}" if node else "")


async def test_the_error_names_how_the_process_ended(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        for code, status, text in ENDS:
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                place = place_of(lease.worker.trial_pid, lease)
                with pytest.raises(WorkerDied) as caught:
                    await respond(lease, runtime_id, code)
                assert caught.value.exit_status == status
                assert str(caught.value) == f"the trial process ({place}) {text} during tool python"
                end = lease.end_of_process()
                assert end is not None
                assert (end.status, end.peak_rss > 10**6) == (status, True)
        assert await serves(workers)
        assert workers.statistics().restarts == 0, "a crash of a trial process costs no worker"


def reap(*_: object) -> None:
    """As some libraries do: wait for whichever child has ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


CHILD_SIGNAL = "import signal; result = repr(signal.getsignal(signal.SIGCHLD))"


def build_ignoring_children() -> Any:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return pool_envs.build()


def build_reaping_children() -> Any:
    signal.signal(signal.SIGCHLD, reap)
    return pool_envs.build()


@pytest.mark.parametrize(
    ("build", "handler"), [(build_ignoring_children, "Handlers.SIG_IGN"), (build_reaping_children, "<function reap")]
)
async def test_what_a_builder_does_about_children_that_end_is_for_its_own(
    build: Callable[[], Any], handler: str, fresh: str
) -> None:
    """A trial finds it as the builder left it; its worker learns how trials end all the same."""
    async with pool(build, fresh=fresh) as workers:
        for _ in range(3):
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                found = await python(lease, runtime_id, CHILD_SIGNAL)
                assert handler in found
                with pytest.raises(WorkerDied) as caught:
                    await respond(lease, runtime_id, SEGFAULT)
                assert caught.value.exit_status == -signal.SIGSEGV
        assert workers.statistics().restarts == 0


def build_without_power() -> Any:
    """In the worker, what is called sleep is as another user's."""
    kill = os.kill

    def denied(pid: int, number: int) -> None:
        if psutil.Process(pid).name() == "sleep":
            raise PermissionError(1, "Operation not permitted")
        kill(pid, number)

    os.kill = denied
    return pool_envs.build()


@pytest.mark.skipif(not LINUX, reason="there is no subreaper")
async def test_what_a_worker_may_not_kill_costs_a_warning_and_no_worker() -> None:
    """As where a trial starts a service as another user."""
    start = "import subprocess; result = subprocess.Popen(['sleep', '300'], start_new_session=True).pid"
    async with pool(build_without_power) as workers:
        told, started = [], []
        for code in (start, "result = 0"):
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                started.append(await python(lease, runtime_id, code))
                closed = await lease.close_trial(runtime_id, last=True)
            told.append(closed.completed(lease.end_of_process()).warnings)
        left = started[0]
        user = psutil.Process(left).username()
        what = f"sleep (pid {left}) of the user {user}"
        assert told == [(f"{what} was left running: it may not be killed from here",), ()]
        assert lives(left)
        assert workers.statistics().restarts == 0
    await gone(left)


@pytest.mark.parametrize("code", [0, 3])
async def test_a_request_to_exit_is_no_death(code: int) -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        pid = lease.worker.trial_pid
        with pytest.raises(ToolError, match=f"requested to exit with code {code}"):
            await respond(lease, runtime_id, f"import sys; sys.exit({code})")
        assert await python(lease, await opened(lease), "import os; result = os.getpid()") == pid


async def test_a_memory_error_leaves_the_process_in_use() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        pid = lease.worker.trial_pid
        response = await respond(lease, runtime_id, "bytearray(2 ** 62)")
        assert response.error is not None
        assert response.error.startswith("MemoryError")
        assert await python(lease, runtime_id, "import os; result = os.getpid()") == pid


async def test_descriptors_closed_under_it_are_a_lost_connection(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = lease.worker.trial_pid
            with anyio.fail_after(10), pytest.raises(WorkerDied, match=r"connection.*was lost during tool python"):
                await respond(lease, runtime_id, CLOSE_ALL)
            assert pid is not None
            assert not lives(pid)
        assert await serves(workers)


async def test_garbage_on_the_connection_is_a_lost_connection() -> None:
    """User code that writes to a descriptor it does not own."""
    garbage = """
        import os, stat, time
        for n in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(n).st_mode):
                    os.write(n, b"\\xff" * 64)
            except OSError:
                pass
        time.sleep(60)
    """
    async with pool() as workers:
        async with workers.lease() as lease:
            with anyio.fail_after(10), pytest.raises(WorkerDied, match="was lost"):
                await respond(lease, await opened(lease), garbage)
        assert await serves(workers)


async def test_after_a_death_the_lease_opens_the_next_trial_in_a_new_process() -> None:
    async with pool() as workers, workers.lease() as lease:
        first = await opened(lease)
        with pytest.raises(WorkerDied):
            await respond(lease, first, "import os; os._exit(1)")
        with pytest.raises(WorkerDied, match="exit code 1 during tool python"):
            await respond(lease, first, "result = 1")
        assert await python(lease, await opened(lease), "result = 1") == 1


def zombies() -> list[int]:
    """The dead below this process that nobody has waited for."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def test_many_deaths_leave_no_zombie_and_a_pool_that_serves() -> None:
    async with pool(size=2) as workers:

        async def die(n: int) -> None:
            with pytest.raises(WorkerDied, match=f"exit code {n}"):
                await once(workers, f"import os; os._exit({n})")

        async with anyio.create_task_group() as tasks:
            for n in range(1, 21):
                tasks.start_soon(die, n)
        await eventually(lambda: not zombies(), within=2)
        assert await serves(workers)


async def test_one_death_is_one_leases_death() -> None:
    """Those that run beside it, and those that wait, never hear of it."""
    outcomes: list[object] = []

    async def one(code: str) -> None:
        try:
            outcomes.append(await once(workers, code))
        except WorkerDied as error:
            outcomes.append(error.exit_status)

    async with pool(size=2) as workers:
        async with anyio.create_task_group() as tasks:
            for n in range(20):
                tasks.start_soon(one, "import os; os._exit(77)" if n == 5 else "result = 'fine'")
    assert sorted(outcomes, key=str) == [77] + ["fine"] * 19


async def test_death_while_the_trial_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> Any:
        worker = os.getpid()

        class Fragile(pool_envs.Lab):
            def __init__(self, task_id: str) -> None:
                super().__init__(task_id)
                if os.getpid() != worker:  # only in a trial process
                    os._exit(5)

        return {"a": Fragile("a")}

    async with pool(build, fresh="fork") as workers, workers.lease() as lease:
        with pytest.raises(WorkerDied, match="exit code 5 during set-up of a#0"):
            await opened(lease)


# ---- on purpose: cancelled requests ----

BUSY = {
    "sleep": "import time; time.sleep(60)",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "regex_with_the_gil": "import re; re.match('(a+)+$', 'a' * 40 + 'b')",
    "ignores_signals": """
        import signal, time
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1): signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
    """,
    "no_crash_reports": """
        import faulthandler, signal, time
        faulthandler.disable(); faulthandler.unregister(signal.SIGUSR1); time.sleep(60)
    """,
}


@pytest.mark.parametrize("kind", BUSY)
async def test_a_cancelled_request_kills_the_process_and_the_slot_serves_again(kind: str) -> None:
    async with pool() as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = lease.worker.trial_pid or 0
            began = time.monotonic()
            with anyio.move_on_after(0.2) as scope:
                await respond(lease, runtime_id, BUSY[kind])
            assert scope.cancelled_caught
            assert time.monotonic() - began < 4
            assert not lives(pid), "the request returned before its process was gone"
            with pytest.raises(WorkerDied):
                await respond(lease, runtime_id, "result = 1")
        assert await serves(workers)
        assert workers.statistics().restarts == 0


HANGING = """
def stuck_in_the_solver():
    import time; time.sleep(60)

stuck_in_the_solver()
"""


async def test_the_last_words_of_a_hung_process_say_where_it_hangs() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        with anyio.move_on_after(0.3):
            await respond(
                lease, runtime_id, "def stuck_in_the_solver():\n    import time; time.sleep(60)\nstuck_in_the_solver()"
            )
        assert "stuck_in_the_solver" in lease.last_output()


async def test_a_killed_process_gives_its_doom_as_the_reason() -> None:
    doom = TrialError.__subclasses__()[2]("out of time")
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        caught: list[TrialError] = []

        async def ask() -> None:
            try:
                await respond(lease, runtime_id, "import time; time.sleep(60)")
            except TrialError as error:
                caught.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            await lease.kill(doom)
        assert caught == [doom]
        await lease.kill()  # and again: nothing happens


async def test_cancelled_while_its_process_starts_the_lease_lets_go_at_once(fresh: str) -> None:
    """At every moment between the wish for a process and its first answer, its pid known or not."""
    async with pool(fresh=fresh) as workers:
        for steps in (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 21):
            began = time.monotonic()
            async with workers.lease() as lease:
                await open_and_cancel(lease, steps)
            assert time.monotonic() - began < trial_handle.KILL_PATIENCE
        assert await serves(workers)
        assert workers.statistics().restarts == 0


async def open_and_cancel(lease: Lease, steps: int) -> None:
    scope = anyio.CancelScope()

    async def open_one() -> None:
        with scope:
            await opened(lease)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_one)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        scope.cancel()


# ---- grandchildren ----

SOLVER = "import subprocess; result = subprocess.Popen(['sleep', '300']).pid"
DAEMON = """
    import os, time
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.closerange(0, 65536)
            time.sleep(300)
        os._exit(0)
    os.wait()
    result = int(os.read(read, 20))
"""
KINDS = {"child": SOLVER, "daemon": DAEMON}
parametrize_kinds = pytest.mark.parametrize(
    "kind", ["child", pytest.param("daemon", marks=pytest.mark.skipif(not LINUX, reason="needs a subreaper"))]
)


async def start_grandchild(lease: Lease, kind: str) -> tuple[str, int]:
    runtime_id = await opened(lease)
    pid = await python(lease, runtime_id, KINDS[kind])
    assert lives(pid)
    return runtime_id, pid


@parametrize_kinds
@pytest.mark.parametrize("end", ["close", "crash", "cancel", "kill", "worker_killed", "pool_closed"])
async def test_what_a_trial_started_ends_with_it(kind: str, end: str) -> None:
    async with pool() as workers:
        async with workers.lease() as lease:
            runtime_id, pid = await start_grandchild(lease, kind)
            match end:
                case "crash":
                    with pytest.raises(WorkerDied):
                        await respond(lease, runtime_id, SEGFAULT)
                case "cancel":
                    with anyio.move_on_after(0.1):
                        await respond(lease, runtime_id, "import time; time.sleep(60)")
                case "kill":
                    await lease.kill()
                case "worker_killed":
                    os.kill(lease.worker.pid, signal.SIGKILL)
                    await gone(pid)
                case _:
                    pass
            if end not in ("close", "pool_closed"):
                assert not lives(pid)
        if end == "close":
            assert not lives(pid)
    assert not lives(pid)


async def test_what_a_trial_started_ends_with_the_pool() -> None:
    """Even if the block is left by an error while the lease is held."""
    found: list[int] = []

    async def block() -> None:
        async with pool() as workers:
            lease = await workers.acquire()
            found.append((await start_grandchild(lease, "child"))[1])
            raise LookupError

    with pytest.raises(LookupError):
        await block()
    assert not lives(found[0])


# ---- the worker itself ----


def harm(pid: int, number: signal.Signals) -> None:
    """Kill or stop a process; it is so then, and nobody else has had a turn to notice."""
    os.kill(pid, number)
    while is_there(pid):
        time.sleep(0.001)


async def test_an_idle_worker_that_is_killed_is_replaced_and_nobody_is_charged() -> None:
    async with pool() as workers:
        (before,) = workers.statistics().workers
        assert before.pid is not None
        harm(before.pid, signal.SIGKILL)
        assert await serves(workers)  # at once, before its death is noticed
        (after,) = workers.statistics().workers
        assert after.pid not in (None, before.pid)
        assert after.restarts == 1


async def test_a_worker_killed_again_and_again_is_replaced_each_time() -> None:
    async with pool() as workers:
        for killed in range(1, 6):
            await eventually(lambda: workers.statistics().idle == 1)
            pid = workers.statistics().workers[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda killed=killed: workers.statistics().restarts == killed)  # type: ignore[misc]
        assert await serves(workers)


async def test_a_worker_killed_under_a_lease_fails_its_request_and_the_lease_goes_on() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        before, place = lease.worker, place_of(lease.worker.pid, lease)
        code = "import os, time; print('a last line', flush=True); os.kill(os.getppid(), 9); time.sleep(60)"
        with anyio.fail_after(10), pytest.raises(WorkerDied) as caught:
            await respond(lease, runtime_id, code)
        assert str(caught.value) == (
            f"the worker ({place}) was killed by signal 9 (SIGKILL) during tool python, "
            f"and its trial process (pid {before.trial_pid}) with it"
        )
        assert caught.value.exit_status == -signal.SIGKILL
        assert caught.value.output == "a last line\n"
        assert not lives(before.trial_pid or 0)
        with anyio.fail_after(10):
            assert await python(lease, await opened(lease), "result = 1") == 1
        assert lease.worker.pid not in (0, before.pid)
        assert workers.statistics().leased == 1


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
async def test_the_error_names_how_the_worker_ended(number: signal.Signals) -> None:
    """Not how its trial process did, which it took along and which nobody could wait for any more."""
    async with pool() as workers:
        for _ in range(4):  # on some event loops the status used to be lost in a race, half the time
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                with anyio.fail_after(10), pytest.raises(WorkerDied, match=f"signal {int(number)} ") as caught:
                    await respond(
                        lease, runtime_id, f"import os, time; os.kill(os.getppid(), {int(number)}); time.sleep(60)"
                    )
                assert caught.value.exit_status == -number


async def test_a_worker_killed_between_two_trials_of_a_lease_costs_nothing() -> None:
    async with pool() as workers, workers.lease() as lease:
        await lease.close_trial(await opened(lease))
        await lease.kill()
        pid = lease.worker.pid
        harm(pid, signal.SIGKILL)
        with anyio.fail_after(10):
            assert await python(lease, await opened(lease), "result = 1") == 1


@pytest.mark.local
async def test_a_stopped_worker_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STOP_PATIENCE", 0.3)
    async with pool() as workers:
        pid = workers.statistics().workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not lives(pid)


async def test_a_stopped_worker_is_replaced_and_no_trial_is_charged(fresh: str) -> None:
    """Though it is neither dead nor late by its own limit, which is a minute."""
    async with pool(fresh=fresh) as workers:
        pid = workers.statistics().workers[0].pid
        assert pid is not None
        harm(pid, signal.SIGSTOP)
        assert await serves(workers)
        assert workers.statistics().workers[0].pid != pid
        assert not lives(pid)


async def test_a_stopped_worker_is_killed_when_a_deadline_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot report the end of the trial process that was killed; so it goes too, and the slot serves again."""
    monkeypatch.setattr(trial_handle, "KILL_PATIENCE", 0.3)
    async with pool() as workers:
        async with workers.lease() as lease:
            runtime_id, started = await start_grandchild(lease, "daemon" if LINUX else "child")
            pids = lease.worker.pid, lease.worker.trial_pid or 0, started
            os.kill(pids[0], signal.SIGSTOP)
            with anyio.move_on_after(0.1):
                await respond(lease, runtime_id, "import time; time.sleep(60)")
            assert not any(map(lives, pids))
        assert await serves(workers)


# ---- memory ----


async def test_the_memory_limit_kills_and_names_itself(fresh: str) -> None:
    fill = "import time; block = bytearray(300 * 2**20); block[::4096] = b'x' * len(block[::4096]); time.sleep(60)"
    async with pool(size=2, memory_limit="200MiB", fresh=fresh) as workers:
        async with workers.lease() as other:
            beside = await opened(other)
            async with workers.lease() as lease:
                with anyio.fail_after(10), pytest.raises(MemoryExceeded) as caught:
                    await respond(lease, await opened(lease), fill)
            assert "over the memory limit of 200 MiB" in str(caught.value)
            assert caught.value.kind is FailureKind.MEMORY
            assert await python(other, beside, "result = 1") == 1
        assert await serves(workers)


async def test_the_memory_of_children_counts() -> None:
    fill = """
        import subprocess, sys, time
        code = "import time; block = bytearray(300 * 2**20); block[::4096] = b'x' * len(block[::4096]); time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code])
        time.sleep(60)
    """
    async with pool(memory_limit="200MiB") as workers, workers.lease() as lease:
        with anyio.fail_after(10), pytest.raises(MemoryExceeded):
            await respond(lease, await opened(lease), fill)
