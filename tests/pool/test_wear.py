"""What many runs and many deaths leave in the supervisor: nothing that grows."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from corral.pool import WorkerPoolConfig
from tests.support.benches import bench, benches, code, runner

OWN = psutil.Process()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def zombies() -> int:
    return sum(child.status() == psutil.STATUS_ZOMBIE for child in OWN.children())


def measured() -> tuple[int, int, int]:
    """Open descriptors, threads, and resident memory in MB."""
    gc.collect()
    return descriptors(), threading.active_count(), OWN.memory_info().rss // 10**6


class Watch:
    """Looks at this process's zombies all the time; for how long the oldest was there, and how many at most."""

    def __init__(self) -> None:
        self.most = 0
        self.oldest = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        since: dict[int, float] = {}
        while not self._stop.wait(0.05):
            dead = {child.pid for child in _children() if _is_zombie(child)}
            since = {pid: since.get(pid, time.monotonic()) for pid in dead}
            self.most = max(self.most, len(dead))
            self.oldest = max([self.oldest, *(time.monotonic() - began for began in since.values())])


def _children() -> list[psutil.Process]:
    try:
        return OWN.children(recursive=True)
    except psutil.Error:
        return []


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def runs(count: int, run: Callable[[Path], Any], folder: Path) -> list[tuple[int, int, int]]:
    measures = []
    for number in range(count):
        run(folder / str(number))
        measures.append(measured())
    return measures


@pytest.mark.slow
@pytest.mark.local
@pytest.mark.timeout(200)
def test_sixty_runs_in_one_process(tmp_path: Path) -> None:
    """On a pool each, with a trial that dies in every one of them, and half a megabyte of results."""

    def policy(lab: Any, prompt: str) -> Any:
        if prompt == "task b":
            lab.call("python", code="import os; os.kill(os.getpid(), 9)")
        return lab.call("python", code="result = 'x' * 500_000") and 1

    def run(folder: Path) -> None:
        result = bench(benches(a="process", b="process", c="thread"), policy, folder, worker_pool=1, retries=0)
        assert result.coverage.not_graded == {"worker_died": 1}

    measures = runs(60, run, tmp_path)
    opened, threads, memory = zip(*measures, strict=True)
    # Medians: a thread that waits for a child's end, or a socket that just closes, may be met at any one moment.
    assert median(opened[-20:]) <= median(opened[5:25]) + 1, opened
    assert median(threads[-20:]) <= median(threads[5:25]) + 2, threads
    assert median(memory[-20:]) - median(memory[10:30]) < 15, memory
    assert zombies() == 0
    print("after 5, 30 and 60 runs:", measures[4], measures[29], measures[59])


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_sixty_lost_workers_in_one_run(tmp_path: Path) -> None:
    """The worker itself, not only the trial process, in each of 60 trials: at no time more than two zombies."""
    kill = "import os; os.kill(os.getppid(), 9); import time; time.sleep(10)"
    seen: list[tuple[int, int, int]] = []
    with Watch() as watch:
        result = runner(benches(a="process"), code(kill), tmp_path).bench(
            trials_per_task=60, max_concurrency=2, max_concurrency_per_task=2, worker_pool=2, retries=0,
            progress=lambda event: seen.append(measured()),
        )  # fmt: skip
    assert result.coverage.not_graded == {"worker_died": 60}
    assert result.pool.restarts == 60  # type: ignore[attr-defined]
    assert watch.most <= 2
    assert watch.oldest < 2
    opened, threads, memory = zip(*seen, strict=True)
    assert median(opened[-20:]) <= median(opened[5:25]) + 3, opened
    assert median(threads[-20:]) <= median(threads[5:25]) + 2, threads
    assert median(memory[-20:]) - median(memory[5:25]) < 15, memory
    print("after 5, 30 and 60 deaths:", seen[4], seen[29], seen[59], "zombies at most", watch.most)


@pytest.mark.slow
def test_thirty_trials_that_time_out_each_on_a_worker_of_its_own(tmp_path: Path) -> None:
    pool = WorkerPoolConfig(size=2, max_trials_per_worker=1)
    with Watch() as watch:
        result = bench(
            benches(a="process"), code("while True: pass"), tmp_path, trials_per_task=30, trial_timeout=0.3,
            max_concurrency=2, max_concurrency_per_task=2, worker_pool=pool, retries=0,
        )  # fmt: skip
    assert {str(trial.failure) for trial in result.trials} == {"trial_timeout"}
    assert watch.oldest < 2
