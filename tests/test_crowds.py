"""Many trials at once while some of them misbehave: the others are graded as if they were alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral import BenchmarkResult, Environment, tool
from corral.pool import WorkerPoolConfig
from tests.support.benches import Bench, bench, benches, code, sole
from tests.support.pool_waiting import remain
from tests.support.scripts import environment

DIE = "import os; os._exit(1)"
MANY: dict[str, Any] = {"max_concurrency": 4, "max_concurrency_per_task": 100}


def only(wanted: set[int], lines: str, otherwise: str = "result = 1") -> Any:
    """A policy that misbehaves in the trials of these indexes."""

    def policy(lab: Any, prompt: str) -> Any:
        index = int(str(lab.call("python", code="result = env.state.trial_id")).rpartition("#")[2])
        lab.call("python", code=lines if index in wanted else otherwise)
        return 1

    return policy


def outcomes(result: BenchmarkResult) -> Counter[str]:
    return Counter(str(trial.failure or "graded") for trial in result.trials)


def test_ten_crashes_in_a_row_and_then_good_ones(tmp_path: Path) -> None:
    result = bench(benches(a="process"), only(set(range(10)), DIE), tmp_path, trials_per_task=12, worker_pool=2, **MANY)
    assert outcomes(result) == {"worker_died": 10, "graded": 2}
    assert {len(trial.attempts) for trial in result.trials if trial.failure} == {2}
    assert result.pool.restarts == 0  # type: ignore[attr-defined]


def test_fifty_wait_and_one_kills_its_worker(tmp_path: Path) -> None:
    """The worker itself: whoever waits for its slot is charged nothing."""
    kill = "import os, time; os.kill(os.getppid(), 9); time.sleep(30)"
    result = bench(
        benches(a="process"), only({7}, kill), tmp_path, trials_per_task=50, worker_pool=2, retries=0, **MANY
    )
    assert outcomes(result) == {"worker_died": 1, "graded": 49}
    assert {len(trial.attempts) for trial in result.trials} == {1}
    (lost,) = [trial for trial in result.trials if trial.failure]
    assert "tool python of a#7" in str(lost.error_message)


def test_workers_are_renewed_under_a_backlog_with_crashes_in_it(tmp_path: Path) -> None:
    pool = WorkerPoolConfig(size=3, max_trials_per_worker=6)
    result = bench(
        benches(a="process"), only({3, 13, 23}, DIE), tmp_path, trials_per_task=27, worker_pool=pool, retries=0, **MANY
    )
    assert outcomes(result) == {"worker_died": 3, "graded": 24}
    workers = Counter(trial.worker.pid for trial in result.trials if trial.worker)
    assert max(workers.values()) == 6
    assert len(workers) >= 5


def test_one_that_fills_the_memory_beside_three_that_work(tmp_path: Path) -> None:
    fill = "import time\nhold = []\nwhile True: hold.append(bytearray(b'x' * 20_000_000)); time.sleep(0.01)"
    refuse = "try: bytearray(2 ** 62)\nexcept MemoryError: result = 'refused'"
    pool = WorkerPoolConfig(size=2, memory_limit="200MB")
    result = bench(benches(a="process"), only({1}, fill, refuse), tmp_path, trials_per_task=4, worker_pool=pool, **MANY)
    assert outcomes(result) == {"memory": 1, "graded": 3}
    (killed,) = [trial for trial in result.trials if trial.failure]
    assert "over the memory limit of 191 MiB" in str(killed.error_message)
    assert killed.attempts[0].peak_rss is not None
    assert killed.attempts[0].peak_rss > 190 * 2**20


def test_never_more_trial_processes_than_slots_even_while_some_are_killed(tmp_path: Path) -> None:
    """Each stamps its life: what is killed at its limit is gone before the next one begins; nor does it write on."""
    stamp = f"""
import os, time
path = {str(tmp_path / "lives")!r}
def note(what):
    with open(path, "a") as file: file.write(f"{{time.monotonic()}} {{os.getpid()}} {{what}}\\n")
note("lives")
if int(env.state.trial_id.rpartition("#")[2]) % 2:
    while True: note("lives")
