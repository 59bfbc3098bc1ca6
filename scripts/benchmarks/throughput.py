"""What a trial costs end to end when it does nothing, by the number of trials, beside a peer's task and a line of JSON.

Sessions are whole: planned, run, recorded in a journal that is on the disk before anyone is told, and reported. Each is
run in a process of its own. A trial asks for its prompt and its tools, answers, and is scored. Wall time is from the
first record to the last, by the trials between them. CPU time and memory are the difference to a session of a hundred
trials, by the further ones: so the start of a pool is not in them, and planning and reporting are.

A flush to the disk takes a tenth of a millisecond on many virtual machines, milliseconds on a disk that does as it is
told. Peers write line by line; a session's records share their flushes. So one table is of a slower disk: of this one,
with every flush made longer.

Then trials that wait, each in fresh process state: what a pool loses of the time that they wait.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.environments import build_work
from benchmarks.measuring import count, cpu_seconds
from benchmarks.once import PEERS, RESUMED, REUSED, SESSIONS, TASKS, Order
from benchmarks.pools import serving
from benchmarks.report import Report, progress, seconds
from corral import CorralRunner
from corral.agents import ScriptedAgent
from corral.pool.config import available_cpus
from corral.scratch import scratch_folder

MOST_BY_FORK, MOST_BY_SPAWN = 10_000, 2 * TASKS
"""Trials in fresh processes: more of them would take all day."""
OWN = "a trial on a reused process"
COLUMNS = {
    "trials": "n", "wall": "s", "a second": "n", "supervisor CPU": "s", "processes' CPU": "s", "memory": "B",
    "its state": "B", "journal": "B", "resume": "s",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trials", nargs="+", type=count, default=[1_000, 10_000], help="of a session (hundreds)")
    parser.add_argument("--kinds", nargs="+", choices=SESSIONS, default=list(SESSIONS), help="where the trials run")
    parser.add_argument("--large", action="store_true", help="100,000 trials too, but for fresh processes")
    parser.add_argument("--size", type=count, default=available_cpus(), help="processes, and trials at once")
    parser.add_argument("--rounds", type=count, default=3, help="of up to 1,000 trials; one of more")
    parser.add_argument("--flush", type=float, default=3e-3, help="seconds of a slower disk's flush (0: no such table)")
    parser.add_argument("--waits", type=int, default=64, help="trials that wait")
    parser.add_argument("--wait", type=float, default=0.5, help="seconds that each of them waits")
    parser.add_argument("--slots", type=count, default=8, help="the pool of the trials that wait")


def run(options: argparse.Namespace) -> Report:
    report = Report("throughput", vars(options))
    sizes = sorted({max(2 * TASKS, trials // TASKS * TASKS) for trials in options.trials})
    if options.large:
        sizes.append(100_000)
    costs = {kind: measure_sessions(report, kind, sizes, options) for kind in options.kinds}
    peers = measure_peers(report, sizes[0], options)
    if REUSED in costs:
        add_targets(report, costs[REUSED], peers, sizes)
    if options.flush:
        measure_slow_disk(report, options)
    if options.waits:
        measure_waits(report, options)
    return report


# ---- sessions that do nothing ----


def once(kind: str, trials: int, size: int, **more: Any) -> dict[str, Any]:
    """The figures of one run, and of the same session gone on with."""
    with scratch_folder() as folder:
        figures = _ask(Order(kind, trials, size, folder, **more))
        if kind in SESSIONS and trials > TASKS:
            _expect(figures, trials, kind)
            again = _ask(Order(RESUMED if kind == "in-process" else kind, trials, size, folder))
            _expect(again, trials, kind)
            figures["resume"] = again["wall"]
        return figures


def _ask(order: Order) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks", "once", json.dumps(asdict(order))]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{order.kind} with {order.trials} trials failed")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _expect(figures: dict[str, Any], trials: int, kind: str) -> None:
    if figures["recorded"] != trials:
        raise SystemExit(f"{kind}: {figures['recorded']} of {trials} trials were recorded with their score")


def measure_sessions(
    report: Report, kind: str, sizes: list[int], options: argparse.Namespace
) -> dict[int, dict[str, float]]:
    """One table; the costs of one more trial, by the number of trials."""
    size = options.size
    costs: dict[int, dict[str, float]] = {}
    small = _median([once(kind, TASKS, size) for _ in range(options.rounds)])
    most = {"pool-fork": MOST_BY_FORK, "pool-spawn": MOST_BY_SPAWN}.get(kind, sizes[-1])
    for trials in sorted({min(trials, most) for trials in sizes}):
        rounds = options.rounds if trials <= 1_000 and most > MOST_BY_SPAWN else 1
        progress(f"{kind}, {trials} trials")
        costs[trials] = cost_of(_median([once(kind, trials, size) for _ in range(rounds)]), small, trials)
    rows = [{"trials": trials, **cost} for trials, cost in costs.items()]
    report.table(
        f"One more trial that does nothing: {kind}, {size} at once", COLUMNS, rows,
        "memory: of the supervisor's process, its state included; resume: the whole session, all of it recorded",
    )  # fmt: skip
    return costs


def cost_of(figures: dict[str, float], small: dict[str, float], trials: int) -> dict[str, float]:
    """What one more trial costs, from a session and one of TASKS trials."""
    more = trials - TASKS
    each = {name: (figures[name] - small[name]) / more for name in ("cpu", "cpu_of_processes", "rss")}
    return {
        "wall": figures["each"],
        "a second": 1 / figures["each"],
        "supervisor CPU": each["cpu"],
        "processes' CPU": each["cpu_of_processes"],
        "memory": each["rss"],
        "its state": figures["state"],
        "journal": figures["journal"] / trials,
        "resume": figures["resume"],
    }


def _median(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def measure_peers(report: Report, trials: int, options: argparse.Namespace) -> dict[str, float]:
    """One table; the seconds of one more task and its line on the disk, by peer."""
    found: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for kind in PEERS:
        progress(f"{kind}, {trials} tasks")
        runs = [[once(kind, trials, options.size, durable=on) for on in (False, True)] for _ in range(options.rounds)]
        if "missing" in runs[0][0]:
            rows.append({"subject": f"{kind}: not installed"})
            continue
        small = statistics.median(once(kind, TASKS, options.size)["cpu"] for _ in range(options.rounds))
        written, durable = (_median([pair[index] for pair in runs]) for index in range(2))
        found[kind] = durable["each"]
        rows.append({"subject": kind, "wall": written["each"], "a second": 1 / written["each"],
                     "CPU": (written["cpu"] - small) / (trials - TASKS), "wall, on the disk": durable["each"],
                     "a second, on the disk": 1 / durable["each"]})  # fmt: skip
    columns = {"subject": "text", "wall": "s", "a second": "n", "CPU": "s", "wall, on the disk": "s",
               "a second, on the disk": "n"}  # fmt: skip
    report.table(
        f"One more task that does nothing, and a line of JSON: {options.size} processes, {trials} tasks", columns, rows,
        "on the disk: each line is, before the next is written, as records in a session's journal are",
    )  # fmt: skip
    return found


def measure_slow_disk(report: Report, options: argparse.Namespace) -> None:
    """One table: a trial of Corral's beside a peer's task and its line, where a flush to the disk takes long."""
    progress(f"a disk whose flush takes {options.flush:g} s longer")
    found = {OWN: once(REUSED, 5 * TASKS, options.size, flush=options.flush)["each"]}
    for kind in PEERS:
        figures = once(kind, TASKS, options.size, durable=True, flush=options.flush)
        if "missing" not in figures:
            found[kind] = figures["each"]
    rows = [{"subject": name, "wall": wall, "a second": 1 / wall} for name, wall in found.items()]
    report.table(
        f"The same on a disk whose flush takes {seconds(options.flush)} longer than this one's",
        {"subject": "text", "wall": "s", "a second": "n"}, rows, "each trial and each line is on the disk",
    )  # fmt: skip
    for kind, wall in list(found.items())[1:]:
        report.target(f"{OWN}, to a task of {kind} and a line, on such a disk", found[OWN] / wall, 1.0)


def add_targets(report: Report, reused: dict[int, dict[str, float]], peers: dict[str, float], sizes: list[int]) -> None:
    few, many = reused[sizes[0]], reused[sizes[-1]]
    report.target(f"supervisor CPU of {OWN}, {sizes[0]} trials", few["supervisor CPU"], 1e-3, "s")
    if few is not many:
        growth = many["supervisor CPU"] / few["supervisor CPU"]
        report.target(f"the same with {sizes[-1]} trials, to that with {sizes[0]}", growth, 1.1)
    for name, wall in peers.items():
        report.target(f"{OWN}, to a task of {name} and a line on the disk", few["wall"] / wall, 1.0)
    rest = many["memory"] - many["its state"]
    report.target("memory of a recorded trial in the supervisor, beyond its state", rest, 3000, "B")


# ---- trials that wait ----


async def wait_in_call(seconds: float, lab: Any, prompt: str) -> float:
    """A policy whose one tool call waits."""
    return float(await lab.call("wait", seconds=seconds))


async def waits(fresh: str, options: argparse.Namespace) -> dict[str, float]:
    """A session of trials that wait, on a pool that is ready."""
    async with serving(build_work, options.slots, fresh=fresh) as served:
        await served.all_ready()
        await anyio.sleep(1.0)  # the first trials' processes wait
        with scratch_folder() as folder:
            runner = CorralRunner(
                served.router, agent_factory=lambda context: ScriptedAgent(partial(wait_in_call, options.wait)),
                checkpoint_dir=Path(folder),
            )  # fmt: skip
            began, cpu = time.perf_counter(), cpu_seconds()
            result = await runner.abench(
                trials_per_task=options.waits, max_concurrency=options.slots, max_concurrency_per_task=options.slots,
                seed=1, progress=False,
            )  # fmt: skip
            wall, used = time.perf_counter() - began, cpu_seconds() - cpu
    if result.average_score() != 1.0:
        raise SystemExit(f"trials failed: {result.first_cause()}")
    return {"wall": wall, "CPU": used}


def measure_waits(report: Report, options: argparse.Namespace) -> None:
    """One table: what is lost of the time in which all slots wait."""
    least = options.waits * options.wait / options.slots
    rows = []
    for fresh, limit in (("fork", 0.03), ("spawn", 0.05)):
        progress(f"{options.waits} trials that wait, {fresh}")
        figures = anyio.run(waits, fresh, options)
        lost = figures["wall"] / least - 1
        rows.append({"fresh": fresh, "least": least, **figures, "lost": lost})
        report.target(f"lost by {options.waits} waiting trials on a pool of {options.slots}, {fresh}", lost, limit, "%")
    title = (
        f"{options.waits} trials that wait {options.wait:g} s each, in fresh processes, on a pool of {options.slots}"
    )
    report.table(title, {"fresh": "text", "least": "s", "wall": "s", "lost": "%", "CPU": "s"}, rows,
                 "CPU: of the supervisor")  # fmt: skip
