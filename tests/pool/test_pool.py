"""Leases on real processes: fresh state, many at once, reuse, renewal, resizing, and a clean end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from corral.errors import ConfigError, EnvStartError, NotFound, TrialError
from corral.pool import WorkerPool, WorkerPoolConfig, nursery
from corral.pool import lease as leases
from corral.pool.messages import NOBODY, Close
from corral.pool.trial_handle import TrialProcess
from corral.pool.worker_environment import NATIVE_THREADS
from corral.types import Action, TaskTrialResult
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python
from tests.support.pool_waiting import eventually, gone, lives

pytestmark = pytest.mark.anyio

STAIN = """
import os, random
stained.append("x"); os.environ["STAIN"] = "1"; os.chdir("/"); random.seed(1)
result = [os.getpid(), len(stained)]
"""
LOOK = """
import os
result = [os.getpid(), len(stained), os.environ.get("STAIN"), os.getcwd(), str(env.current_work_dir)]
"""


# ---- fresh state ----


async def test_a_lease_sees_nothing_of_the_one_before(fresh: str) -> None:
    async with pool(fresh=fresh) as workers:
        assert workers.fresh == fresh
        dirty_pid, stains = await once(workers, STAIN)
        pid, left, variable, folder, workspace = await once(workers, LOOK)
    assert stains == 1
    assert pid != dirty_pid
    assert (left, variable) == (0, None)
    assert folder == workspace


async def test_with_reuse_the_same_process_serves_many_leases() -> None:
    async with pool(reuse="worker") as workers:
        dirty_pid, _ = await once(workers, STAIN)
        pid, left, variable, *_ = await once(workers, LOOK)
        assert (pid, left, variable) == (dirty_pid, 1, "1")
        with pytest.raises(TrialError):
            await once(workers, "import os; os._exit(1)")
        assert (await once(workers, LOOK))[:2] != [dirty_pid, 1]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What trial processes are sent."""
    sent: list[object] = []
    ask = TrialProcess.ask

    def noted(process: TrialProcess, message: Any, phase: str) -> Any:
        sent.append(message)
        return ask(process, message, phase)

    monkeypatch.setattr(TrialProcess, "ask", noted)
    return sent


LINGERS = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
HANDLES = "import signal; signal.signal(signal.SIGALRM, lambda *_: None)"


@pytest.mark.local
@pytest.mark.parametrize("leaves", [LINGERS, HANDLES])
async def test_between_two_leases_only_a_process_that_may_be_busy_is_asked_whether_it_is_there(
    sent: list[object], leaves: str
) -> None:
    """One of a single thread is seen; where a trial left another one, or what may run in it, that could hold it up."""
    async with pool(reuse="worker") as workers:
        pids = []
        for code in ("", "", leaves, "", ""):
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                pids.append(await python(lease, runtime_id, f"import os; result = os.getpid(); {code}"))
                await lease.close_trial(runtime_id)
    assert len(set(pids)) == 1
    questions = [index for index, message in enumerate(sent) if message == Close(NOBODY)]
    assert [type(message).__name__ for message in sent if message != Close(NOBODY)] == ["Open", "Perform", "Close"] * 5
    assert questions == [9, 13]  # before the fourth trial and the fifth


@pytest.mark.local
async def test_after_a_set_up_that_failed_a_process_is_asked(sent: list[object]) -> None:
    async with pool(pool_envs.build_one_that_cannot_be_set_up, reuse="worker") as workers:
        async with workers.lease() as lease:
            with pytest.raises(EnvStartError, match="no such reagent"):
                await opened(lease, "fails")
        async with workers.lease() as lease:
            await opened(lease)
    assert [message == Close(NOBODY) for message in sent] == [False, True, False]


