"""How runs are stopped: once politely, twice at once, at any moment; what is said then, and what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.pool_waiting import remain
from tests.support.scripts import start

BUILDERS = """
import os, re, time
from pathlib import Path
from tests.support.benches import Bench

def note():
    Path("loading").touch()

def asleep():
    note()
    time.sleep(300)

def busy():
    note()
    re.match("(a+)+$", "a" * 60 + "b")

def respawning():
    if Path("loaded").exists():
        busy()
    Path("loaded").touch()
    return {"a": Bench("a", "process")}
"""

AGENT = """
from corral.agents import ScriptedAgent

def one_after_the_other(context):
    def policy(lab, prompt):
        kill = "import os, time; os.kill(os.getppid(), 9); time.sleep(9)"
        lab.call("python", code=kill if context.trial_index else "")
        return 1
    return ScriptedAgent(policy)
"""


def until(condition: Callable[[], Any], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def command(folder: Path, builder: str, *more: str) -> subprocess.Popen[str]:
    (folder / "builders.py").write_text(BUILDERS)
    (folder / "agents.py").write_text(AGENT)
    given = ("-m", "corral.pool", "--envs", f"builders:{builder}", "--agent", "agents:one_after_the_other", "--size",
             "2", "--session", "s", *more)  # fmt: skip
    root = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[1])])
    return start(given, folder, PYTHONPATH=root)


def everything(run: subprocess.Popen[str]) -> list[int]:
    return [child.pid for child in psutil.Process(run.pid).children(recursive=True)]


@pytest.mark.parametrize("builder", ["asleep", "busy"])
@pytest.mark.parametrize(
    ("numbers", "status"),
    [([signal.SIGINT], 130), ([signal.SIGTERM], 143), ([signal.SIGHUP], 129), ([signal.SIGTERM, signal.SIGINT], None)],
    ids=["ctrl-c", "terminate", "hang-up", "twice"],
)
def test_while_the_first_worker_loads(
    builder: str, numbers: list[signal.Signals], status: int | None, tmp_path: Path
) -> None:
    """Nothing is recorded yet, so nothing is to be gone on with; but it ends, with the status of the signal."""
    run = command(tmp_path, builder)
    until((tmp_path / "loading").exists)
    below = everything(run)
    assert below
    began = time.monotonic()
    for number in numbers:
        os.killpg(run.pid, number)
    _, errors = run.communicate(timeout=20)
    assert time.monotonic() - began < 5
    assert run.returncode == status if status else run.returncode in (143, 130)
    assert "Traceback" not in errors
    assert remain(below) == []


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_while_a_worker_is_replaced_by_one_that_hangs(number: signal.Signals, tmp_path: Path) -> None:
    run = command(tmp_path, "respawning", "--size", "1", "--trials", "3", "--max-concurrency", "1")
    until((tmp_path / "loading").exists)
    below = everything(run)
    assert below
    run.send_signal(number)
    _, errors = run.communicate(timeout=20)
    assert run.returncode == {signal.SIGHUP: 129, signal.SIGKILL: -9}[number], errors
    assert remain(below) == []
    recorded = (tmp_path / "benchmark_checkpoints" / "s" / "journal.jsonl").read_text().splitlines()
    assert len(recorded) == 2
    if number == signal.SIGHUP:
        assert re.search(r"stopped by SIGHUP; what was finished is kept.*--session\s+s\s+goes\s+on", errors, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_at_any_moment_of_its_first_second(number: signal.Signals, tmp_path: Path) -> None:
    """From the first module that it imports on: never a traceback of Corral's own, never a process left."""
    for delay in (0.4, 0.7):
        run = command(tmp_path, "asleep")
        time.sleep(delay)
        below = everything(run)
        run.send_signal(number)
        _, errors = run.communicate(timeout=20)
        assert run.returncode in (128 + number, -number), errors
        if run.returncode > 0:  # else it was the interpreter's first moment, before any line of Corral
            assert errors.startswith(f"corral: stopped by {number.name}")
            assert len(errors.splitlines()) == 1
        assert remain(below) == []


