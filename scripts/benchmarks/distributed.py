"""A tool call on the nodes of a Dask cluster: its time, how many there are a second, what the processes hold.

The nodes are processes of this machine, over TLS as always, so no network is in the figures and all share the
processors. Corral's call is the whole way of an agent's tool call. Beside it: the same on the local pool, and a task
and an actor of Dask's own, which only give back what they are sent.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
import psutil

from benchmarks.environments import build_echo_on_pool
from benchmarks.measuring import TIMING_COLUMNS, Call, Memory, Timings, count, cpu_seconds, descendants, time_calls
from benchmarks.pools import Served, serving
from benchmarks.report import Report, progress
from benchmarks.work import echo
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.launch import LocalNodes

TEXT = "x" * 100

MEDIAN, P99, EACH, MEMORY = 1.5e-3, 10e-3, 1 / 900, 100e6
"""Targets: seconds of a call, its 99th percentile, seconds between calls of all slots together, bytes on a node."""

OWN, LOCAL = "Corral, nodes of Dask", "Corral, the local pool"

KINDS = {"Dask worker": "corral.pool.dask.node", "agent": "corral.pool.dask.agent_main"}
"""The processes of a node, and the module that each runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--calls", type=count, default=400, help="of each subject in a round")
    parser.add_argument("--slots", type=count, default=64, help="that call at once")
    parser.add_argument("--nodes", type=count, default=8, help="that these slots are on")
    parser.add_argument("--seconds", type=float, default=10.0, help="for which they call")


def run(options: argparse.Namespace) -> Report:
    report = Report("distributed", vars(options))
    progress("calls at one slot and at two")
    timings = anyio.run(latencies, options)
    title = f"A tool call, 100B there and back, asyncio ({options.rounds} rounds of {options.calls} calls)"
    rows = [{"subject": name, **timing.figures()} for name, timing in timings.items()]
    report.table(title, {"subject": "text", **TIMING_COLUMNS}, rows, "two slots on two nodes, called at the same time")
    both = timings[f"{OWN}, two slots"]
    report.target("a call of 100B at two slots, median", both.median, MEDIAN, "s")
    report.target("a call of 100B at two slots, p99", both.p99, P99, "s")
    progress(f"{options.slots} slots on {options.nodes} nodes")
    anyio.run(crowd, report, options)
    return report


def _on_nodes(nodes: int) -> dict[str, Any]:
    return {"backend": "dask", "dask": DaskConfig(launch=LocalNodes(nodes))}


# ---- one call ----


async def latencies(options: argparse.Namespace) -> dict[str, Timings]:
    """The timings by subject. Rounds of all alternate."""
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(serving(build_echo_on_pool, 2))
        far = await stack.enter_async_context(serving(build_echo_on_pool, 2, **_on_nodes(2)))
        await far.all_ready()
        subjects = {LOCAL: [await _call(stack, near)], OWN: [await _call(stack, far)]}
        subjects[f"{OWN}, two slots"] = [*subjects[OWN], await _call(stack, far)]
        subjects |= {name: [call] for name, call in (await _dask_calls(stack)).items()}
        timings = {name: Timings() for name in subjects}
        for number in range(options.rounds + 1):  # the first is to warm up
            for name, calls in subjects.items():
                taken = await _timed(calls, options.calls)
                if number:
                    timings[name].rounds.append(taken)
    return timings


async def _call(stack: AsyncExitStack, served: Served) -> Call:
    trial = await served.open("process")
    stack.push_async_callback(trial.close)

    async def call(value: str) -> Any:
        return await trial.call("echo", {"text": value})

    return call


async def _timed(calls: list[Call], number: int) -> list[float]:
    taken: list[float] = []

    async def time_one(call: Call) -> None:
        taken.extend(await time_calls(call, TEXT, number, lambda sent, got: bool(sent == got)))

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(time_one, call)
    return taken


