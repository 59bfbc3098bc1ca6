"""Pools started from users' scripts: guarded, unguarded, from standard input; and supervisors that end badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.pool_scripts import Script
from tests.support.pool_waiting import lives, remain

GUARDED = """
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=2)) as pool:
            async with pool.lease() as lease:
                print(await run(lease, "import os; result = os.getpid() != %d" % os.getpid()))

    if __name__ == "__main__":
        anyio.run(main)
"""

UNGUARDED = """
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=8)) as pool:
            pass

    anyio.run(main)
"""


@pytest.mark.parametrize("by_stdin", [False, True], ids=["file", "stdin"])
def test_environments_of_the_main_script_work(tmp_path: Path, by_stdin: bool) -> None:
    script = Script(tmp_path, GUARDED)
    done = script.run(by_stdin=by_stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert remain(script.pids()) == []


def test_a_script_without_a_guard_gets_one_clear_error(tmp_path: Path) -> None:
    script = Script(tmp_path, UNGUARDED)
    began = time.monotonic()
    done = script.run()
    assert time.monotonic() - began < 10
    assert done.returncode == 1
    assert "ConfigError" in done.stderr.splitlines()[-1]
    assert 'if __name__ == "__main__":' in done.stderr
    assert "BrokenWorkerProcess" not in done.stderr
    assert len(script.pids()) <= 3, "every process that imports the script leaves its mark"
    assert remain(script.pids()) == []


def test_a_main_script_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        if __name__ != "__main__":
            raise RuntimeError("only to be run by hand")
        """,
        GUARDED,
    )
    done = script.run()
    assert done.returncode == 1
    assert "importing the main script, in a worker, failed: RuntimeError: only to be run by hand" in done.stderr
    assert remain(script.pids()) == []


@pytest.mark.slow
def test_a_main_script_that_hangs_when_it_is_imported_is_given_up(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        if __name__ != "__main__":
            time.sleep(60)
        """,
        GUARDED.replace("size=2", "size=2, start_timeout=1.0"),
    )
    done = script.run()
    assert done.returncode == 1
    assert "importing the main script, in a worker, failed: TimeoutError: not ready within" in done.stderr
    assert remain(script.pids()) == []


# ---- supervisors that end badly ----

IDLE = """
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=2, fresh=FRESH)) as pool:
            while pool.statistics().idle < 2:
                await anyio.sleep(0.01)
            print("now", flush=True)
            await anyio.sleep(60)

    if __name__ == "__main__":
        anyio.run(main)
"""

BUSY = """
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=2, fresh=FRESH)) as pool:
            async with pool.lease() as lease:
                note()
                await run(lease, START_CHILD + "WORK")

    if __name__ == "__main__":
        anyio.run(main)
"""

LOADING = """
    def build():
        note()
        import re
        WORK

    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=2, fresh=FRESH)):
            pass

    if __name__ == "__main__":
        anyio.run(main)
"""

LOADING_TO_FORK = """
    class Forked(Mine):
        fresh = "fork"

    def build():
        note()
        if os.getsid(0) == os.getpid():  # as a worker does, and no trial process
            import re
            WORK
        return {"a": Forked("a")}

    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=1, fresh="spawn")) as pool:
            async with pool.lease() as lease:
                await run(lease, "")

    if __name__ == "__main__":
        anyio.run(main)