HOLD = """
import builtins, sys, time
real, held = builtins.__import__, sys.argv.pop(1)
def hold(name, *more, **named):
    if name == held:
        print("now", flush=True)
        while True:  # of a signal that comes just before a system call Python takes notice after it
            time.sleep(0.01)
    return real(name, *more, **named)
builtins.__import__ = hold
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""Runs a command that stops at the import of a module: which moment it is in is no matter of luck."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(("module", "held"), [("corral.pool", "anyio"), ("corral.server builders:busy", "corral.app"),
                                              ("corral.report", "rich.console")])  # fmt: skip
def test_while_a_command_is_imported(module: str, held: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "hold.py").write_text(HOLD)
    (tmp_path / "builders.py").write_text(BUILDERS)
    run = start(["hold.py", held, *module.split()], tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "now\n"
    run.send_signal(number)
    _, errors = run.communicate(timeout=20)
    assert (run.returncode, errors) == (128 + number, f"corral: stopped by {number.name}\n")


BUILDS_LONG = """
import subprocess, sys, time
from pathlib import Path
from corral import CorralRunner
from corral.agents import ScriptedAgent
from corral.pool import WorkerPoolConfig

def build():
    child = subprocess.Popen(["sleep", "300"])
    Path("noted").write_text(str(child.pid))
    Path("noted").rename("child")
    time.sleep(60)

if __name__ == "__main__":
    pool = WorkerPoolConfig(size=2, fresh=sys.argv[1])
    CorralRunner(build, agent_factory=lambda c: ScriptedAgent(lambda lab, prompt: 1)).bench(worker_pool=pool)
"""


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_script_while_its_environments_are_built(number: signal.Signals, fresh: str, tmp_path: Path) -> None:
    """What the builder has started by then ends too."""
    (tmp_path / "run.py").write_text(BUILDS_LONG)
    run = start(["run.py", fresh], tmp_path)
    until((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    run.send_signal(number)
    _, errors = run.communicate(timeout=20)
    assert run.returncode in (-number, 128 + number), errors
    assert remain([child]) == []


MAKES_A_FOLDER = """
import os, runpy, signal, sys, tempfile
make = tempfile.mkdtemp
def stopped(*given, **named):
    folder = make(*given, **named)
    os.kill(os.getpid(), signal.SIGHUP)
    return folder
tempfile.mkdtemp = stopped
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""Runs a command that a signal meets when a temporary folder of its has just been made, and nothing holds it yet."""


def test_while_it_makes_a_folder(tmp_path: Path) -> None:
    (tmp_path / "makes.py").write_text(MAKES_A_FOLDER)
    (tmp_path / "builders.py").write_text(BUILDERS)
    (tmp_path / "agents.py").write_text(AGENT)
    (tmp_path / "temporary").mkdir()
    given = "corral.pool --envs builders:asleep --agent agents:one_after_the_other --size 1 --session s"
    run = start(["makes.py", *given.split()], tmp_path, TMPDIR=str(tmp_path / "temporary"))
    _, errors = run.communicate(timeout=20)
    assert run.returncode == 128 + signal.SIGHUP, errors
    assert re.fullmatch("corral: stopped by SIGHUP.*\\n", errors)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_signal_that_is_to_be_ignored_is(tmp_path: Path) -> None:
    """``nohup``: a run goes on when its terminal is closed."""
    (tmp_path / "quiet.py").write_text(
        "import os, signal, sys\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\nos.execv(sys.executable, sys.argv[1:])"
    )
    (tmp_path / "builders.py").write_text(BUILDERS)
    (tmp_path / "agents.py").write_text(AGENT)
    given = ["-m", "corral.pool", "--envs", "builders:asleep", "--agent", "agents:one_after_the_other", "--size", "1"]
    root = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[1])])
    run = start(["quiet.py", sys.executable, *given], tmp_path, PYTHONPATH=root)
    until((tmp_path / "loading").exists)
    below = everything(run)
    run.send_signal(signal.SIGHUP)
    run.send_signal(signal.SIGTERM)
    _, errors = run.communicate(timeout=20)
    assert run.returncode == 143, errors
    assert "SIGTERM" in errors
    assert remain(below) == []


SCRIPT = """
import sys
from corral import CorralRunner
from corral.agents import ScriptedAgent
from tests.support.benches import benches

def policy(lab, prompt):
    if prompt == "task b":
        print("now", flush=True)
        lab.call("python", code="import time; time.sleep(60)")
    return 1

if __name__ == "__main__":
    runner = CorralRunner(benches(a="process", b="process"), agent_factory=lambda c: ScriptedAgent(policy))
    runner.bench(worker_pool=1)
"""


def test_a_script_that_is_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    """The session was not named, so its name has to be told: with it, the script runs what is left only."""
    (tmp_path / "script.py").write_text(SCRIPT)
    run = start(["script.py"], tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "now\n"
    below = everything(run)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=20)
    assert run.returncode in (-signal.SIGINT, 130)
    told = re.search(r"session '([^']+)' was stopped; what was finished is kept.*session_id=", errors)
    assert told, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert (tmp_path / "benchmark_checkpoints" / told[1] / "journal.jsonl").exists()
    assert remain(below) == []
