"""What surrounds a run: folders, modules beside the script, standard input, an impatient user; and odd journals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral import Environment
from corral.errors import EnvStartError, SerializationError
from corral.pool import WorkerPoolConfig
from corral.report import stable_bytes
from tests.support.benches import Bench, bench, benches, code, runner
from tests.support.pool_waiting import remain
from tests.support.scripts import environment, python, start

RUN = """
import sys
from corral import CorralRunner
from corral.agents import ScriptedAgent
{imports}

def policy(lab, prompt):
    return lab.call("python", code={code!r})

if __name__ == "__main__":
    from tests.support.benches import benches
    runner = CorralRunner({builder}, agent_factory=lambda c: ScriptedAgent(policy))
    result = runner.bench(worker_pool=1, trials_per_task={trials})
    print([trial.state["submitted_answer"] for trial in result.trials])
    {after}
"""


def text(
    code: str, *, imports: str = "", builder: str = 'benches(a="process")', after: str = "", trials: int = 1
) -> str:
    return RUN.format(code=code, imports=imports, builder=builder, after=after, trials=trials)


# ---- folders ----


@pytest.mark.parametrize("kind", ["missing", "a file", "a link"])
def test_odd_temporary_folders(kind: str, tmp_path: Path) -> None:
    """Each works: what cannot be used is passed over. Nothing is left in any of them."""
    folder, real = tmp_path / "tmp", tmp_path / "real"
    real.mkdir()
    if kind == "a file":
        folder.write_text("")
    elif kind == "a link":
        folder.symlink_to(real)
    (tmp_path / "script.py").write_text(text("result = 7"))
    done = python("script.py", folder=tmp_path, variables={"TMPDIR": str(folder)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[7]\n", "")
    assert list(real.iterdir()) == []


# ---- modules ----


@pytest.mark.parametrize("name", ["tasks", "report", "runner"])
def test_a_module_beside_the_script_may_have_any_name(name: str, tmp_path: Path) -> None:
    """Names of Corral's own modules too: workers find the user's."""
    (tmp_path / f"{name}.py").write_text(
        "from tests.support.benches import Bench\nMINE = 'mine'\n"
        "class Own(Bench):\n    pass\ndef build():\n    return {'a': Own('a', 'process')}\n"
    )
    lines = f"import {name}; result = [{name}.MINE, type(env).__module__]"
    (tmp_path / "script.py").write_text(text(lines, imports=f"import {name}", builder=f"{name}.build"))
    done = python("script.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{[['mine', name]]}\n"


def test_a_builder_that_relies_on_a_global_of_the_supervisor_is_told_so(tmp_path: Path) -> None:
    """It was set by hand, after import: a worker, which imports anew, does not have it."""
    (tmp_path / "settings_of_mine.py").write_text("database = None\n")
    script = (
        "import settings_of_mine\n"
        "def build():\n"
        "    settings_of_mine.database.lower()\n"
        "    from tests.support.benches import Bench\n"
        "    return {'a': Bench('a', 'process')}\n"
        "if __name__ == '__main__':\n"
        "    settings_of_mine.database = 'minteq'\n"
        "    from corral import CorralRunner\n"
        "    from corral.agents import ScriptedAgent\n"
        "    CorralRunner(build, agent_factory=lambda c: ScriptedAgent(print)).bench(worker_pool=4)\n"
    )
    (tmp_path / "script.py").write_text(script)
    done = python("script.py", folder=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "EnvStartError" in last
    assert "'NoneType' object has no attribute 'lower'" in last


def test_a_builder_that_holds_a_lock_is_refused_by_its_name(tmp_path: Path) -> None:
    lock = threading.Lock()

    def build() -> dict[str, Environment]:
        with lock:
            return {"a": Bench("a", "process")}

    began = time.monotonic()
    with pytest.raises(SerializationError, match=r"(?s)build.*lock"):
        bench(build, code(""), tmp_path, worker_pool=8)
    assert time.monotonic() - began < 5


# ---- standard input ----


def test_trials_neither_see_nor_take_what_is_typed(tmp_path: Path) -> None:
    ask = (
        "import subprocess\ntry: result = input()\nexcept EOFError: "
        "result = ['end', subprocess.run(['cat'], capture_output=True).stdout.decode()]"
    )
    (tmp_path / "script.py").write_text(text(ask, after="print(sys.stdin.read().split())"))
    done = python("script.py", folder=tmp_path, stdin="one\ntwo\nthree\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[['end', '']]\n['one', 'two', 'three']\n"


# ---- an impatient user ----


def test_an_interrupt_ends_what_tools_have_started(tmp_path: Path) -> None:
    solver = "import subprocess; subprocess.run(['sleep', '300'])"
    (tmp_path / "script.py").write_text(text(solver))
    run = start(["script.py"], tmp_path)
    deadline = time.monotonic() + 20
    below: list[psutil.Process] = []
    while not any("sleep" in process.name() for process in below):
        assert time.monotonic() < deadline
        below = psutil.Process(run.pid).children(recursive=True)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=10)
    assert run.returncode in (130, -signal.SIGINT)
    assert remain(process.pid for process in below) == []


@pytest.mark.slow
def test_an_interrupt_while_large_results_arrive(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text("result = 'x' * 20_000_000", trials=20))
    run = start(["script.py"], tmp_path)
    journal = tmp_path / "benchmark_checkpoints"
    deadline = time.monotonic() + 30
    while not any(len(path.read_bytes()) > 20_000_000 for path in journal.rglob("journal.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    below = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
    began = time.monotonic()
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=20)
    assert time.monotonic() - began < 10
    assert remain(below) == []


# ---- journals ----


def test_trials_missing_in_the_middle_are_what_runs(tmp_path: Path) -> None:
    mark = f"with open({str(tmp_path / 'ran')!r}, 'a') as file: print(env.state.trial_id, file=file)"

    def policy(lab: Any, prompt: str) -> Any:
        lab.call("python", code=mark)
        return 1

    options: dict[str, Any] = {"trials_per_task": 5, "session_id": "s", "seed": 1}
    whole = bench(benches(a="thread"), policy, tmp_path, **options)
    journal = tmp_path / "sessions" / "s" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    kept = [line for line in lines if line.get("trial_index") not in (2, 3) and line["type"] in ("header", "trial")]
    journal.write_text("".join(json.dumps(line) + "\n" for line in kept))
    (tmp_path / "ran").unlink()
    again = bench(benches(a="thread"), policy, tmp_path, **options)
    assert (tmp_path / "ran").read_text().split() == ["a#2", "a#3"]
    assert again.coverage.complete
    assert stable_bytes(again) == stable_bytes(whole)


@pytest.mark.slow
def test_a_report_is_whole_or_not_there_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    """A report of some megabytes, again and again; the writer is killed at twenty random moments."""
    script = (
        "import os\nfrom tests.support.benches import bench, benches\nfrom pathlib import Path\n"
        "result = bench(benches(a='thread'), lambda lab, prompt: 'x' * 3_000_000, Path('.'))\n"
        "print('now', flush=True)\n"
        "while True: result.generate_report('report.json')\n"
    )
    (tmp_path / "writer.py").write_text(script)
    dice = random.Random(5)
    report = tmp_path / "report.json"
    for _ in range(20):
        run = start(["writer.py"], tmp_path)
        assert run.stdout is not None
        assert run.stdout.readline() == "now\n"
        time.sleep(dice.uniform(0, 0.1))
        run.kill()
        run.communicate()
        if report.exists():
            assert len(json.loads(report.read_text())["tasks"]["a"]["trials"]) == 1
            report.unlink()


# ---- very many, very short ----


@pytest.mark.slow
def test_two_thousand_trials_that_do_nothing(tmp_path: Path) -> None:
    """At most 5 ms for each on a quiet machine, no more for the last ones than for the first."""
    moments: list[float] = []
    pool = WorkerPoolConfig(size=2, reuse="worker")
    result = runner(benches(a="process"), lambda lab, prompt: 1, tmp_path).bench(
        trials_per_task=2000, max_concurrency=4, max_concurrency_per_task=4, worker_pool=pool,
        progress=lambda event: moments.append(time.monotonic()),
    )  # fmt: skip
    assert result.coverage.complete
    quarter = len(moments) // 4
    first, last = moments[quarter] - moments[0], moments[-1] - moments[-quarter - 1]
    print(f"{(moments[-1] - moments[0]) / len(moments) * 1000:.2f} ms per trial, {last / first:.2f}")
    assert last < 3 * first
    assert (moments[-1] - moments[0]) / len(moments) < 0.03  # other work may go on here


def test_more_workers_than_a_system_bears_are_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corral.pool", "--size", "1000"], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "worker pool size must be at most 512, not 1000" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_builder_that_fails_in_workers_only_ends_the_run_with_few_starts(tmp_path: Path) -> None:
    """Eight trials on a pool of four: not one start more than the first worker's tries."""
    marks = tmp_path / "marks"
    marks.mkdir()
    supervisor = os.getpid()

    def build() -> dict[str, Environment]:
        if os.getpid() != supervisor:
            (marks / str(os.getpid())).touch()
            raise ImportError("no chemistry in workers")
        return {"a": Bench("a", "process")}

    with pytest.raises(EnvStartError, match="no chemistry in workers"):
        bench(build, code(""), tmp_path, worker_pool=4, trials_per_task=8, max_concurrency=4)
    assert len(list(marks.iterdir())) <= 3
