#!/usr/bin/env python3
"""What a tool call costs: in-process, on the worker pool, through an environment server's HTTP and MCP.

    .venv/bin/python scripts/benchmark_server.py [--calls 300] [--rounds 5] [--payload 100]

Every subject answers with as many bytes as it was sent. The bare echoes are the floor of the same stack: one ASGI
function under uvicorn, in a process of its own, asked by httpx as the routers do, and over a raw socket. Rounds of all
subjects alternate, so that a noisy moment hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from mcp import Client

from corral import AsyncCorralRouter, CorralRouter, Environment, tool
from corral.pool import WorkerPool, WorkerPoolConfig
from corral.routers import AsyncLocalRouter
from corral.scratch import scratch_folder
from corral.service import TrialService
from corral.source import EnvironmentSource

ROOT = Path(__file__).resolve().parent
Call = Callable[[str], Awaitable[object]]


class Echo(Environment):
    def get_task_prompt(self) -> str:
        return "Echo."

    def score(self) -> float:
        return 1.0

    @tool
    def echo(self, text: str) -> str:
        """Give back the text."""
        return text


def build() -> dict[str, Environment]:
    return {"thread": Echo("thread"), "process": Echo("process", concurrency="process")}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The bare echo."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def start(stack: AsyncExitStack, *command: str, ready: str) -> str:
    """A server in a process of its own; its address."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(ready, line):
            return found[1]
    raise SystemExit(f"{command} did not start")


async def local_call(stack: AsyncExitStack, task_id: str) -> Call:
    pool = None
    if task_id == "process":
        pool = await stack.enter_async_context(WorkerPool(build, WorkerPoolConfig(size=1)))
    source = EnvironmentSource(build)
    from corral.runtime import describe

    catalogue = pool.catalogue if pool is not None else describe(source.here())
    folder = Path(stack.enter_context(scratch_folder()))
    service = TrialService(source, catalogue, pool=pool, work_root=folder)
    stack.push_async_callback(service.aclose)
    return await trial_call(stack, AsyncLocalRouter(service), task_id)


async def trial_call(stack: AsyncExitStack, router: Any, task_id: str) -> Call:
    opened = await router.create_trial(task_id)
    trial = router.for_trial(opened["trial_runtime_id"], task_id)

    async def call(text: str) -> object:
        return (await trial.execute_tool(task_id, "echo", {"text": text})).result

    return call


async def sync_call(stack: AsyncExitStack, url: str) -> Call:
    router = stack.enter_context(CorralRouter(url))
    trial = router.for_trial(router.create_trial("thread")["trial_runtime_id"], "thread")

    async def call(text: str) -> object:
        return trial.execute_tool("thread", "echo", {"text": text}).result

    return call


async def mcp_call(stack: AsyncExitStack, router: AsyncCorralRouter) -> Call:
    client = await stack.enter_async_context(Client((await router.create_trial("thread"))["mcp_url"]))

    async def call(text: str) -> object:
        structured: Any = (await client.call_tool("echo", {"text": text})).structured_content
        return structured["result"]

    return call


async def httpx_call(stack: AsyncExitStack, url: str) -> Call:
    client = await stack.enter_async_context(httpx.AsyncClient(verify=False, trust_env=False))

    async def call(text: str) -> object:
        return (await client.post(url, json={"text": text})).json()["text"]

    return call


async def raw_call(stack: AsyncExitStack, url: str) -> Call:
    host, port = url.removeprefix("http://").split(":")
    sock = stack.enter_context(socket.create_connection((host, int(port))))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def call(text: str) -> object:
        body = json.dumps({"text": text}).encode()
        sock.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        answer = b""
        while not answer.endswith(b"}"):
            answer += sock.recv(2**20)
        return json.loads(answer.partition(b"\r\n\r\n")[2])["text"]

    return call


async def subjects(stack: AsyncExitStack) -> dict[str, Call]:
    corral = start(stack, "corral.server", "benchmark_server:build", "--port", "0", "--pool-size", "1",
                   ready=r" at (http\S+)")  # fmt: skip
    echo = start(stack, "uvicorn", "benchmark_server:app", "--port", "0", "--no-access-log", "--loop", "asyncio",
                 ready=r"running on (http://[0-9.:]+)")  # fmt: skip
    router = await stack.enter_async_context(AsyncCorralRouter(corral))
    return {
        "in-process, thread": await local_call(stack, "thread"),
        "in-process, pool": await local_call(stack, "process"),
        "HTTP, async, thread": await trial_call(stack, router, "thread"),
        "HTTP, async, pool": await trial_call(stack, router, "process"),
        "HTTP, sync, thread": await sync_call(stack, corral),
        "MCP, thread": await mcp_call(stack, router),
        "bare ASGI, httpx": await httpx_call(stack, echo),
        "bare ASGI, raw socket": await raw_call(stack, echo),
    }


async def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    text = "x" * options.payload
    async with AsyncExitStack() as stack:
        calls = await subjects(stack)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.rounds + 1):
            for name, call in calls.items():
                for _ in range(options.calls):
                    began = time.perf_counter()
                    answer = await call(text)
                    times[name].append(time.perf_counter() - began)
                    if answer != text:
                        raise SystemExit(f"{name} gave a wrong answer")
    return {name: values[options.calls :] for name, values in times.items()}  # the first round warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300, help="calls of each subject in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--payload", type=int, default=100, help="bytes there and back")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
          f"{options.payload} bytes, {options.rounds} x {options.calls} calls")  # fmt: skip
    times = asyncio.run(measure(options))
    floor = statistics.median(times["bare ASGI, httpx"])
    print(f"{'':24}{'median':>10}{'p99':>10}{'to bare ASGI':>14}")
    for name, values in times.items():
        median, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        print(f"{name:24}{median * 1e6:>7.0f} us{p99 * 1e6:>7.0f} us{median / floor:>12.2f} x")


if __name__ == "__main__":
    sys.exit(main())
