"""CHILD SIDE: a diamond of tasks. ``top`` gives a number; ``left`` adds 1, ``right`` doubles; ``end`` sums both up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from corral import Environment, InputRef, TaskDefinition, build_environments


def is_right(answer: Any, expected: float) -> float:
    return float(isinstance(answer, dict) and answer.get("value") == expected)


def build_diamond(mode: Literal["thread", "process", "serial"]) -> Callable[[], dict[str, Environment]]:
    def define(name: str, what: str, expected: int, **inputs: InputRef) -> TaskDefinition:
        return TaskDefinition(name, what, [], is_right, "JSON", {"expected": expected}, input_map=inputs)

    def build() -> dict[str, Environment]:
        tasks = [
            define("end", "sum", 31, a=InputRef("left", "answer.value"), b=InputRef("right", "answer.value")),
            define("left", "add 1", 11, a=InputRef("top", "answer.value")),
            define("right", "double", 20, a=InputRef("top", "answer.value")),
            define("top", "ten", 10),
        ]
        return build_environments(tasks, concurrency=mode)

    return build


def solve(lab: Any, prompt: str) -> Any:
    """The right answer to each of the four."""
    numbers = [int(number) for number in re.findall(r"- \w+: (-?\d+)", prompt)]
    if prompt.startswith("ten"):
        return '{"value": 10}'
    if prompt.startswith("add 1"):
        return {"value": numbers[0] + 1}
    return {"value": numbers[0] * 2 if prompt.startswith("double") else sum(numbers)}