@pytest.mark.local
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_was_killed_or_stopped_while_it_rested_serves_nobody(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(leases, "ANSWER_PATIENCE", 0.3)
    async with pool(reuse="worker") as workers:
        async with workers.lease() as lease:
            runtime_id = await opened(lease)
            pid = await python(lease, runtime_id, "import os; result = os.getpid()")
            await lease.close_trial(runtime_id)
        os.kill(pid, number)
        with anyio.fail_after(10):
            assert await once(workers, "import os; result = os.getpid()") != pid
        assert workers.statistics().restarts == 0
    await gone(pid)


async def test_an_episode_keeps_its_process_for_all_its_trials(fresh: str) -> None:
    async with pool(fresh=fresh) as workers, workers.lease() as lease:
        first, second = await opened(lease, "a"), await opened(lease, "b")
        assert (await python(lease, first, STAIN))[1] == 1
        assert (await python(lease, second, STAIN))[1] == 2
        await lease.close_trial(first)
        assert (await python(lease, second, STAIN))[1] == 3


async def test_a_task_decides_how_its_state_is_made_fresh() -> None:
    """A fork shares what its worker has loaded; a new interpreter has loaded it by itself."""
    look = "import os; from tests.support import pool_envs; result = pool_envs.LOADED_IN == os.getpid()"
    async with pool(pool_envs.build_mixed, fresh="fork") as workers:
        assert [await once(workers, look, task) for task in ("auto", "spawn")] == [False, True]
    async with pool(pool_envs.build_mixed, fresh="spawn") as workers:
        assert [await once(workers, look, task) for task in ("fork", "auto", "fork", "auto")] == [
            False, True, False, True,
        ]  # fmt: skip


async def test_a_library_with_a_thread_is_not_forked() -> None:
    async with pool(pool_envs.build_with_thread) as workers:
        assert workers.fresh == "spawn"
        assert await once(workers, "result = len(stained)") == 0


class NoPlace:
    """What ``sys.path`` may hold, as Python passes over all but text, and what no other interpreter can be sent."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle")


@pytest.mark.local
@pytest.mark.parametrize("with_nursery", [True, False])
async def test_what_is_no_text_in_the_path_is_passed_over(
    with_nursery: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not with_nursery:
        monkeypatch.setattr(nursery, "MAX_LOSSES", 0)
    expected = [*sys.path, str(tmp_path / "last")]
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, NoPlace(), str(tmp_path / "last")])
    async with pool(pool_envs.build_with_thread) as workers:  # a new interpreter for each trial
        places = await once(workers, "import sys; result = list(map(repr, sys.path))")
    assert places == list(map(repr, expected))


async def test_files_that_loading_leaves_open_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept.log"
    monkeypatch.setenv("CORRAL_TEST_FILE", str(path))
    async with pool(pool_envs.build_with_open_file) as workers:
        (warning,) = workers.warnings
    assert str(path) in warning
    assert 'fresh = "spawn"' in warning


# ---- a trial on a lease ----


async def test_a_trial_runs_and_its_record_names_its_process() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        ref = lease.worker
        assert ref.slot == 0
        assert ref.trial_pid == await python(lease, runtime_id, "import os; result = os.getpid()")
        assert ref.pid == await python(lease, runtime_id, "import os; result = os.getppid()")
        (statistics,) = workers.statistics().workers
        assert (statistics.pid, statistics.trial_pid, statistics.trials) == (ref.pid, ref.trial_pid, 1)
        result = await lease.perform(runtime_id, Action.SUBMIT, ("42",), "submit")
        assert isinstance(result, TaskTrialResult)
        assert (result.score, result.state["submitted_answer"]) == (1.0, "42")
        closed = await lease.close_trial(runtime_id)
        assert closed.peak_rss > 2**20
        assert closed.cpu_seconds > 0
        with pytest.raises(NotFound):
            await lease.close_trial(runtime_id)


async def test_a_mistake_of_the_caller_costs_the_trial_nothing() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        with pytest.raises(ConfigError, match="verbosity"):
            await lease.perform(runtime_id, Action.TOOLS, ("loud",), "tools")
        with pytest.raises(NotFound, match="tr_x"):
            await lease.perform("tr_x", Action.PROMPT, (), "prompt")
        assert await lease.perform(runtime_id, Action.PROMPT, (), "prompt") == "task a"


async def test_an_unknown_task_is_refused_without_a_process() -> None:
    async with pool() as workers, workers.lease() as lease:
        with pytest.raises(NotFound, match="'a', 'b'"):
            await opened(lease, "nowhere")
        assert lease.worker.trial_pid is None


async def test_usage_is_known_when_the_trial_process_has_ended() -> None:
    async with pool() as workers:
        async with workers.lease() as lease:
            await python(lease, await opened(lease), "result = len(bytearray(80 * 2**20))")
            await lease.kill()
            end = lease.end_of_process()
    assert end is not None
    assert end.peak_rss > 80 * 2**20
    assert end.cpu_seconds > 0


async def test_a_workspace_is_empty_the_trials_own_and_removed() -> None:
    look = "import os; result = [os.getcwd(), os.listdir()]; open('left', 'w').close()"
    async with pool() as workers:
        first, second = await once(workers, look), await once(workers, look)
    assert first[1] == second[1] == []
    assert not Path(first[0]).exists()
    assert not Path(second[0]).exists()


async def test_workspaces_of_killed_trials_are_removed() -> None:
    async with pool() as workers:
        async with workers.lease() as lease:
            folder = await python(lease, await opened(lease), "import os; result = os.getcwd()")
            assert Path(folder).is_dir()
            await lease.kill()
            assert not Path(folder).exists()


# ---- many at once ----


async def test_as_many_leases_as_slots_run_at_once_in_processes_of_their_own(tmp_path: Path, fresh: str) -> None:
    """Each waits until it sees the marks of all the others: with one fewer at once, none would return."""
    meet = f"""
        import os, time
        open({str(tmp_path)!r} + f"/{{os.getpid()}}", "w").close()
        deadline = time.monotonic() + 20
        while len(os.listdir({str(tmp_path)!r})) < 3:
            assert time.monotonic() < deadline, "the others did not come"
            time.sleep(0.005)
        result = os.getpid()
    """
    pids: list[int] = []

    async def one() -> None:
        pids.append(await once(workers, meet))

    async with pool(size=3, fresh=fresh) as workers:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        assert len(set(pids)) == 3
        assert sorted(w.trials for w in workers.statistics().workers) == [1, 1, 1]


async def test_never_more_leases_than_slots() -> None:
    running = most = 0

    async def one() -> None:
        nonlocal running, most
        async with workers.lease() as lease:
            running += 1
            most = max(most, running)
            await python(lease, await opened(lease), "result = 1")
            running -= 1

    async with pool(size=2) as workers:
        await eventually(lambda: workers.statistics().idle == 2)
        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(one)
        statistics = workers.statistics()
    assert most == 2
    assert sum(worker.trials for worker in statistics.workers) == 12
    assert (statistics.size, statistics.idle, statistics.leased, statistics.restarts) == (2, 2, 0, 0)


async def test_resize_grows() -> None:
    async with pool() as workers:
        first = await workers.acquire()
        workers.resize(3)
        with anyio.fail_after(10):
            second, third = await workers.acquire(), await workers.acquire()
        assert workers.size == 3
        assert workers.statistics().leased == 3
        assert len({lease.worker.pid for lease in (first, second, third)}) == 3
        for lease in (first, second, third):
            await workers.release(lease)


# ---- renewal ----


@pytest.mark.parametrize("reuse", ["trial", "worker"])
async def test_a_worker_is_renewed_after_its_trials(reuse: str) -> None:
    """Nobody is charged for it: all ten trials give an answer at once."""
    async with pool(max_trials_per_worker=2, reuse=reuse) as workers:
        parents = [await once(workers, "import os; result = os.getppid()") for _ in range(10)]
    assert len(set(parents)) == 5
    assert all(parents[n] == parents[n + 1] for n in range(0, 10, 2))


async def test_leases_that_wait_while_a_worker_is_renewed_are_served_by_the_new_one() -> None:
    parents: list[int] = []

    async def one() -> None:
        parents.append(await once(workers, "import os; result = os.getppid()"))

    async with pool(max_trials_per_worker=1) as workers:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(one)
    assert len(set(parents)) == 6


# ---- surroundings ----


async def test_native_threads_are_one_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NATIVE_THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ)
    look = f"import os; result = [os.environ.get(name) for name in {NATIVE_THREADS!r}]"
    async with pool(max_trials_per_worker=1) as workers:
        first, replaced = await once(workers, look), await once(workers, look)
        await eventually(lambda: workers.statistics().idle == 1)
        assert dict(os.environ) == before
    assert first == replaced == ["3" if name == "OMP_NUM_THREADS" else "1" for name in NATIVE_THREADS]
    assert dict(os.environ) == before


async def test_workers_see_the_supervisors_environment_folder_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are when the worker is started."""
    monkeypatch.setenv("CORRAL_TEST_SETTING", "set after import")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "local_module_of_a_test.py").write_text("VALUE = 42\n")

    def build_here() -> Any:
        import os

        import local_module_of_a_test  # type: ignore[import-not-found]

        seen = "|".join([os.environ["CORRAL_TEST_SETTING"], os.getcwd(), str(local_module_of_a_test.VALUE)])
        return {seen: pool_envs.Lab(seen)}

    async with pool(build_here) as workers:
        (task_id,) = workers.catalogue
    assert task_id.split("|") == ["set after import", str(tmp_path), "42"]