"""

SLEEP = "time.sleep(300)"
NO_NURSERY = "import corral.pool.nursery; corral.pool.nursery.MAX_LOSSES = 0"
REGEX = "re.match('(a+)+$', 'a' * 60 + 'b')"


def family(pid: int) -> list[int]:
    """The process and all below it."""
    root = psutil.Process(pid)
    return [pid, *(child.pid for child in root.children(recursive=True))]


def watch(script: Script, ready: Callable[[], object]) -> tuple[subprocess.Popen[str], list[int]]:
    """Start the script, wait until it is where it should be; it and every process of its run."""
    process = script.start()
    try:
        ready()
    except AssertionError:
        process.kill()
        pytest.fail(f"the script did not get there:\n{process.communicate()[1]}")
    return process, sorted({*family(process.pid), *script.pids()})


def end(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)
    process.communicate(timeout=10)


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
def test_a_killed_supervisor_takes_its_idle_workers_with_it(tmp_path: Path, fresh: str) -> None:
    script = Script(tmp_path, IDLE.replace("FRESH", repr(fresh)))
    process = script.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    pids = sorted({*family(process.pid), *script.pids()})
    assert len(pids) >= (3 if fresh == "fork" else 5)
    end(process, signal.SIGKILL)
    assert remain(pids) == []


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
@pytest.mark.parametrize("work", [SLEEP, REGEX], ids=["sleep", "regex"])
def test_a_killed_supervisor_takes_its_busy_workers_with_it(tmp_path: Path, fresh: str, work: str) -> None:
    """And what they started."""
    script = Script(tmp_path, BUSY.replace("FRESH", repr(fresh)).replace("WORK", work))
    built = 1 if fresh == "fork" else 2
    process, pids = watch(script, lambda: script.wait_for(1 + built + 2 + (1 if fresh == "fork" else 0)))
    end(process, signal.SIGKILL)
    assert remain(pids) == []


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
@pytest.mark.parametrize("work", [SLEEP, REGEX], ids=["sleep", "regex"])
def test_a_killed_supervisor_takes_its_loading_workers_with_it(tmp_path: Path, fresh: str, work: str) -> None:
    script = Script(tmp_path, LOADING.replace("FRESH", repr(fresh)).replace("WORK", work))
    process, pids = watch(script, lambda: script.wait_for(2))
    end(process, signal.SIGKILL)
    assert remain(pids) == []


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
def test_a_killed_supervisor_takes_what_a_loading_worker_has_started_with_it(tmp_path: Path, fresh: str) -> None:
    """Even where the worker holds the GIL, and so can do nothing about it."""
    helper = 'import subprocess; helper = subprocess.Popen(["sleep", "300"]); '
    noted = 'open(os.environ["PIDS"], "a").write(f"{helper.pid}\\n"); '
    script = Script(tmp_path, LOADING.replace("FRESH", repr(fresh)).replace("WORK", helper + noted + REGEX))
    process, pids = watch(script, lambda: script.wait_for(3))
    end(process, signal.SIGKILL)
    assert remain(pids) == []


def test_a_killed_supervisor_takes_a_worker_with_it_that_loads_late(tmp_path: Path) -> None:
    """The pool spawns; the worker itself loads when a task insists on a fork, long after its start."""
    script = Script(tmp_path, LOADING_TO_FORK.replace("WORK", REGEX))
    process, pids = watch(script, lambda: script.wait_for(3))
    end(process, signal.SIGKILL)
    assert remain(pids) == []


HELPED = """
    NURSERY

    HANG = "import os, time; open(os.environ['PIDS'] + '.there', 'w'); time.sleep(300)"

    def build():
        note()
        LOAD
        return {"a": Mine("a")}

    async def fork_once_there():
        "As ``multiprocessing`` does: a child holds whatever this process held, and lives on."
        while not os.path.exists(os.environ["PIDS"] + ".there"):
            await anyio.sleep(0.01)
        if (helper := os.fork()) == 0:
            time.sleep(300)
            os._exit(0)
        print(helper, flush=True)

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fork_once_there)
            async with WorkerPool(build, WorkerPoolConfig(size=1, fresh=FRESH)) as pool:
                async with pool.lease() as lease:
                    await run(lease, START_CHILD + HANG)

    if __name__ == "__main__":
        anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an end-of-file has to do")
@pytest.mark.parametrize("fresh", ["fork", "spawn"])
@pytest.mark.parametrize("load", ["", "exec(HANG)"], ids=["busy", "loading"])
@pytest.mark.parametrize("nursery", ["", NO_NURSERY], ids=["nursery", "no nursery"])
def test_a_killed_supervisor_takes_its_workers_with_it_though_a_fork_of_it_lives(
    tmp_path: Path, nursery: str, load: str, fresh: str
) -> None:
    """No connection of theirs is at its end then: the fork holds the supervisor's end of each."""
    script = Script(tmp_path, HELPED.replace("NURSERY", nursery).replace("LOAD", load).replace("FRESH", repr(fresh)))
    process = script.start()
    assert process.stdout is not None
    helper = int(process.stdout.readline() or pytest.fail("it did not get there"))
    try:
        pids = sorted({*family(process.pid), *script.pids()} - {helper})
        process.kill()
        process.wait(10)
        assert remain(pids) == []
        assert lives(helper)
    finally:
        os.kill(helper, signal.SIGKILL)
        process.communicate(timeout=10)


PIPED = """
    import signal, psutil
    from corral.errors import TrialError
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def kill(pid):
        "And hold the event loop until it is gone: so what is sent next goes to nobody."
        os.kill(pid, signal.SIGKILL)
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)

    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=1)) as pool:
            async with pool.lease() as lease:
                trial, worker = await run(lease, "import os; result = [os.getpid(), os.getppid()]")
                kill(trial)
                WORKER
                try:
                    await lease.perform("t", Action.EXECUTE, ("python", {"code": ""}), "tool python")
                except TrialError as error:
                    print(type(error).__name__)
            async with pool.lease() as lease:
                print(await run(lease, "result = 2"))

    if __name__ == "__main__":
        anyio.run(main)
"""


