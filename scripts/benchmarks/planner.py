"""What admission and recording cost by themselves, by the number of trials: no processes, no agents.

The planner: up to a million trials that wait, of up to 10,000 tasks, under limits of every kind (trials in all, slots,
per task, per model); durations are simulated. Measured is the CPU time of a release and of the admissions that follow
it, by the number that wait meanwhile, and of letting a trial wait. The collector: results handed over by many tasks at
once, written to a journal that is on the disk before they go on.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import statistics
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from benchmarks.measuring import count, cpu_seconds
from benchmarks.report import Report, progress
from corral.collector import Collector
from corral.header import Header
from corral.journal import Journal
from corral.planner import GLOBAL, SLOT, Planner, Request, model_resource, task_resource
from corral.scratch import scratch_folder
from corral.types import TaskTrialResult

MOST_TASKS = 10_000
MODELS = {"one": 8, "two": 16, "three": 24}
AT_ONCE = 64
TURN = 2_000
"""Releases: some ten milliseconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--waiting", nargs="+", type=count, default=[1_000, 10_000, 100_000, 1_000_000], help="trials that wait")
    add("--releases", type=count, default=20_000, help="releases that are measured, at each number")
    add("--records", nargs="+", type=count, default=[1_000, 10_000, 100_000], help="results that are recorded")
    add("--rounds", type=count, default=3)


def run(options: argparse.Namespace) -> Report:
    report = Report("planner", vars(options))
    measure_planner(report, options)
    measure_collector(report, options)
    return report


# ---- the planner ----


def requests(number: int, dice: random.Random) -> list[Request]:
    """Trials in the order in which a session plans them: each task's turn comes once a round.

    As in a session, the trials of a task by one model share their demands.
    """
    tasks = min(number, MOST_TASKS)
    needs = [[demands(task, model) for model in MODELS] for task in range(tasks)]
    return [Request(index, needs[index % tasks][dice.randrange(3)], index) for index in range(number)]


@cache
def demands(task: int, model: str) -> dict[str, int]:
    """What a trial needs. Every other task runs on the pool. Kept, as a session keeps it."""
    slot = {SLOT: 1} if task % 2 else {}
    return {GLOBAL: 1, **slot, model_resource(model): 1, task_resource(f"task-{task}"): 1}


