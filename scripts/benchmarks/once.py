"""One run in a process of its own, whose time and memory are then of this run alone. Prints its figures as JSON.

    python -m benchmarks once '{"kind": "pool-reused", "trials": 1000, "size": 2, "folder": "/tmp/x"}'

The kinds are sessions of Corral (``SESSIONS``), the same session gone on with ("resumed"), and tasks of the peers, each
followed by a line of JSON in a file.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
from anyio.from_thread import start_blocking_portal

from benchmarks.callers import SPAWN
from benchmarks.environments import build_tasks
from benchmarks.measuring import cpu_seconds, peak_rss
from benchmarks.start import loky_executor, stdlib_executor
from benchmarks.work import nothing
from corral import BenchmarkResult, CorralRunner
from corral.agents import ScriptedAgent
from corral.pool import WorkerPoolConfig
from corral.report.tally import Silent
from corral.types import ConcurrencyMode

TASKS = 100
"""Of each session; the rest are trials of these."""
REUSED = "pool-reused"
SESSIONS: dict[str, tuple[ConcurrencyMode, dict[str, Any] | None]] = {
    "in-process": ("thread", None),
    REUSED: ("process", {"reuse": "worker"}),
    "pool-fork": ("process", {"fresh": "fork"}),
    "pool-spawn": ("process", {"fresh": "spawn"}),
}
RESUMED = "resumed"
WARM = 20
"""Tasks for each process before those that are measured."""


@dataclass(frozen=True)
class Order:
    """What is to be run."""

    kind: str
    trials: int
    """At least TASKS, and a multiple of it; for peers any number."""
    size: int
    """Processes, and trials at once."""
    folder: str
    durable: bool = False
    """Whether peers wait until each line is on the disk, as a session's journal does."""
    flush: float = 0.0
    """Seconds that every flush to the disk takes longer than here, as if the disk were another one."""