@pytest.mark.skipif(not hasattr(socket, "MSG_NOSIGNAL"), reason="there is no such flag")
@pytest.mark.parametrize("worker", ["", "kill(worker)"], ids=["trial process", "and its worker"])
def test_with_the_usual_sigpipe_of_scripts_what_died_is_no_end_of_the_supervisor(tmp_path: Path, worker: str) -> None:
    done = Script(tmp_path, PIPED.replace("WORKER", worker)).run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "WorkerDied\n2\n", "")


DEAF = """
    import math, signal
    from corral.pool.interpreter import Interpreter
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    async def main():
        program = "import os, time; os.close(0); os.write(1, b'READY' + bytes([10])); time.sleep(300)"
        limiter = anyio.CapacityLimiter(math.inf)
        deaf = Interpreter(os.environ["PIDS"] + ".log", keep_log=False, limiter=limiter, program=program)
        try:
            await deaf.run(print, "x" * 10**6)
        except anyio.BrokenWorkerProcess as error:
            print(type(error.__cause__).__name__, deaf.status)

    anyio.run(main, backend=BACKEND)
"""


@pytest.mark.skipif(not hasattr(socket, "MSG_NOSIGNAL"), reason="there is no such flag")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_with_that_sigpipe_an_interpreter_that_does_not_listen_is_none_either(tmp_path: Path, backend: str) -> None:
    done = Script(tmp_path, DEAF.replace("BACKEND", repr(backend))).run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "BrokenPipeError -9\n", "")


IGNORING = """
    import signal
    from corral.errors import TrialError
    NURSERY
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    TOOLS = [
        "import os; os.kill(os.getpid(), 11)",
        "import os, time; os.kill(os.getppid(), 9); time.sleep(60)",
        "import signal; result = signal.getsignal(signal.SIGCHLD).name",
    ]

    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=1)) as pool:
            for code in TOOLS:
                async with pool.lease() as lease:
                    await lease.open(TrialSpec(f"t{TOOLS.index(code)}", "a"))
                    trial = f"t{TOOLS.index(code)}", Action.EXECUTE, ("python", {"code": code}), "tool python"
                    try:
                        print((await lease.perform(*trial)).result)
                    except TrialError as error:
                        print(error.exit_status)
            print(pool.statistics().restarts)

    if __name__ == "__main__":
        anyio.run(main, backend=BACKEND)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("nursery", "of_worker"), [("", "-9"), (NO_NURSERY, "None")], ids=["nursery", "no nursery"])
def test_where_the_ends_of_children_are_ignored_those_of_trials_are_known(
    tmp_path: Path, nursery: str, of_worker: str, backend: str
) -> None:
    """In the script, and so in all that it starts. Of its own children, it knows what the system still tells."""
    script = Script(tmp_path, IGNORING.replace("NURSERY", nursery).replace("BACKEND", repr(backend)))
    done = script.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"-11\n{of_worker}\nSIG_IGN\n1\n", "")


def test_an_interrupted_supervisor_ends_its_workers_itself(tmp_path: Path) -> None:
    """Like Ctrl-C in a terminal: once is enough, and no worker adds a traceback of its own."""
    script = Script(tmp_path, IDLE.replace("FRESH", "'fork'"))
    process = script.start()
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    pids = family(process.pid)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode in (1, -signal.SIGINT)
    assert errors.count("Traceback") <= 2
    assert remain(pids, within=1.0) == []


def test_an_error_of_the_script_ends_its_busy_workers(tmp_path: Path) -> None:
    script = Script(
        tmp_path,
        """
        async def main():
            async with WorkerPool(build, WorkerPoolConfig(size=1)) as pool:
                async with anyio.create_task_group() as tasks:
                    async with pool.lease() as lease:
                        tasks.start_soon(run, lease, "import time; time.sleep(60)")
                        while pool.statistics().workers[0].trial_pid is None:
                            await anyio.sleep(0.01)
                        (worker,) = pool.statistics().workers
                        print(worker.pid, worker.trial_pid)
                        raise LookupError("mine")

        if __name__ == "__main__":
            anyio.run(main)
        """,
    )
    began = time.monotonic()
    done = script.run()
    assert time.monotonic() - began < 8
    assert "LookupError: mine" in done.stderr
    pids = [int(line) for line in done.stdout.split()]
    assert len(pids) == 2
    assert remain([*pids, *script.pids()], within=1.0) == []


def test_a_supervisor_that_leaves_by_a_hard_exit_leaves_nothing(tmp_path: Path) -> None:
    script = Script(tmp_path, IDLE.replace("FRESH", "'fork'").replace("await anyio.sleep(60)", "os._exit(4)"))
    done = script.run()
    assert done.returncode == 4
    assert remain([pid for pid in script.pids() if pid != os.getpid()]) == []
