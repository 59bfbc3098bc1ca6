"""CHILD SIDE: graphs of tasks whose environments say what they saw: who ran, how many at once, and in which process.

A task's answer is twice the sum of its parents' answers, plus one, times the trial's own number: it is right only if
each parent's output of the same round came through, whichever process that ran in.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from corral import Environment, InputRef, TaskDefinition, build_environments, tool
from tests.support.benches import Mode
from tests.support.meeting import Meeting

Graph = Mapping[str, tuple[str, ...]]

CHAIN: Graph = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",), "e": ("d",)}
DIAMOND: Graph = {"top": (), "left": ("top",), "right": ("top",), "end": ("left", "right")}
FAN: Graph = {"root": (), "leaf1": ("root",), "leaf2": ("root",), "leaf3": ("root",)}
TWO_CHAINS: Graph = {"a1": (), "a2": ("a1",), "a3": ("a2",), "b1": (), "b2": ("b1",), "x": (), "y": ()}


class Node(Environment):
    """A task of a graph. Files in ``folder`` tell it what to do, and hold what it did."""

    def __init__(self, task_id: str, folder: Path, mode: Mode) -> None:
        super().__init__(task_id, concurrency=mode)
        self.folder = folder
        if self.seed:  # a trial's own instance
            self._perhaps_die(f"setup of {task_id}")

    @tool
    def work(self) -> int:
        """Be there, meet whom there is to meet, die if it is to be; gives this trial's own number."""
        with (self.folder / "executions").open("a") as file:
            file.write(f"{self.state.trial_id}\n")
        guests = self.folder / "guests" / self.task_id
        if guests.exists():
            Meeting(self.folder / "place").attend(int(guests.read_text()))
        self._perhaps_die(self.task_id)
        return self.seed % 7 + 1

    def _perhaps_die(self, when: str) -> None:
        fate = self.folder / "fates" / when
        if fate.exists():
            how = fate.read_text()
            if how.startswith("once "):
                fate.unlink()
            die(how.removeprefix("once "))


def die(how: str) -> None:
    """End this process: by itself, or by the death of its worker or of the supervisor with the given pid."""
    if how == "exit":
        os._exit(1)
    whom = {"trial": os.getpid(), "worker": os.getppid()}
    os.kill(whom[how] if how in whom else int(how), signal.SIGKILL)
    threading.Event().wait(20)


def right(answer: Any, **_: Any) -> float:
    return float(isinstance(answer, dict) and answer.get("value", 1) > 0)


def build(graph: Graph, modes: Mapping[str, Mode], folder: Path) -> dict[str, Environment]:
    tasks = [
        TaskDefinition(
            name, name, [], right, "JSON", input_map={parent: InputRef(parent, "answer.value") for parent in parents}
        )
        for name, parents in graph.items()
    ]
    return build_environments(tasks, env_cls=lambda task_id: Node(task_id, folder, modes[task_id]))


def builder(graph: Graph, modes: Mapping[str, Mode] | Mode, folder: Path) -> Callable[[], dict[str, Environment]]:
    """What builds the graph's environments; ``modes`` of each task, or of all."""
    each = dict.fromkeys(graph, modes) if isinstance(modes, str) else dict(modes)
    return partial(build, graph, each, folder)


def solve(lab: Any, prompt: str) -> Any:
    """The right answer to every task."""
    numbers = [int(number) for number in re.findall(r"- \w+: (-?\d+)", prompt)]
    return {"value": (2 * sum(numbers) + 1) * lab.call("work")}


def executions(folder: Path) -> Counter[str]:
    """How often each trial was run."""
    path = folder / "executions"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def doom(folder: Path, task_id: str, how: str) -> None:
    """Let a task's next execution (``once ...``), or each, end by a death."""
    (folder / "fates").mkdir(exist_ok=True)
    (folder / "fates" / task_id).write_text(how)


def invite(folder: Path, guests: int, *tasks: str) -> None:
    """Let these tasks wait for each other until so many are there at once."""
    (folder / "guests").mkdir(exist_ok=True)
    for task_id in tasks:
        (folder / "guests" / task_id).write_text(str(guests))
