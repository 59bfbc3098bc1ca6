"""The user's main script as workers import it: harmless whatever it prints, named when it fails, found by name."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest
from anyio import to_process

from corral.errors import EnvStartError
from tests.support import pool_envs
from tests.support.pool_driving import once, pool
from tests.support.pool_scripts import PRELUDE, Script
from tests.support.pool_waiting import remain

RUN = """
    async def main():
        async with WorkerPool(build, WorkerPoolConfig(size=2, fresh=FRESH, start_timeout=LIMIT)) as pool:
            async with pool.lease() as lease:
                print(await run(lease, CODE))

    if __name__ == "__main__":
        anyio.run(main)
"""


def running(fresh: str = "auto", code: str = "result = 6 * 7", limit: float = 20.0) -> str:
    return RUN.replace("FRESH", repr(fresh)).replace("LIMIT", str(limit)).replace("CODE", repr(code))


NOISE = """
    import ctypes
    print("from Python", flush=True)
    os.write(1, bytes(range(256)) * 1024)
    os.write(2, b"x" * 10_000_000)
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
"""


def on_import(*lines: str) -> str:
    return "\nif __name__ != '__main__':\n" + "".join(textwrap.indent(textwrap.dedent(each), "    ") for each in lines)


def test_whatever_it_prints_is_harmless(tmp_path: Path, fresh: str) -> None:
    script = Script(tmp_path, on_import(NOISE), running(fresh))
    done = script.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
    assert remain(script.pids()) == []


ENDS = {
    "raises": ("raise RuntimeError('no good')", "RuntimeError: no good"),
    "exits": ("sys.exit(3)", "SystemExit: 3"),
    "exits_hard": ("os._exit(9)", "ended with exit code 9 before it was ready"),
    "crashes": ("ctypes.string_at(0)", "was killed by signal 11 (SIGSEGV) before it was ready"),
    "hangs": ("def wait_for_the_licence(): time.sleep(60)\nwait_for_the_licence()", "wait_for_the_licence"),
    "holds_the_interpreter": ("import re; re.match('(a+)+$', 'a' * 60 + 'b')", "not ready within start_timeout = 2 s"),
    "stops": ("os.kill(os.getpid(), 19)", "not ready within start_timeout = 2 s"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_that_fails_as_it_is_imported_is_named_with_what_it_printed_last(end: str, tmp_path: Path) -> None:
    """In a few lines, behind the traceback of the call: the terminal is no place for what it printed in all."""
    code, says = ENDS[end]
    noise = "import ctypes\nfor n in range(5000): print('line', n)\nos.write(2, b'y' * 100_000 + b'\\n')\n"
    script = Script(tmp_path, on_import(noise, code), running(limit=2.0))
    began = time.monotonic()
    done = script.run()
    assert time.monotonic() - began < 2 + 5 + 10  # its limit, the promise, a busy machine
    assert (done.returncode, done.stdout) == (1, "")
    before, _, told = done.stderr.rpartition("corral.")
    assert "Traceback" in before
    assert "importing the main script, in a worker, failed: " in told
    assert says in told
    assert len(told.splitlines()) <= 14
    assert max(map(len, told.splitlines())) < 300
    assert remain(script.pids()) == []


@pytest.mark.anyio
async def test_the_error_keeps_what_the_script_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of it than the sentence shows."""
    path = tmp_path / "main.py"
    path.write_text("for n in range(100): print('line', n)\nraise LookupError('mine')")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(path), raising=False)
    with pytest.raises(EnvStartError, match="LookupError: mine") as caught:
        async with pool():
            pass
    assert [line for line in caught.value.output.splitlines() if line.startswith("line")][-100:] == [
        f"line {n}" for n in range(100)
    ]
    assert caught.value.record is not None
    assert "main.py" in caught.value.record.traceback


def test_a_refused_run_is_told_whatever_the_script_makes_of_the_refusal(tmp_path: Path) -> None:
    """Without a guard, and with a main function that turns errors into an exit status, as those of commands do."""
    script = Script(
        tmp_path,
        """
        async def main():
            async with WorkerPool(build, WorkerPoolConfig(size=2)):
                pass

        def command():
            try:
                anyio.run(main)
            except Exception as error:
                print(error, file=sys.stderr)
                return 2

        sys.exit(command())
        """,
    )
    done = script.run()
    assert done.returncode == 2
    assert done.stderr.startswith("a worker pool was started while a worker imported your script")
    assert len(done.stderr.splitlines()) == 1
    assert len(script.pids()) == 2
    assert remain(script.pids()) == []


