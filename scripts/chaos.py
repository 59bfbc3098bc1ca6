#!/usr/bin/env python3
"""Runs a benchmark while its processes are killed at random, and says what was lost.

    .venv/bin/python scripts/chaos.py --trials 1000 --size 4 --every 0.2 --seed 1
    .venv/bin/python scripts/chaos.py --supervisor --points 50 --seed 1

The first form sends SIGKILL to one process below the supervisor every EVERY seconds: a worker that starts or serves, a
trial process at any moment, a new interpreter. The second kills the supervisor itself, POINTS times, each time at a
moment drawn from the seed, and lets the same session go on. Both compare with a run that nothing disturbed.

Every trial draws random numbers in each of a few tool calls, and its score is made of all of them: state that is lost,
shared or used twice shows as a wrong score. Exit status: 0 nothing was lost; 1 something was; 2 bad usage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from corral import BenchmarkResult, CorralRunner, Environment, tool
from corral.agents import ScriptedAgent
from corral.pool import WorkerPoolConfig
from corral.report import stable_bytes

TASKS, STEPS = 10, 3
MARK = "CORRAL_CHAOS"
"""A variable that all processes of this program inherit: so an orphan, which has no parent here, is found."""
PATIENCE = 5.0
"""Seconds that a process may live on after its supervisor."""
RETRIES = 100
"""A kill is nothing that a trial did: it may be attempted until it gets through."""


class Errand(Environment):
    """Work in steps. Its score is made of everything that was drawn on the way, from the process's own generators."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id, concurrency="process")
        self.drawn: list[int] = []

    def get_task_prompt(self) -> str:
        return f"Run the errand {self.task_id}."

    @tool
    def step(self) -> int:
        """One step: some work, one number drawn."""
        time.sleep(float(os.environ.get("CORRAL_CHAOS_WORK", "0")))
        self.drawn.append(random.randrange(10**6))
        with (self.current_work_dir / "drawn.txt").open("a") as file:
            file.write(f"{self.drawn[-1]}\n")
        return self.drawn[-1]

    def score(self) -> float:
        written = [int(line) for line in (self.current_work_dir / "drawn.txt").read_text().split()]
        good = written == self.drawn and len(written) == STEPS and self.state.submitted_answer == written
        return sum(written) / (STEPS * 10**6) if good else -1.0


def build() -> dict[str, Environment]:
    return {f"errand-{number}": Errand(f"errand-{number}") for number in range(TASKS)}


def run_errand(lab: Any, prompt: str) -> list[int]:
    return [lab.call("step") for _ in range(STEPS)]


