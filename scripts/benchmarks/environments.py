"""The environments that the benchmarks run, and a bare ASGI echo as the floor beneath an environment server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.work import meet
from corral import Environment, InputRef, TaskDefinition, build_environments, tool
from corral.types import ConcurrencyMode


class Echo(Environment):
    """Gives back what it is sent."""

    def get_task_prompt(self) -> str:
        return "Echo."

    def score(self) -> float:
        return 1.0

    @tool
    def echo(self, text: str) -> str:
        """Give back the text."""
        return text

    @tool
    def echo_values(self, values: Any) -> Any:
        """Give back the values."""
        return values


def build_echo() -> dict[str, Environment]:
    return {"thread": Echo("thread"), "process": Echo("process", concurrency="process")}


def build_echo_on_pool() -> dict[str, Environment]:
    return {"process": Echo("process", concurrency="process")}


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


class Work(Environment):
    """Waits or computes for as long as its tool is told."""

    def get_task_prompt(self) -> str:
        return "Work."

    def score(self) -> float:
        return 1.0

    @tool
    def wait(self, seconds: float) -> float:
        """Wait, as for a model or a device."""
        time.sleep(seconds)
        return seconds

    @tool
    def compute(self, seconds: float) -> float:
        """Keep a processor busy."""
        end = time.thread_time() + seconds  # of CPU, not of the clock: work does not shrink when others take turns
        while time.thread_time() < end:
            pass
        return seconds

    @tool
    def meet(self, path: str) -> bool:
        """Wait at a socket until the other end lets go."""
        meet(path)
        return True


def build_work() -> dict[str, Environment]:
    return {"work": Work("work", concurrency="process")}


def build_wetlab() -> dict[str, Environment]:
    from corral.envs.wetlab import build_envs

    return build_envs()


def build_tasks(mode: ConcurrencyMode, number: int) -> dict[str, Environment]:
    """So many tasks of the same kind."""
    return {f"task-{index:05}": Work(f"task-{index:05}", concurrency=mode) for index in range(number)}


def _is_done(answer: Any) -> float:
    return float(answer is not None)


def build_graph(lengths: Sequence[int]) -> dict[str, Environment]:
    """Chains of tasks of these lengths, each task with the tools of ``Work``."""
    tasks = []
    for chain, length in enumerate(lengths):
        for index in range(length):
            inputs = {"before": InputRef(f"chain-{chain:03}-{index - 1}")} if index else {}
            tasks.append(
                TaskDefinition(f"chain-{chain:03}-{index}", "Work.", [], _is_done, "a number", input_map=inputs)
            )
    return build_environments(tasks, env_cls=Links, concurrency="process")


class Links(Environment):
    """As ``Work``, scored by its task's definition."""

    wait, compute = Work.wait, Work.compute