def test_what_it_sets_up_is_set_up_where_trials_run(tmp_path: Path, fresh: str) -> None:
    """In a fork, and in a new interpreter: both have imported it, once each."""
    set_up = "import decimal\ndecimal.DefaultContext.prec = 7; decimal.getcontext().prec = 7\n"
    code = "import decimal, sys; result = [decimal.getcontext().prec, 'Mine' in vars(sys.modules['__main__'])]"
    script = Script(tmp_path, on_import(set_up), running(fresh, code))
    done = script.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "[7, True]\n", "")


def test_it_is_found_under_both_names(tmp_path: Path, fresh: str) -> None:
    code = "import sys, __main__, __mp_main__; result = [__main__ is __mp_main__, __main__.__name__, __main__.MARK]"
    script = Script(tmp_path, "\nMARK = __name__\n", running(fresh, code))
    assert script.run().stdout == "[True, '__mp_main__', '__mp_main__']\n"


def test_it_finds_its_arguments_wherever_it_is_imported(tmp_path: Path, fresh: str) -> None:
    """And so does what is built of it, later. They may be more than one argument of a command can hold."""
    many = ["x" * 1000] * 200
    top = "\nimport argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--level', type=int)\n"
    top += "parser.add_argument('more', nargs='*')\nOPTIONS = parser.parse_args()\n"
    code = "import sys; from __main__ import OPTIONS as o; result = [o.level, len(o.more), sys.argv[1:3], sys.argv[0]]"
    script = Script(tmp_path, top, running(fresh, code))
    done = script.run("--level", "3", *many)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"[3, 200, ['--level', '3'], {str(script.path)!r}]\n"


ODD = ["a\\0b", "\\ud800", "", "x" * 200_000]
"""What no command line can hold, or not in one argument: a script may put it there."""


def test_what_it_makes_of_its_arguments_is_found_too(tmp_path: Path, fresh: str) -> None:
    """Also in an interpreter that a worker of several threads starts, which no fork can be."""
    top = f"\nif __name__ == '__main__':\n    sys.argv[1:] = {ODD!r}\n".replace("\\\\", "\\")
    threads = "\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    code = "import sys; result = [ascii(each[:5]) for each in sys.argv[1:]], len(sys.argv[-1])"
    done = Script(tmp_path, top, on_import(threads), running(fresh, code)).run()
    shown = [ascii("a\0b"), ascii("\ud800"), "''", "'xxxxx'"]
    assert (done.returncode, done.stdout, done.stderr) == (0, f"[{shown!r}, 200000]\n", "")


def test_it_may_take_over_streams_and_signals(tmp_path: Path) -> None:
    """As it does it, workers undo it: they print to their log, and end when the pool does."""
    grabs = """
        import io, signal
        sys.stdout = sys.stderr = io.StringIO()
        sys.stdout.close()
        for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    """
    script = Script(tmp_path, on_import(grabs), running(code="print('hello'); result = 1"))
    done = script.run()
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert remain(script.pids()) == []


def test_a_module_with_relative_imports(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "numbers.py").write_text("ANSWER = 42\n")
    (tmp_path / "tools" / "run.py").write_text(
        PRELUDE + "\nfrom .numbers import ANSWER\n" + textwrap.dedent(running(code="result = 1"))
    )
    script = Script(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tools.run"], cwd=tmp_path, env=script.environment, capture_output=True, text=True,
        timeout=40, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize("by_stdin", [False, True], ids=["file", "stdin"])
def test_there_is_a_main_module_while_it_is_imported_and_where_there_is_none(by_stdin: bool, tmp_path: Path) -> None:
    """Serialisers import it by that name."""
    script = Script(tmp_path, "\nimport __main__\n", running(code="import __main__; result = __main__.__name__"))
    done = script.run(by_stdin=by_stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "__mp_main__\n", "")


# ---- beside others that use anyio.to_process ----


def sees_main() -> bool:
    return hasattr(sys.modules["__main__"], "MARK_OF_MAIN")


@pytest.mark.anyio
async def test_calls_of_others_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs have the main script imported by anyio, also while workers start; no interpreter serves both."""
    path = tmp_path / "main.py"
    path.write_text("MARK_OF_MAIN = 1\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(path), raising=False)
    first = await to_process.run_sync(os.getpid)
    seen = []

    async def look() -> None:
        seen.append(await to_process.run_sync(sees_main))

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(look)
        async with pool(pool_envs.build, size=2) as workers:
            assert await once(workers, "import sys; result = hasattr(sys.modules['__main__'], 'MARK_OF_MAIN')")
            assert first not in [worker.pid for worker in workers.statistics().workers]
    assert seen == [True, True]
    assert await to_process.run_sync(os.getpid) not in [worker.pid for worker in workers.statistics().workers]
