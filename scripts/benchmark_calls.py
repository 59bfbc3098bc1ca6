#!/usr/bin/env python3
"""What a tool call costs through the worker pool, beside its peers, on the same work in the same run.

    .venv/bin/python scripts/benchmark_calls.py [--calls 2000] [--rounds 5] [--payload 100] [--backend asyncio|trio]

Every subject answers with as many bytes as it was sent. "corral" is the whole way of an agent's tool call: router,
validation, wire, environment, record. Rounds of all subjects alternate, so that a noisy moment hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
from anyio import to_process, to_thread

from corral import Environment, tool
from corral.pool import WorkerPool, WorkerPoolConfig
from corral.routers import AsyncLocalRouter
from corral.service import TrialService
from corral.source import EnvironmentSource

Call = Callable[[str], Awaitable[object]]


class Echo(Environment):
    concurrency = "process"

    def get_task_prompt(self) -> str:
        return "Echo."

    def score(self) -> float:
        return 1.0

    @tool
    def echo(self, text: str) -> str:
        """Give back the text."""
        return text


def build() -> dict[str, Environment]:
    return {"echo": Echo("echo")}


def echo(text: str) -> str:
    return text


def serve_pipe(pipe: Connection) -> None:
    while (text := pipe.recv()) is not None:
        pipe.send(text)


async def corral_call(stack: AsyncExitStack) -> Call:
    pool = await stack.enter_async_context(WorkerPool(build, WorkerPoolConfig(size=1)))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    service = TrialService(EnvironmentSource(build), pool.catalogue, pool=pool, work_root=folder)
    stack.push_async_callback(service.aclose)
    router = AsyncLocalRouter(service)
    opened = await router.create_trial("echo")
    trial = router.for_trial(opened["trial_runtime_id"], "echo")

    async def call(text: str) -> object:
        return (await trial.execute_tool("echo", "echo", {"text": text})).result

    return call


async def executor_call(stack: AsyncExitStack) -> Call:
    """As asynchronous code uses it: other tasks go on while the call runs."""
    executor = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))

    async def on_asyncio(text: str) -> object:
        return await asyncio.get_running_loop().run_in_executor(executor, echo, text)

    async def elsewhere(text: str) -> object:
        return await to_thread.run_sync(lambda: executor.submit(echo, text).result())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return elsewhere
    return on_asyncio


async def blocking_executor_call(stack: AsyncExitStack) -> Call:
    """The event loop stands still while the call runs: a floor, not a use."""
    executor = stack.enter_context(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))

    async def call(text: str) -> object:
        return executor.submit(echo, text).result()

    return call


async def to_process_call(stack: AsyncExitStack) -> Call:
    async def call(text: str) -> object:
        return await to_process.run_sync(echo, text)

    return call


async def pipe_call(stack: AsyncExitStack) -> Call:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_pipe, args=(theirs,), daemon=True)
    process.start()
    stack.callback(process.join)
    stack.callback(ours.send, None)

    async def call(text: str) -> object:
        ours.send(text)
        return ours.recv()

    return call


SUBJECTS: dict[str, Callable[[AsyncExitStack], Awaitable[Call]]] = {
    "corral": corral_call,
    "multiprocessing.Pipe": pipe_call,
    "anyio.to_process": to_process_call,
    "ProcessPoolExecutor": executor_call,
    "  blocking the loop": blocking_executor_call,
}


async def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    text = "x" * options.payload
    async with AsyncExitStack() as stack:
        calls = {name: await make(stack) for name, make in SUBJECTS.items()}
        for call in calls.values():
            for _ in range(50):
                await call(text)
        for _ in range(options.rounds):
            for name, call in calls.items():
                for _ in range(options.calls):
                    began = time.perf_counter()
                    answer = await call(text)
                    times[name].append(time.perf_counter() - began)
                    if answer != text:
                        raise SystemExit(f"{name} gave a wrong answer")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="calls of each subject in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--payload", type=int, default=100, help="bytes there and back")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, {options.backend}, "
          f"{options.payload} bytes, {options.rounds} x {options.calls} calls")  # fmt: skip
    times = anyio.run(measure, options, backend=options.backend)
    corral = statistics.median(times["corral"])
    print(f"{'':22}{'median':>10}{'p99':>10}{'corral is':>12}")
    for name, values in times.items():
        median = statistics.median(values)
        p99 = statistics.quantiles(values, n=100)[98]
        print(f"{name:22}{median * 1e6:>7.0f} us{p99 * 1e6:>7.0f} us{corral / median:>10.2f} x")


if __name__ == "__main__":
    sys.exit(main())
