"""What a trial in fresh process state costs over one in a process that served others, and what a crash costs.

A trial here is opened, asked for its prompt, and closed, on a pool of one slot that does nothing else. The subjects
take turns. "by fork" and "by spawn" come while a process made ahead of time waits; "at once" right after the trial
before, when it has only just been begun. CPU is of the supervisor, the worker and its trial processes together. Before
a crash there is time for a process to get ready.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import anyio
import psutil

from benchmarks.environments import build_wetlab, build_work
from benchmarks.measuring import Timings, count, cpu_seconds
from benchmarks.pools import Served, serving
from benchmarks.report import Report, progress
from benchmarks.start import WARM, after_kill

REUSED_AT_ONCE, FORK_AT_ONCE, SPAWN_AT_ONCE = "reused, at once", "by fork, at once", "by spawn, at once"
MODES: dict[str, dict[str, Any]] = {
    "reused": {"reuse": "worker"},
    REUSED_AT_ONCE: {"reuse": "worker"},
    "by fork": {"fresh": "fork"},
    FORK_AT_ONCE: {"fresh": "fork"},
    "by spawn": {"fresh": "spawn"},
    SPAWN_AT_ONCE: {"fresh": "spawn"},
}
FORK_WARM = 0.1
"""Seconds in which a fork gets ready, even where the machine has something else to do at first."""


ENVIRONMENTS: dict[str, Callable[[], Mapping[str, Any]]] = {"wetlab": build_wetlab, "light": build_work}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--rounds", type=count, default=10, help="trials by spawn; of the others, TRIALS in each round")
    parser.add_argument("--trials", type=count, default=20, help="trials of a round")
    parser.add_argument("--kills", type=int, default=10, help="crashes of each kind")


def run(options: argparse.Namespace) -> Report:
    report = Report("fresh", vars(options))
    for name in options.environments:
        if is_installed(name):
            anyio.run(measure, report, name, options)
        else:
            report.table(f"A trial in fresh process state, {name}", {"trial": "text"}, [{"trial": "not installed"}])
    return report


def is_installed(name: str) -> bool:
    """Whether an environment's engine is there."""
    return name != "wetlab" or find_spec("phreeqc") is not None


@dataclass
class Subject:
    """One way to have trials."""

    served: Served
    task_id: str
    opened: Timings = field(default_factory=Timings)
    """Until the first answer."""
    whole: Timings = field(default_factory=Timings)
    cpu: float = 0.0

    async def trials(self, number: int, *, after: int = 0, pause: float = 0) -> None:
        """One round; ``after`` others, which do not count. ``pause``: seconds before each."""
        for _ in range(after):
            await self._trial()
        before = self._cpu()
        times = []
        for _ in range(number):
            await anyio.sleep(pause)
            times.append(await self._trial())
        self.opened.rounds.append([opened for opened, _ in times])
        self.whole.rounds.append([whole for _, whole in times])
        self.cpu += self._cpu() - before

    async def _trial(self) -> tuple[float, float]:
        began = time.perf_counter()
        trial = await self.served.open(self.task_id)
        await trial.prompt()
        opened = time.perf_counter() - began
        await trial.close()
        return opened, time.perf_counter() - began

    def _cpu(self) -> float:
        times = psutil.Process(self.served.pids()[0]).cpu_times()
        return cpu_seconds() + times.user + times.system + times.children_user + times.children_system


async def measure(report: Report, name: str, options: argparse.Namespace) -> None:
    """The tables of one benchmark's environments."""
    build = ENVIRONMENTS[name]
    async with AsyncExitStack() as stack:
        subjects: dict[str, Subject] = {}
        for mode, settings in MODES.items():
            progress(f"{name}: {mode}")
            served = await stack.enter_async_context(serving(build, 1, **settings))
            subjects[mode] = Subject(served, next(iter(served.pool.catalogue)))
        starts = subjects["by spawn"].served.pool.statistics().workers[0].start_s
        warm = max(WARM, 3 * starts)
        for _ in range(options.rounds):
            for mode, subject in subjects.items():
                if mode.startswith("by spawn"):
                    await anyio.sleep(warm if mode == "by spawn" else 0)
                    await subject.trials(1, after=int(mode == SPAWN_AT_ONCE))
                else:
                    await subject.trials(options.trials, pause=0 if mode.endswith("at once") else FORK_WARM)
        _show(report, name, subjects)
        if options.kills:
            progress(f"{name}: crashes")
            await _crash(report, name, subjects, options.kills, warm)


def _show(report: Report, name: str, subjects: dict[str, Subject]) -> None:
    rows = [
        {
            "trial": mode,
            "first answer": subject.opened.median,
            "whole": subject.whole.median,
            "p99": subject.whole.p99,
            "over reused": subject.whole.median - _like(subjects, mode).whole.median,
            "CPU": subject.cpu / len(subject.whole.all),
        }
        for mode, subject in subjects.items()
    ]
    columns = {"trial": "text", "first answer": "s", "whole": "s", "p99": "s", "over reused": "s", "CPU": "s"}
    report.table(f"A trial in fresh process state, {name}", columns, rows)
    for mode in ("by fork", FORK_AT_ONCE):
        over = subjects[mode].whole.median - _like(subjects, mode).whole.median
        report.target(f"a fresh trial {mode} over a reused one, {name}", over, 0.005, "s")


def _like(subjects: dict[str, Subject], mode: str) -> Subject:
    """The reused process that came after as long a pause: a processor that was idle finds its caches empty."""
    return subjects[REUSED_AT_ONCE if mode.endswith("at once") else "reused"]


async def _crash(report: Report, name: str, subjects: dict[str, Subject], kills: int, warm: float) -> None:
    rows = []
    for mode in ("by fork", "by spawn"):
        subject = subjects[mode]
        pause = warm if mode == "by spawn" else FORK_WARM
        taken = [await after_kill(subject.served, "trial process", subject.task_id, pause) for _ in range(kills)]
        crash = Timings([taken])
        rows.append({"fresh": mode, "median": crash.median, "longest": max(taken)})
        if mode == "by fork":
            report.target(f"from a crash until the slot serves again, by fork, {name}", crash.median, 0.01, "s")
    title = f"From a crash in a trial until the next trial answers, {name} ({kills} crashes)"
    report.table(title, {"fresh": "text", "median": "s", "longest": "s"}, rows)
