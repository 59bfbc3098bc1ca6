"""What a tool call costs in-process, on the worker pool, and through an environment server's HTTP and MCP.

Every subject answers with as many bytes as it was sent. The bare echoes are the floor of the same stack: one ASGI
function under uvicorn, in a process of its own, asked by httpx as the routers do, and over a raw socket. Rounds of all
subjects alternate, so that a noisy moment hits all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from mcp import Client

from benchmarks.environments import build_echo
from benchmarks.measuring import TIMING_COLUMNS, Call, Timings, count, ratio, time_calls
from benchmarks.pools import serving
from benchmarks.report import Report
from corral import AsyncCorralRouter, CorralRouter
from corral.routers import AsyncLocalRouter, AsyncRouter
from corral.runtime import describe
from corral.scratch import scratch_folder
from corral.service import TrialService
from corral.source import EnvironmentSource

SCRIPTS = Path(__file__).resolve().parent.parent
FLOOR = "bare ASGI, httpx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=count, default=300, help="calls of each subject in a round")
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--payload", type=count, default=100, help="bytes there and back")


def run(options: argparse.Namespace) -> Report:
    report = Report("server", vars(options))
    timings = asyncio.run(measure("x" * options.payload, options.calls, options.rounds))
    rows = [
        {"subject": name, **timing.figures(), f"to {FLOOR}": ratio(timing, timings[FLOOR])}
        for name, timing in timings.items()
    ]
    title = f"A tool call, {options.payload} bytes there and back ({options.rounds} rounds of {options.calls} calls)"
    report.table(title, {"subject": "text", **TIMING_COLUMNS, f"to {FLOOR}": "x"}, rows)
    return report


async def measure(text: str, number: int, rounds: int) -> dict[str, Timings]:
    async with AsyncExitStack() as stack:
        calls = await subjects(stack)
        timings = {name: Timings() for name in calls}
        for index in range(rounds + 1):
            for name, call in calls.items():
                taken = await time_calls(call, text, number, str.__eq__)
                if index > 0:  # the first round warms up
                    timings[name].rounds.append(taken)
    return timings


def start(stack: AsyncExitStack, *command: str, ready: str) -> str:
    """A server in a process of its own; its address."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(SCRIPTS)])
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=SCRIPTS, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(ready, line):
            return found[1]
    raise SystemExit(f"{command} did not start")


async def pool_call(stack: AsyncExitStack) -> Call:
    served = await stack.enter_async_context(serving(build_echo, 1))
    return await trial_call(served.router, "process")


async def thread_call(stack: AsyncExitStack) -> Call:
    source = EnvironmentSource(build_echo)
    folder = Path(stack.enter_context(scratch_folder()))
    service = TrialService(source, describe(source.here()), work_root=folder)
    stack.push_async_callback(service.aclose)
    return await trial_call(AsyncLocalRouter(service), "thread")


async def trial_call(router: AsyncRouter, task_id: str) -> Call:
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
    corral = start(stack, "corral.server", "benchmarks.environments:build_echo", "--port", "0", "--pool-size", "1",
                   ready=r" at (http\S+)")  # fmt: skip
    echo = start(stack, "uvicorn", "benchmarks.environments:app", "--port", "0", "--no-access-log", "--loop", "asyncio",
                 ready=r"running on (http://[0-9.:]+)")  # fmt: skip
    router = await stack.enter_async_context(AsyncCorralRouter(corral))
    return {
        "in-process, thread": await thread_call(stack),
        "in-process, pool": await pool_call(stack),
        "HTTP, async, thread": await trial_call(router, "thread"),
        "HTTP, async, pool": await trial_call(router, "process"),
        "HTTP, sync, thread": await sync_call(stack, corral),
        "MCP, thread": await mcp_call(stack, router),
        FLOOR: await httpx_call(stack, echo),
        "bare ASGI, raw socket": await raw_call(stack, echo),
    }