NEVER = ("httpx", "rich", "trio", "corral.runner", "corral.service", "corral.routers", "corral.scheduler",
         "corral.collector", "corral.pool.supervisor", "corral.pool.worker", "corral.pool.channel")  # fmt: skip


async def test_a_worker_stays_light(fresh: str) -> None:
    """What a forked trial process has loaded, its worker has loaded; a spawned one answers for itself."""
    look = f"import sys; result = [name for name in {NEVER!r} if name in sys.modules]"
    async with pool(fresh=fresh) as workers:
        assert await once(workers, look) == []


async def test_a_trial_process_holds_no_descriptor_of_its_worker() -> None:
    """One connection, no pipe of anyio's: or a worker's death would go unnoticed."""
    look = """
        import os
        result = sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd")
                        if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}"))
    """
    if sys.platform != "linux":
        pytest.skip("the descriptors of a process are read from /proc")
    async with pool(fresh="fork") as workers:
        assert [kind for kind in await once(workers, look) if not kind.startswith("/")] == ["socket"]


@pytest.mark.local
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
@pytest.mark.parametrize("with_nursery", [True, False])
async def test_nor_one_of_its_supervisor_s_where_that_runs_uvloop(
    fresh: str, with_nursery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which gives a child all that is inheritable."""
    if not with_nursery:
        monkeypatch.setattr(nursery, "MAX_LOSSES", 0)
    look = """
        import os
        result = {n: os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                  if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")}
    """
    own = os.open(os.devnull, os.O_RDONLY)
    try:
        os.set_inheritable(own, True)
        async with pool(fresh=fresh) as workers:
            held = await once(workers, look)
        assert [target.split(":")[0] for target in held.values()] == ["socket"], held
    finally:
        os.close(own)


@pytest.mark.local
async def test_finalizers_of_a_trial_run_at_its_end_and_those_of_its_worker_do_not(fresh: str, tmp_path: Path) -> None:
    """Though the worker has used some, too."""
    ran = tmp_path / "ran"

    def build() -> dict[str, Any]:
        pool_envs.kept = kept = Kept()  # type: ignore[attr-defined]
        weakref.finalize(kept, (tmp_path / "worker's").touch)
        return pool_envs.build()

    code = f"""
        import builtins, pathlib, weakref
        class Kept: pass
        builtins.kept = kept = Kept()
        weakref.finalize(kept, pathlib.Path({str(ran)!r}).touch)
    """
    async with WorkerPool(build, WorkerPoolConfig(size=1, fresh=fresh)) as workers:  # type: ignore[arg-type]
        await once(workers, code)
        assert ran.exists()
        assert fresh == "spawn" or not (tmp_path / "worker's").exists()


class Kept:
    """Something that finalizers can be bound to."""


@pytest.mark.local
async def test_closed_while_it_loads_nothing_is_left_of_what_the_builder_has_started(
    fresh: str, tmp_path: Path
) -> None:
    noted = tmp_path / "child"

    def build() -> Any:
        child = subprocess.Popen(["sleep", "300"])
        noted.write_text(f"{child.pid} ")
        time.sleep(60)

    async def run() -> None:
        async with WorkerPool(build, WorkerPoolConfig(size=1, fresh=fresh)):  # type: ignore[arg-type]
            pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        child = int(await eventually(lambda: noted.exists() and noted.read_text()))
        tasks.cancel_scope.cancel()
    await gone(child)


# ---- opening and closing ----


async def test_leaving_the_pool_ends_everything() -> None:
    async with pool(size=2) as workers:
        async with workers.lease() as lease:
            await opened(lease)
            await eventually(lambda: workers.statistics().idle == 1)
            pids = [pid for w in workers.statistics().workers for pid in (w.pid, w.trial_pid) if pid]
            assert len(pids) == 3
    assert not any(map(lives, pids))


async def test_leaving_at_once_while_workers_still_start() -> None:
    before = time.monotonic()
    async with pool(size=4):
        pass
    assert time.monotonic() - before < 10


async def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    with pytest.raises(LookupError, match="mine"):
        async with pool():
            raise LookupError("mine")


async def test_a_cancelled_block_ends_the_pool() -> None:
    pids: list[int] = []
    with anyio.CancelScope() as scope:
        async with pool() as workers, workers.lease() as lease:
            runtime_id = await opened(lease)
            pids += [lease.worker.pid, lease.worker.trial_pid or 0]
            scope.cancel()
            await python(lease, runtime_id, "import time; time.sleep(60)")
    assert scope.cancelled_caught
    assert len(pids) == 2
    assert not any(map(lives, pids))


# Dask's client, cancelled in the middle of a TLS handshake, leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
async def test_cancelled_while_it_opens_it_leaves_nothing(fresh: str) -> None:
    """At many moments of a start, from the first step to the last."""
    for delay in (0.0, 0.02, 0.05, 0.1, 0.15, 0.25):
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        with anyio.move_on_after(delay):
            async with pool(size=2, fresh=fresh):
                pass
        started = {child.pid for child in psutil.Process().children(recursive=True)} - before
        await gone(*started, within=3)
    gc.collect()  # here, where it may complain of that socket


def open_descriptors() -> int:
    return psutil.Process().num_fds()


@pytest.mark.slow
async def test_pools_come_and_go_without_a_trace() -> None:
    settled: tuple[int, int] | None = None
    for round_number in range(30):
        async with pool(size=2) as workers:
            await once(workers, "result = 1")
        if round_number == 4:
            settled = open_descriptors(), threading.active_count()
    assert settled is not None
    assert open_descriptors() <= settled[0]
    await eventually(lambda: threading.active_count() <= settled[1])
    zombies = [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
    assert zombies == []


@pytest.mark.local
async def test_scratch_files_are_private_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="c") as name:  # a short path: pytest's own may be too long for a socket
        place = Path(name)
        monkeypatch.setattr("tempfile.tempdir", name)
        async with pool() as workers:
            await once(workers, "result = 1")
            (folder,) = place.iterdir()
            assert folder.stat().st_mode & 0o777 == 0o700
            assert any(path.is_socket() for path in folder.iterdir())
        assert list(place.iterdir()) == []


async def test_a_long_temporary_folder_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: str) -> None:
    folder = tmp_path / ("x" * 75) / ("y" * 75)
    folder.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    async with pool(fresh=fresh) as workers:
        assert await once(workers, "result = 1 + 1") == 2


async def test_logs_are_kept_where_they_are_wanted(tmp_path: Path, fresh: str) -> None:
    async with pool(log_dir=tmp_path / "logs", fresh=fresh) as workers:
        await once(workers, "print('first')")
        await once(workers, "print('second')")
    lines = (tmp_path / "logs" / "slot-0.log").read_text().splitlines()
    assert [line for line in lines if line in ("first", "second")] == ["first", "second"]


def test_a_builder_must_be_a_function() -> None:
    with pytest.raises(ValueError, match="a function that builds the environments"):
        WorkerPool({"a": 1}, WorkerPoolConfig(size=1))  # type: ignore[arg-type]
