"""How long a pool takes until its first process, and all of them, do what they are for; and again after a kill.

In each subject's processes the same happens: each connects to a socket of this program and stays there until the last
one has. So "all" means that every process of the pool has begun a task, not that one of them did all the tasks.
Corral's are trials, opened and in a tool call. The bare interpreters import anyio and cloudpickle and connect.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from anyio import to_process

from benchmarks.callers import SPAWN
from benchmarks.environments import build_work
from benchmarks.measuring import Timings, count, ratio
from benchmarks.meeting import Meeting, meeting
from benchmarks.pools import Served, serving
from benchmarks.report import Report, progress
from benchmarks.work import meet, nothing
from corral.errors import TrialError

BARE = (
    "import anyio, cloudpickle, socket, sys; sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1]); "
    "sock.send(b'.'); sock.recv(1)"
)
CORRAL, INTERPRETERS, LOKY = "Corral", "bare interpreters", "loky"
WARM = 1.0
"""Seconds in which the process of the next trial gets ready."""
COLUMNS = {
    "subject": "text", "first": "s", "all": "s", "spread": "%", "/ interpreters": "x", "/ loky": "x", "CPU": "s",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", nargs="+", type=count, default=[1, 8, 32], help="processes of a pool")
    parser.add_argument("--rounds", type=count, default=5, help="of each subject at each size; 2 above 16 processes")
    parser.add_argument("--kills", type=int, default=10, help="kills of each kind")


def run(options: argparse.Namespace) -> Report:
    report = Report("start", vars(options))
    for size in options.sizes:
        rounds = min(2, options.rounds) if size > 16 else options.rounds
        measure_starts(report, size, rounds)
    if options.kills:
        measure_kills(report, options.kills)
    return report


# ---- who comes ----


def interpreters(held: Meeting) -> None:
    """The floor: so many new interpreters at once."""
    started = [subprocess.Popen([sys.executable, "-c", BARE, held.path]) for _ in range(held.size)]
    for process in started:
        process.wait()


def executor(make: Callable[[int], Executor], held: Meeting) -> None:
    with make(held.size) as pool:
        for task in [pool.submit(meet, held.path) for _ in range(held.size)]:
            task.result()


def stdlib_executor(size: int) -> Executor:
    return ProcessPoolExecutor(size, mp_context=SPAWN)


def loky_executor(size: int) -> Executor:
    from loky import ProcessPoolExecutor as LokyExecutor

    made: Executor = LokyExecutor(size, timeout=None)
    return made


def bare_to_process(held: Meeting) -> None:
    # Python 3.11's asyncio may lose the exit status of a process to another waiter, and says so: it means nothing here.
    logging.getLogger("asyncio").setLevel(logging.ERROR)

    async def main() -> None:
        limiter = anyio.CapacityLimiter(held.size)
        async with anyio.create_task_group() as tasks:
            for _ in range(held.size):
                tasks.start_soon(partial(to_process.run_sync, meet, held.path, limiter=limiter))

    anyio.run(main)


def corral(settings: dict[str, Any], held: Meeting) -> None:
    """A trial on each slot, opened and in a tool call."""

    async def trial(served: Served) -> None:
        opened = await served.open("work")
        await opened.call("meet", {"path": held.path})
        await opened.close()

    async def main() -> None:
        async with serving(build_work, held.size, **settings) as served:
            async with anyio.create_task_group() as tasks:
                for _ in range(held.size):
                    tasks.start_soon(trial, served)

    anyio.run(main)


SUBJECTS: dict[str, Callable[[Meeting], None]] = {
    CORRAL: partial(corral, {}),
    "Corral, fresh interpreters": partial(corral, {"fresh": "spawn"}),
    INTERPRETERS: interpreters,
    "anyio.to_process": bare_to_process,
    "ProcessPoolExecutor": partial(executor, stdlib_executor),
    LOKY: partial(executor, loky_executor),
}


def measure_starts(report: Report, size: int, rounds: int) -> None:
    """One table: pools of one size, started in turn."""
    first = {name: Timings() for name in SUBJECTS}
    last = {name: Timings() for name in SUBJECTS}
    cpu = dict.fromkeys(SUBJECTS, 0.0)
    missing = set()
    for _ in range(rounds):
        for name, subject in SUBJECTS.items():
            if name in missing or not _is_installed(name):
                missing.add(name)
                continue
            progress(f"{size} processes: {name}")
            before = _cpu_of_all()
            with meeting(size) as held:
                subject(held)
            cpu[name] += _cpu_of_all() - before
            first[name].rounds.append([held.times[0]])
            last[name].rounds.append([held.times[-1]])
    there = [name for name in SUBJECTS if name not in missing]
    rows: list[dict[str, Any]] = [
        {
            "subject": name,
            "first": first[name].median,
            "all": last[name].median,
            "spread": last[name].spread,
            "/ interpreters": ratio(last[name], last[INTERPRETERS]),
            "/ loky": None if LOKY in missing else ratio(last[name], last[LOKY]),
            "CPU": cpu[name] / rounds,
        }
        for name in there
    ]
    rows += [{"subject": f"{name}: not installed"} for name in missing]
    title = f"From nothing to a task in each of {size} processes ({rounds} rounds)"
    report.table(title, COLUMNS, rows, "CPU: of this program and of the processes, until all have ended")
    if size == 8:
        what = "a pool of 8 ready"
        report.target(f"{what}, to eight bare interpreters", ratio(last[CORRAL], last[INTERPRETERS]), 1.2)
        report.target(f"{what}, to loky", None if LOKY in missing else ratio(last[CORRAL], last[LOKY]), 1.0)


def _is_installed(name: str) -> bool:
    if name != LOKY:
        return True
    with suppress(ImportError):
        import loky  # noqa: F401

        return True
    return False


def _cpu_of_all() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# ---- after a kill ----


async def after_kill(served: Served, victim: str, task_id: str, warm: float = WARM) -> float:
    """Seconds from a kill in the middle of a trial until the next trial has given its prompt.

    ``warm``: seconds before the kill, in which the process of the next trial gets ready.
    """
    trial = await served.open(task_id)
    await trial.prompt()
    await anyio.sleep(warm)
    worker, process = served.pids()
    began = time.perf_counter()
    os.kill(worker if victim == "worker" or process is None else process, signal.SIGKILL)
    with suppress(TrialError):
        while True:  # a worker takes its trial process along, a moment later
            await trial.prompt()
    with suppress(TrialError):
        await trial.close()
    again = await served.open(task_id)
    await again.prompt()
    taken = time.perf_counter() - began
    await again.close()
    return taken


async def kills_of_corral(fresh: str, victim: str, number: int) -> list[float]:
    async with serving(build_work, 1, fresh=fresh) as served:
        return [await after_kill(served, victim, "work") for _ in range(number)]


def kills_of_executor(make: Callable[[int], Executor], number: int) -> list[float]:
    """It is broken then: a new one takes its place."""
    taken = []
    for _ in range(number):
        pool = make(1)
        pid = pool.submit(os.getpid).result()
        began = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        with suppress(Exception):
            pool.submit(nothing).result()
        pool.shutdown()
        with make(1) as again:
            again.submit(nothing).result()
            taken.append(time.perf_counter() - began)
    return taken


def measure_kills(report: Report, number: int) -> None:
    """One table: until the place serves again."""
    rows = []
    for victim in ("trial process", "worker"):
        for fresh in ("fork", "spawn"):
            progress(f"kills of a {victim}, {fresh}")
            taken = Timings([anyio.run(kills_of_corral, fresh, victim, number)])
            rows.append({"killed": f"Corral's {victim}, {fresh}", "median": taken.median, "longest": max(taken.all)})
            if victim == "trial process" and fresh == "fork":
                report.target("until a slot serves again after its trial process was killed, fork", taken.median,
                              0.01, "s")  # fmt: skip
    peers = {"the process of a ProcessPoolExecutor": stdlib_executor, "the process of loky": loky_executor}
    for name, make in peers.items():
        if make is loky_executor and not _is_installed(LOKY):
            continue
        taken = Timings([kills_of_executor(make, number)])
        rows.append({"killed": name, "median": taken.median, "longest": max(taken.all)})
    title = f"From a kill until the next task is done ({number} kills of each)"
    note = "a broken executor is replaced by a new one"
    report.table(title, {"killed": "text", "median": "s", "longest": "s"}, rows, note)