"""
    result = bench(
        benches(a="process"), code(stamp, 1), tmp_path, trials_per_task=12, worker_pool=2, trial_timeout=0.4, **MANY
    )
    assert outcomes(result) == {"trial_timeout": 6, "graded": 6}
    size = (tmp_path / "lives").stat().st_size
    lives: dict[str, list[float]] = {}
    for line in (tmp_path / "lives").read_text().splitlines():
        moment, pid, _ = line.split()
        lives.setdefault(pid, []).append(float(moment))
    spans = sorted((min(moments), max(moments)) for moments in lives.values())
    assert max(sum(start <= moment <= end for start, end in spans) for moment, _ in spans) <= 2
    assert max(end - start for start, end in spans) < 3
    assert (tmp_path / "lives").stat().st_size == size


def test_a_catastrophic_regular_expression_costs_its_own_trial_only(tmp_path: Path) -> None:
    lines = "import re; re.match('(a+)+$', 'a' * 60 + 'b')"
    began = time.monotonic()
    result = bench(
        benches(a="process"), only({0, 3}, lines), tmp_path, trials_per_task=6, worker_pool=2, tool_timeout=1.0, **MANY
    )
    assert outcomes(result) == {"tool_timeout": 2, "graded": 4}
    assert time.monotonic() - began < 15


class OwnsTheSignals(Bench):
    """A library that answers SIGTERM by a polite exit, and does not hear of SIGINT."""

    def __init__(self, task_id: str) -> None:
        import signal

        super().__init__(task_id, "process")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_library_that_owns_the_signal_handlers_is_ended_all_the_same(tmp_path: Path) -> None:
    began = time.monotonic()
    trial = sole(
        bench(lambda: {"a": OwnsTheSignals("a")}, code("while True: pass"), tmp_path, worker_pool=1, trial_timeout=0.5)
    )
    assert trial.failure == "trial_timeout"
    assert time.monotonic() - began < 8


CHILDREN = {
    "multiprocessing": (
        "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: result = p.map(abs, [-1, -2])"
    ),
    "concurrent": (
        "import concurrent.futures as c\nwith c.ProcessPoolExecutor(2) as p: result = list(p.map(abs, [-1, -2]))"
    ),
}


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_tool_may_use_pools_of_its_own(kind: str, tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        return lab.call("python", code=CHILDREN[kind])

    result = bench(benches(a="process"), policy, tmp_path, trials_per_task=2, worker_pool=2, **MANY)
    assert [trial.state["submitted_answer"] for trial in result.trials] == [[1, 2], [1, 2]]
    assert remain(child.pid for child in psutil.Process().children(recursive=True)) == []


class Odd(Environment):
    """Its tools give what cannot be told as data."""

    concurrency = "process"

    def get_task_prompt(self) -> str:
        return "?"

    @tool
    def an_exception(self) -> Any:
        """Give an exception, as a value."""
        return KeyError("as a value")

    def score(self) -> float:
        return 1.0


def test_an_exception_given_as_a_value_concerns_its_own_trial(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        return lab.call("an_exception") if prompt == "?" else 1

    trial = sole(bench(lambda: {"a": Odd("a")}, policy, tmp_path, worker_pool=1))
    assert trial.failure == "serialization"
    assert "KeyError" in str(trial.error_message)


LAST_TRIAL_HANGS = """
import time
from corral import CorralRunner
from corral.agents import ScriptedAgent
from tests.support.benches import benches

def policy(lab, prompt):
    lab.call("python", code="while True: pass")

if __name__ == "__main__":
    runner = CorralRunner(benches(a="process", b="thread"), agent_factory=lambda c: ScriptedAgent(policy))
    result = runner.bench(worker_pool=1, trial_timeout=1.0, tool_timeout=5.0, max_concurrency=2)
    print(*(trial.failure.value for trial in result.trials), time.time())
"""


def test_the_process_ends_soon_after_the_last_record_though_a_tool_still_loops(tmp_path: Path) -> None:
    """One loops in a process, which is killed, and one in a thread, which cannot be."""
    (tmp_path / "script.py").write_text(LAST_TRIAL_HANGS)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=40,
        check=False,
    )  # fmt: skip
    ended = time.time()
    assert done.returncode == 0, done.stderr
    *failures, printed = done.stdout.split()
    assert failures == ["trial_timeout", "trial_timeout"]
    assert ended - float(printed) < 5