async def _dask_calls(stack: AsyncExitStack) -> dict[str, Call]:
    """Of Dask's own: a task, and an actor, on a cluster of the same kind."""
    from distributed import Client

    from corral.pool.dask.cluster import launched

    cluster = await stack.enter_async_context(launched(LocalNodes(1)))
    client = await stack.enter_async_context(Client(cluster.address, security=cluster.security, asynchronous=True))
    actor = await client.submit(Echo, actor=True)

    async def by_task(value: str) -> Any:
        return await client.submit(echo, value, pure=False)

    async def by_actor(value: str) -> Any:
        return await actor.echo(value)

    return {"Dask, a task": by_task, "Dask, an actor": by_actor}


class Echo:
    """An actor that gives back what it is sent."""

    def echo(self, value: Any) -> Any:
        return value


# ---- many slots ----


async def crowd(report: Report, options: argparse.Namespace) -> None:
    """Two tables: all slots call at once; what the processes hold."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(serving(build_echo_on_pool, options.slots, **_on_nodes(options.nodes)))
        await served.all_ready()
        calls = [await _call(stack, served) for _ in range(options.slots)]
        await _timed(calls, 3)
        before, own = _cpu_by_kind(), cpu_seconds()
        began = time.perf_counter()
        durations = await _until(calls, began + options.seconds)
        wall, made = time.perf_counter() - began, len(durations)
        used = {"supervisor": cpu_seconds() - own}
        used |= {kind: seconds - before[kind] for kind, seconds in _cpu_by_kind().items()}
        _show_rate(report, options, wall, durations, {kind: seconds / made for kind, seconds in used.items()})
        _show_memory(report, options)


async def _until(calls: list[Call], end: float) -> list[float]:
    durations: list[float] = []

    async def go_on(call: Call) -> None:
        while time.perf_counter() < end:
            durations.extend(await time_calls(call, TEXT, 1, lambda sent, got: bool(sent == got)))

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(go_on, call)
    return durations


def _show_rate(
    report: Report, options: argparse.Namespace, wall: float, durations: list[float], cpu: Mapping[str, float]
) -> None:
    timing = Timings([durations])
    report.table(
        f"{options.slots} slots on {options.nodes} nodes call at once, 100B there and back, for {options.seconds:g} s",
        {"calls a second": "n", "median": "s", "p99": "s", **{f"CPU, {kind}": "s" for kind in cpu}},
        [{"calls a second": len(durations) / wall, "median": timing.median, "p99": timing.p99,
          **{f"CPU, {kind}": seconds for kind, seconds in cpu.items()}}],
        "CPU: of one call, in all processes of a kind; the trial processes' own is not counted",
    )  # fmt: skip
    report.target(f"time between two calls, {options.slots} slots at once", wall / len(durations), EACH, "s")


def _show_memory(report: Report, options: argparse.Namespace) -> None:
    rows = []
    for kind in KINDS:
        each = [Memory.of(pid) for pid in _pids(kind)]
        largest = max(each, key=lambda memory: memory.pss)
        rows.append({"process": f"{kind} (the largest of {len(each)})",
                     **{name.upper(): getattr(largest, name) for name in ("rss", "pss", "uss")}})  # fmt: skip
    title = f"What the processes of a node hold besides workers, {options.slots} slots on {options.nodes} nodes"
    report.table(title, {"process": "text", "RSS": "B", "PSS": "B", "USS": "B"}, rows)
    report.target("PSS of a node's Dask worker and agent together", sum(row["PSS"] for row in rows), MEMORY, "B")


def _pids(kind: str) -> list[int]:
    return [pid for pid in descendants() if KINDS[kind] in psutil.Process(pid).cmdline()]


def _cpu_by_kind() -> dict[str, float]:
    used = dict.fromkeys(KINDS, 0.0)
    for kind in KINDS:
        for pid in _pids(kind):
            times = psutil.Process(pid).cpu_times()
            used[kind] += times.user + times.system
    return used