class Simulation:
    """A session of so many trials with its clock simulated: filled anew each time that half of them have ended."""

    def __init__(self, number: int, seed: int) -> None:
        self._number = number
        self._dice = random.Random(seed)
        self._planner = Planner({})
        self._running: list[tuple[float, Any]] = []
        """When trials end, and which."""
        self._left = 0
        """How many more may end before it is filled anew: so that many still wait at the end."""
        self.added: list[float] = []
        """The CPU time that each trial took to be added, by filling."""

    def turn(self, releases: int) -> dict[str, float]:
        """The CPU time and the looks of one of so many releases, with the admissions that follow.

        What the simulation itself takes is in it, and the same at any number: one look at the clock for each release
        would cost as much as a release does.
        """
        ended, used, looks = 0, 0.0, 0
        while ended < releases:
            if self._left <= 0:
                self._fill()
            before = self._planner.evaluations
            now = min(releases - ended, self._left)
            used += self._run(now)
            ended, self._left = ended + now, self._left - now
            looks += self._planner.evaluations - before
        return {"admission": used / ended, "looks": looks / ended}

    def _fill(self) -> None:
        tasks = min(self._number, MOST_TASKS)
        limits = {GLOBAL: AT_ONCE, SLOT: 16} | {model_resource(name): limit for name, limit in MODELS.items()}
        limits |= {task_resource(f"task-{task}"): 2 for task in range(tasks)}
        waiting, self._planner = requests(self._number, self._dice), Planner(limits)
        self._left = max(1, self._number // 2)
        gc.collect()
        began = cpu_seconds()
        for request in waiting:
            self._planner.add(request)
        self.added.append((cpu_seconds() - began) / self._number)
        self._running = [(self._dice.expovariate(1.0), key) for key in self._planner.admit()]
        heapq.heapify(self._running)

    def _run(self, releases: int) -> float:
        planner, running, dice = self._planner, self._running, self._dice
        began = cpu_seconds()
        for _ in range(releases):
            now, key = heapq.heappop(running)
            planner.release(key)
            for started in planner.admit():
                heapq.heappush(running, (now + dice.expovariate(1.0), started))
        return cpu_seconds() - began


def measure_planner(report: Report, options: argparse.Namespace) -> None:
    """One table. All numbers take turns, each too short for the machine to change its pace in between."""
    turns: dict[int, list[dict[str, float]]] = {number: [] for number in options.waiting}
    added: dict[int, list[float]] = {number: [] for number in options.waiting}
    for index in range(options.rounds):
        progress(f"round {index + 1} of {options.rounds}")
        simulations = {number: Simulation(number, index) for number in options.waiting}
        for _ in range(max(1, options.releases // TURN)):
            for number, simulation in simulations.items():
                turns[number].append(simulation.turn(min(TURN, options.releases)))
        for number, simulation in simulations.items():
            added[number] += simulation.added
    rows: list[dict[str, Any]] = []
    for number, found in turns.items():
        figures = {name: statistics.median(each[name] for each in found) for name in found[0]}
        rows.append({"waiting": number, "tasks": min(number, MOST_TASKS), **figures,
                     "added": statistics.median(added[number])})  # fmt: skip
    columns = {"waiting": "n", "tasks": "n", "admission": "s", "looks": "n", "added": "s"}
    title = f"The planner, {AT_ONCE} trials at once ({options.rounds} rounds of {options.releases} releases)"
    report.table(
        title, columns, rows,
        "admission: a release and the admissions that follow; looks: requests looked at for it",
    )  # fmt: skip
    costs = [row["admission"] for row in rows]
    what = f"a release and its admissions, from {options.waiting[0]:,} to {options.waiting[-1]:,} waiting"
    report.target(f"{what}, dearest to cheapest", max(costs) / min(costs), 1.2)


# ---- the collector ----


async def record(number: int, folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds of recording so many results."""
    header = Header.new("benchmark", {"task_ids": [], "trials_per_task": 1, "seed": 1}, {}, datetime.now(UTC))
    journal = Journal.create(folder / "benchmark", header)
    indices = iter(range(number))

    async def hand_over() -> None:
        for index in indices:
            state = {"submitted_answer": index, "feedback": {"seen": [1.0, 2.0]}, "submitted": True}
            messages = [{"role": "assistant", "content": f"the answer is {index}"}]
            await collector.record(TaskTrialResult("task", index, 1.0, state, duration=0.5, messages=messages))

    try:
        began, cpu = time.perf_counter(), cpu_seconds()
        async with Collector(journal) as collector, anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(hand_over)
        return time.perf_counter() - began, cpu_seconds() - cpu
    finally:
        journal.close()


def measure_collector(report: Report, options: argparse.Namespace) -> None:
    """One table."""
    rows = []
    for number in options.records:
        progress(f"{number:,} records")
        with scratch_folder() as folder:
            wall, used = anyio.run(record, number, Path(folder))
            _, _, records = Journal.open_existing(Path(folder) / "benchmark")
        if len(records) != number:
            raise SystemExit(f"{len(records)} of {number} records are in the journal")
        rows.append({"records": number, "wall": wall / number, "CPU": used / number})
    title = f"The collector, {AT_ONCE} tasks at once, each record on the disk before its task goes on"
    report.table(title, {"records": "n", "wall": "s", "CPU": "s"}, rows)
    if len(rows) > 1:
        growth = rows[-1]["CPU"] / rows[0]["CPU"]
        what = f"CPU of a record, {options.records[-1]:,} of them, to {options.records[0]:,}"
        report.target(what, growth, 1.2)
