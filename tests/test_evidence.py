"""What a record tells of the process in which its trial ran: for every attempt, whatever became of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest

from corral import Environment, TaskDefinition, build_environments
from corral.errors import FailureKind
from corral.pool import WorkerPoolConfig
from corral.report import stable_bytes
from tests.support.benches import bench, benches, code, sole
from tests.support.pool_waiting import remain


def refuse(env: Environment) -> NoReturn:
    _ = bytearray(60_000_000)
    raise RuntimeError("no chemistry today")


def build_no_start() -> dict[str, Environment]:
    task = TaskDefinition("a", "It cannot be set up.", [], lambda: 1.0, "text", setup_fn=refuse)
    return build_environments([task], concurrency="process")


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
def test_an_ordinary_end_has_its_exit_status_peak_and_seconds(fresh: Any, tmp_path: Path) -> None:
    """And no time passes for it but the process's own end, which its slot waits for in any case."""
    lines = (
        "import time\nhold = bytearray(50_000_000)\nt = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    )
    pool = WorkerPoolConfig(size=1, fresh=fresh)
    (attempt,) = sole(bench(benches(a="process"), code(lines), tmp_path, worker_pool=pool)).attempts
    assert (attempt.failure, attempt.exit_status) == (None, 0)
    assert attempt.peak_rss is not None
    assert attempt.peak_rss > 50_000_000
    assert attempt.cpu_seconds is not None
    assert 0.2 <= attempt.cpu_seconds < 3


def test_an_ordinary_answer_with_an_end_that_is_none(tmp_path: Path) -> None:
    """A library that crashes when its process ends spoils no score, and shows."""
    lines = "import ctypes, sys\nclass Late:\n    def flush(self): ctypes.string_at(0)\nsys.stdout = Late()"
    trial = sole(bench(benches(a="process"), code(lines, 1), tmp_path, worker_pool=1))
    assert (trial.score, trial.graded, trial.failure) == (1.0, True, None)
    assert [attempt.exit_status for attempt in trial.attempts] == [-signal.SIGSEGV]


@pytest.mark.parametrize(
    ("lines", "limits", "failure", "status"),
    [
        ("import time; time.sleep(60)", {"tool_timeout": 0.3}, "tool_timeout", -signal.SIGKILL),
        ("import time; time.sleep(60)", {"trial_timeout": 0.5}, "trial_timeout", -signal.SIGKILL),
        ("import sys; sys.exit(3)", {}, "tool", 0),
        ("import os; os._exit(7)", {}, "worker_died", 7),
    ],
)
def test_ends_by_force(lines: str, limits: dict[str, Any], failure: str, status: int, tmp_path: Path) -> None:
    trial = sole(bench(benches(a="process"), code(lines), tmp_path, retries=0, worker_pool=1, **limits))
    (attempt,) = trial.attempts
    assert (attempt.failure, attempt.exit_status) == (failure, status)
    assert attempt.peak_rss is not None
    assert attempt.peak_rss > 10**6


def test_a_trial_that_could_not_be_set_up(tmp_path: Path) -> None:
    trial = sole(bench(build_no_start, code(""), tmp_path, worker_pool=1))
    assert [attempt.failure for attempt in trial.attempts] == ["env_start"] * 2
    for attempt in trial.attempts:
        assert attempt.exit_status == 0
        assert attempt.peak_rss is not None
        assert attempt.peak_rss > 60_000_000


def test_processes_that_go_on_give_each_trial_its_own_seconds(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    lines = f"if env.state.trial_id == 'a#0': exec({burn!r})"
    pool = WorkerPoolConfig(size=1, reuse="worker")
    result = bench(benches(a="process"), code(lines), tmp_path, worker_pool=pool, trials_per_task=2)
    first, second = (trial.attempts[0] for trial in result.trials)
    assert (first.exit_status, second.exit_status) == (None, None)
    assert first.cpu_seconds is not None
    assert second.cpu_seconds is not None
    assert first.cpu_seconds >= 0.5 > second.cpu_seconds


def test_reports_with_and_without_processes_of_their_own_are_equal(tmp_path: Path) -> None:
    plain = bench(benches(a="process"), code("result = 1"), tmp_path / "plain", seed=1)
    pooled = bench(benches(a="process"), code("result = 1"), tmp_path / "pooled", seed=1, worker_pool=1)
    assert stable_bytes(plain) == stable_bytes(pooled)


def test_a_worker_lost_between_two_calls_costs_an_attempt_of_the_trial_and_is_no_fault_of_the_agent(
    tmp_path: Path,
) -> None:
    """The agent thinks while the worker, the process's parent, is killed: the next call says what happened."""
    killed: list[int] = []

    def policy(lab: Any, prompt: str) -> Any:
        pid = lab.call("python", code="import os; result = os.getppid()")
        if not killed:
            killed.append(pid)
            psutil.Process(pid).kill()
            assert remain([pid]) == []
        return lab.call("python", code="result = 1")

    trial = sole(bench(benches(a="process"), policy, tmp_path, worker_pool=1))
    assert [attempt.failure for attempt in trial.attempts] == [FailureKind.WORKER_DIED, None]
    assert (trial.score, trial.attempts[0].phase) == (1.0, "tool python")