class Watch(Silent):
    """When the first trial was recorded, or a peer's first task submitted, and when the last was done."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.first = self.last = 0.0

    def recorded(self, result: object) -> None:
        """One more."""
        self.last = time.perf_counter()
        self.first = self.first or self.last


def main() -> int:
    order = Order(**json.loads(sys.argv[2]))
    if order.flush:
        slow_down_flushes(order.flush)
    before, cpu, watch = psutil.Process().memory_info().rss, cpu_seconds(), Watch()
    result: BenchmarkResult | None = None
    try:
        if order.kind in (*SESSIONS, RESUMED):
            result = run_session(order, watch)
        else:
            run_peer(order, watch)
    except ImportError as error:
        print(json.dumps({"missing": error.name}))
        return 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures: dict[str, Any] = {
        "wall": time.perf_counter() - watch.began,
        "each": (watch.last - watch.first) / (order.trials - 1),
        "cpu": cpu_seconds() - cpu,
        "cpu_of_processes": used.ru_utime + used.ru_stime,
        "rss": peak_rss() - before,
    }
    if result is not None:
        figures |= facts(result, order)
    print(json.dumps(figures))
    return 0


def slow_down_flushes(seconds: float) -> None:
    """Let ``os.fsync``, by which Corral's journal and the peers' lines alike come to the disk, take so much longer."""
    flush = os.fsync

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        flush(descriptor)

    os.fsync = slow  # type: ignore[assignment]


# ---- Corral ----


async def answer(lab: Any, prompt: str) -> int:
    """A policy that asks nothing of anybody."""
    return 1


def run_session(order: Order, watch: Watch) -> BenchmarkResult:
    """A session of trials that do nothing, its journal on the disk."""
    mode, pool = SESSIONS.get(order.kind, SESSIONS["in-process"])
    runner = CorralRunner(
        partial(build_tasks, mode, TASKS), agent_factory=lambda context: ScriptedAgent(answer),
        checkpoint_dir=order.folder,
    )  # fmt: skip
    return runner.bench(
        trials_per_task=order.trials // TASKS, max_concurrency=order.size, max_concurrency_per_task=order.size,
        worker_pool=WorkerPoolConfig(size=order.size, **pool) if pool is not None else False, seed=1,
        session_id="benchmark", progress=watch,
    )  # fmt: skip


def facts(result: BenchmarkResult, order: Order) -> dict[str, Any]:
    """What came of it."""
    trials = list(result.trials)
    journal = Path(order.folder) / "benchmark" / "journal.jsonl"
    return {
        "recorded": sum(trial.score == 1.0 and trial.failure is None for trial in trials),
        "journal": journal.stat().st_size,
        "state": sum(held(trial.state) for trial in trials[:TASKS]) / len(trials[:TASKS]),
    }


def held(value: Any) -> int:
    """Bytes of plain data, what is in it included."""
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        parts = value
    return sys.getsizeof(value) + sum(held(part) for part in parts)


# ---- peers ----


def run_peer(order: Order, watch: Watch) -> None:
    """Tasks that do nothing, a line of JSON written for each. Its processes have started before the clock does."""
    with open(Path(order.folder) / "lines.jsonl", "wb") as file, PEERS[order.kind](order.size) as do:
        written: list[int] = []

        def write(number: int) -> None:
            file.write(json.dumps({"task": number, "score": 1.0}).encode() + b"\n")
            file.flush()
            if order.durable:
                os.fsync(file.fileno())
            written.append(number)

        do(range(WARM * order.size), lambda number: None)
        watch.recorded(None)
        do(range(order.trials), write)
        watch.recorded(None)
    if sorted(written) != list(range(order.trials)):
        raise SystemExit(f"{order.kind}: {len(written)} of {order.trials} tasks came back")


Do = Callable[[Iterable[int], Callable[[int], None]], None]
"""Has a task done for each number, and calls a function with what each gave."""


@contextmanager
def by_executor(make: Callable[[int], Executor], size: int) -> Iterator[Do]:
    with make(size) as executor:
        yield partial(_submit, lambda number: executor.submit(nothing, number))


@contextmanager
def by_pool(size: int) -> Iterator[Do]:
    pool = SPAWN.Pool(size)

    def do(numbers: Iterable[int], done: Callable[[int], None]) -> None:
        for number in pool.imap_unordered(nothing, numbers):
            done(number)

    yield do
    pool.close()
    pool.join()


@contextmanager
def by_pebble(size: int) -> Iterator[Do]:
    from pebble import ProcessPool

    with ProcessPool(size, context=SPAWN) as pool:
        yield partial(_submit, lambda number: pool.schedule(nothing, (number,)))


def _submit(submit: Callable[[int], Future[int]], numbers: Iterable[int], done: Callable[[int], None]) -> None:
    for future in as_completed([submit(number) for number in numbers]):
        done(future.result())


@contextmanager
def by_to_process(size: int) -> Iterator[Do]:
    from anyio import to_process

    limiter: list[anyio.CapacityLimiter] = []

    async def ask(number: int) -> int:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(size))
        return await to_process.run_sync(nothing, number, limiter=limiter[0])

    with _on_loop(size, ask, "asyncio") as do:
        yield do


@contextmanager
def by_trio_parallel(size: int) -> Iterator[Do]:
    import trio_parallel

    async def ask(number: int) -> int:
        found: int = await trio_parallel.run_sync(nothing, number)
        return found

    with _on_loop(size, ask, "trio") as do:
        yield do


@contextmanager
def _on_loop(size: int, ask: Callable[[int], Awaitable[int]], backend: str) -> Iterator[Do]:
    """As many tasks of an event loop as there are processes, each asking one thing after the other."""

    async def everyone(numbers: Iterator[int], done: Callable[[int], None]) -> None:
        async def go_on() -> None:
            for number in numbers:
                done(await ask(number))

        async with anyio.create_task_group() as tasks:
            for _ in range(size):
                tasks.start_soon(go_on)

    with start_blocking_portal(backend) as portal:
        yield lambda numbers, done: portal.call(everyone, iter(numbers), done)


PEERS: dict[str, Callable[[int], AbstractContextManager[Do]]] = {
    "ProcessPoolExecutor": partial(by_executor, stdlib_executor),
    "multiprocessing.Pool": by_pool,
    "loky": partial(by_executor, loky_executor),
    "pebble": by_pebble,
    "trio-parallel": by_trio_parallel,
    "anyio.to_process": by_to_process,
}