def bench(folder: Path, options: argparse.Namespace, *, pool: bool, work: float) -> BenchmarkResult:
    """One session of ``folder``: begun, or gone on with. ``work``: seconds of each step."""
    os.environ["CORRAL_CHAOS_WORK"] = str(work)
    runner = CorralRunner(build, agent_factory=lambda context: ScriptedAgent(run_errand), checkpoint_dir=folder)
    at_once = options.size if pool else 1
    return runner.bench(
        trials_per_task=max(1, options.trials // TASKS), max_concurrency=at_once, max_concurrency_per_task=at_once,
        worker_pool=WorkerPoolConfig(size=options.size, fresh=options.fresh) if pool else False, seed=options.seed,
        session_id="chaos", retries=RETRIES, progress=options.progress, retry_errors=True,
    )  # fmt: skip


# ---- who is there ----


def alive(mark: str) -> list[psutil.Process]:
    """The processes that inherited ``mark`` and run, this one apart."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            runs = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if runs and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def orphans(mark: str) -> tuple[int, float]:
    """How many are left after PATIENCE, and the seconds until the last one was gone."""
    began = time.monotonic()
    while (left := alive(mark)) and time.monotonic() - began < PATIENCE:
        time.sleep(0.02)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return len(left), time.monotonic() - began


def workers() -> list[psutil.Process]:
    """The pool's workers: below this process, each leads a session, as does the nursery, of which they are forks.

    A nursery without a worker counts as one: it may be hit too.
    """
    below = psutil.Process().children(recursive=True)
    leaders = {process.pid: process for process in below if os.getsid(process.pid) == process.pid}
    nurseries = {process.ppid() for process in leaders.values()}
    return [process for pid, process in leaders.items() if pid not in nurseries]


class Killer:
    """A thread that kills the worker of one random place in the pool, or its trial process, again and again."""

    def __init__(self, size: int, every: float, seed: int, begun: Path) -> None:
        """``begun``: a file that is there when the environments are known to load."""
        self.kills: Counter[str] = Counter()
        self._begun = begun
        self._size = size
        self._every = every
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._begun.exists() and not self._stop.wait(0.02):
            pass  # a first worker that is killed again and again says that there can be no pool at all
        while not self._stop.wait(self._every):
            # A place is drawn, not a process: or, with few workers left, each kill would hit one that only just starts.
            place = self._dice.randrange(self._size)
            trials_too = self._dice.random() < 0.5
            with suppress(psutil.Error, ProcessLookupError, IndexError):
                victim = sorted(workers(), key=lambda process: process.pid)[place]
                below = victim.children() if trials_too else []
                (below[0] if below else victim).kill()
                self.kills["trial processes" if below else "workers"] += 1


# ---- what was lost ----


def recorded(folder: Path) -> Counter[str]:
    """How often each trial stands in the journal."""
    lines = (folder / "chaos" / "journal.jsonl").read_text("utf-8").splitlines()
    trials = [entry for entry in map(json.loads, lines) if entry["type"] == "trial"]
    return Counter(f"{entry['task_id']}#{entry['trial_index']}" for entry in trials)


def compare(result: BenchmarkResult, reference: BenchmarkResult, folder: Path) -> dict[str, Any]:
    """Lost, doubled and wrong, trial by trial."""
    wanted = {trial.trial_id: trial.score for trial in reference.trials}
    given = {trial.trial_id: trial for trial in result.trials}
    graded = {key: trial.score for key, trial in given.items() if trial.graded and not trial.failure}
    return {
        "trials planned": len(wanted),
        "records lost": len(wanted.keys() - graded.keys()),
        "records doubled": sum(times > 1 for times in recorded(folder).values()),
        "wrong scores": sum(score != wanted[key] for key, score in graded.items()),
    }


def kill_workers(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The first form."""
    reference = bench(folder / "undisturbed", options, pool=False, work=0)
    killer = Killer(options.size, options.every, options.seed, folder / "disturbed" / "chaos" / "journal.jsonl")
    began = time.monotonic()
    with killer.at_work():
        result = bench(folder / "disturbed", options, pool=True, work=options.work)
    took = time.monotonic() - began
    attempts = [attempt for trial in result.trials for attempt in trial.attempts]
    lost = [attempt for attempt in attempts if attempt.failure]
    states = Counter(worker.state for worker in result.pool.workers)  # type: ignore[attr-defined]
    left, _ = orphans(os.environ[MARK])
    return (
        compare(result, reference, folder / "disturbed")
        | {
            "orphans": left,
            "slots given up": states["failed"],
            "kills": dict(killer.kills),
            "workers restarted": result.pool.restarts,  # type: ignore[attr-defined]
            "attempts lost": len(lost),
            "by kind": dict(Counter(str(attempt.failure) for attempt in lost)),
            "other than worker_died": [attempt.message for attempt in lost if attempt.failure != "worker_died"][:5],
            "most attempts of one trial": max(len(trial.attempts) for trial in result.trials),
            "time lost (slot seconds)": round(sum(attempt.seconds for attempt in lost), 1),
            "wall time (s)": round(took, 1),
        }
    )


def kill_supervisor(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The second form: sessions one after the other, until the supervisor was killed often enough."""
    began = time.monotonic()
    reference = bench(folder / "undisturbed", options, pool=True, work=options.work)
    undisturbed = time.monotonic() - began
    dice, totals, sums = random.Random(options.seed), Counter[str](), Counter[str]()
    spent = slowest = 0.0
    while totals["kills"] < options.points:
        totals["sessions"] += 1
        session = folder / f"session-{totals['sessions']}"
        killed = True
        while killed:
            delay = dice.uniform(0.05, options.within) if totals["kills"] < options.points else None
            mark, began = uuid.uuid4().hex, time.monotonic()
            killed = run_and_kill(session, options, mark, delay)
            spent += time.monotonic() - began
            totals["kills"] += killed
            left, seconds = orphans(mark)
            sums["orphans"] += left
            slowest = max(slowest, seconds)
        result = bench(session, options, pool=False, work=0)  # all is recorded: it only reads
        sums.update({name: n for name, n in compare(result, reference, session).items() if name != "trials planned"})
        sums["reports that differ"] += stable_bytes(result) != stable_bytes(reference)
    return {
        "trials planned": sum(1 for _ in reference.trials) * totals["sessions"],
        **{name: sums[name] for name in ("records lost", "records doubled", "wrong scores", "orphans")},
        "reports that differ": sums["reports that differ"],
        **totals,
        "longest life after the supervisor (s)": round(slowest, 2),
        "time lost (s)": round(spent - undisturbed * totals["sessions"], 1),
    }


def run_and_kill(session: Path, options: argparse.Namespace, mark: str, delay: float | None) -> bool:
    """Run the session in a process of its own, to its end or until it is killed. Whether it was killed."""
    given = [f"--{name}={getattr(options, name)}" for name in ("trials", "size", "seed", "work", "fresh")]
    command = [sys.executable, str(Path(__file__).resolve()), f"--session={session}", *given]
    with subprocess.Popen(command, env={**os.environ, MARK: mark}, stderr=subprocess.DEVNULL) as child:
        try:
            return child.wait(delay) != 0
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            return child.wait() == -signal.SIGKILL


MUST_BE_ZERO = ("records lost", "records doubled", "wrong scores", "orphans", "slots given up", "reports that differ")


def main() -> int:
    options = arguments()
    if options.session is not None:
        bench(options.session, options, pool=True, work=options.work)
        return 0
    os.environ[MARK] = uuid.uuid4().hex
    form: Callable[..., dict[str, Any]] = kill_supervisor if options.supervisor else kill_workers
    with tempfile.TemporaryDirectory(prefix="corral-chaos-") as folder:
        figures = form(options, Path(folder))
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:40} {value}")
    return int(any(figures.get(name) for name in MUST_BE_ZERO))


def arguments() -> argparse.Namespace:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parse.add_argument
    add("--trials", type=int, help=f"trials in all, in {TASKS} tasks (1000; with --supervisor 200)")
    add("--size", type=int, default=4, help="workers (4)")
    add("--every", type=float, default=0.2, help="seconds between two kills (0.2)")
    add("--seed", type=int, default=1, help="of the trials and of the kills (1)")
    add("--work", type=float, default=0.03, help=f"seconds of each of a trial's {STEPS} steps (0.03)")
    add("--fresh", choices=("auto", "fork", "spawn"), default="auto", help="how trial processes are made")
    add("--supervisor", action="store_true", help="kill the supervisor instead, and resume")
    add("--points", type=int, default=50, help="how often the supervisor is killed (50)")
    add("--within", type=float, default=2.5, help="seconds within which each kill comes (2.5)")
    add("--progress", action="store_true", help="show progress")
    add("--json", action="store_true", help="print the figures as JSON")
    add("--session", type=Path, help=argparse.SUPPRESS)
    options = parse.parse_args()
    options.trials = options.trials or (200 if options.supervisor else 1000)
    if min(options.trials, options.size, options.points, options.every, options.within) <= 0:
        parse.error("numbers must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
