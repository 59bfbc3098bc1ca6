"""Tasks and the graph that their inputs form. Pure: no clock, files or processes.

A graph is a mapping from each task's id to the ids of its parents, whose outputs it needs. Every function over one
is iterative and linear, so a chain of thousands of tasks is fine.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from corral.errors import ConfigError, TaskGraphError
from corral.lean import dataclass
from corral.tools import Tool, as_tool

__all__ = [
    "Graph", "InputRef", "TaskDefinition", "check_graph", "check_unique", "connected_components", "missing_parents",
    "parse_answer", "task_output", "topological_order", "visible_outputs",
]  # fmt: skip

Graph = Mapping[str, Sequence[str]]
"""Task id -> the ids of its parents."""

HIDDEN = "_"
"""Names in an output that begin so are for environments only: no agent sees them."""


@dataclass(frozen=True, slots=True)
class InputRef:
    """A value taken from another task's output: ``{"answer": ..., "score": ...}`` and what its environment added.

    Dots in ``key`` reach into structured answers: ``answer.pH``, ``answer.ions.0`` (digits are list positions).
    """

    task_id: str
    key: str = "answer"

    def __post_init__(self) -> None:
        for name in ("task_id", "key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"InputRef.{name} must be text, not {value!r}")

    def resolve(self, outputs: Mapping[str, Any]) -> Any:
        """The value in ``outputs`` (task id -> output); ConfigError naming task, key and what there is."""
        if self.task_id not in outputs:
            raise ConfigError(f"there is no output of task {self.task_id!r}; there are {_list(outputs)}")
        value: Any = outputs[self.task_id]
        for part in self.key.split("."):
            value = self._step(value, part)
        return value

    def _step(self, value: Any, part: str) -> Any:
        if isinstance(value, Mapping):
            if part in value:
                return value[part]
            there = f"there are {_list(value)}"
        elif isinstance(value, list | tuple):
            if part.isascii() and part.isdigit() and int(part) < len(value):
                return value[int(part)]
            there = f"there are {len(value)} items, from 0"
        else:
            there = f"there is only {value!r:.80}"
        raise ConfigError(f"the output of task {self.task_id!r} has no {self.key!r}: at {part!r} {there}")


@dataclass(frozen=True)
class TaskDefinition:
    """One problem: its text, its tools and its scorer. ConfigError names the field that is wrong."""

    name: str
    """The task's id."""
    description: str
    tools: Sequence[Tool | Callable[..., Any] | str]
    """Tools, plain functions, or names that ``build_environments`` looks up in its ``available_tools``."""
    scoring_fn: Callable[..., float]
    """``scoring_fn(answer, **scoring_inputs) -> float``"""
    submission_format: str
    """What the answer must look like; part of the prompt."""
    scoring_inputs: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the scorer; an InputRef stands for a value from another task's output."""
    initial_input: Mapping[str, Any] = field(default_factory=dict)
    input_map: Mapping[str, InputRef] = field(default_factory=dict)
    """Inputs taken from other tasks' outputs: those tasks are this one's parents."""
    prompt_fn: Callable[[dict[str, Any]], Any] | None = None
    """Makes the prompt from the inputs; None for description, inputs and submission format."""
    setup_fn: Callable[[Any], Any] | None = None
    """Called with the environment before each trial."""
    resolve_answer: bool = True
    """Whether an answer that is JSON text of an object, array, number or boolean is parsed before it is scored."""

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"TaskDefinition.name must be text that is not empty, not {self.name!r}")
        self._check_texts()
        self._check_functions()
        self._check_inputs()
        given: Any = self.tools
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise self._wrong("tools", "a list of tools, functions or names", given)
        tools = tuple(t if isinstance(t, str) else self._tool(t) for t in given)
        object.__setattr__(self, "tools", tools)

    @property
    def parents(self) -> tuple[str, ...]:
        """The tasks whose outputs this one needs, each once, in the order of their first mention."""
        values = [*self.input_map.values(), *self.scoring_inputs.values()]
        return tuple(dict.fromkeys(v.task_id for v in values if isinstance(v, InputRef)))

    def inputs(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Copies of the initial inputs and of those taken from ``outputs``."""
        found = {**self.initial_input, **{name: ref.resolve(outputs) for name, ref in self.input_map.items()}}
        return copy.deepcopy(found)

    def score(self, answer: Any, outputs: Mapping[str, Any]) -> float:
        """What the scorer says of ``answer``; its inputs are copies."""
        inputs = {k: v.resolve(outputs) if isinstance(v, InputRef) else v for k, v in self.scoring_inputs.items()}
        return self.scoring_fn(answer, **copy.deepcopy(inputs))

    def prompt(self, inputs: dict[str, Any]) -> Any:
        """The prompt for these inputs."""
        if self.prompt_fn is not None:
            return self.prompt_fn(inputs)
        parts = [self.description]
        hidden = {name for name, ref in self.input_map.items() if ref.key.startswith(HIDDEN)}
        given = [f"- {name}: {_shown(value)}" for name, value in inputs.items() if name not in hidden]
        if given:
            parts.append("Given:\n" + "\n".join(given))
        parts.append(f"Answer format: {self.submission_format}")
        return "\n\n".join(parts)

    def _tool(self, value: Any) -> Tool:
        if not callable(value):
            raise self._wrong("tools", "a list of tools, functions or names", value)
        return as_tool(value)

    def _check_texts(self) -> None:
        for name in ("description", "submission_format"):
            if not isinstance(getattr(self, name), str):
                raise self._wrong(name, "text", getattr(self, name))
        if not isinstance(self.resolve_answer, bool):
            raise self._wrong("resolve_answer", "True or False", self.resolve_answer)

    def _check_functions(self) -> None:
        for name in ("scoring_fn", "prompt_fn", "setup_fn"):
            value = getattr(self, name)
            if not callable(value) and not (value is None and name != "scoring_fn"):
                raise self._wrong(name, "a function", value)

    def _check_inputs(self) -> None:
        for name in ("scoring_inputs", "initial_input", "input_map"):
            value = getattr(self, name)
            if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise self._wrong(name, "a mapping with text keys", value)
            object.__setattr__(self, name, dict(value))
        for key, value in self.input_map.items():
            if not isinstance(value, InputRef):
                raise self._wrong(f"input_map[{key!r}]", "an InputRef", value)
        both = sorted(self.initial_input.keys() & self.input_map.keys())
        if both:
            raise ConfigError(f"task {self.name!r}: {', '.join(both)} in initial_input and in input_map as well")

    def _wrong(self, field_name: str, wanted: str, value: object) -> ConfigError:
        return ConfigError(f"task {self.name!r}: {field_name} must be {wanted}, not {value!r:.80}")


def parse_answer(answer: Any) -> Any:
    """The value of an answer that is JSON text of an object, array, number or boolean; else the answer as it is.

    Text with a number that no float holds, such as 1e999, stays text: a record, which has no infinity, would lose it.
    """
    if not isinstance(answer, str):
        return answer
    try:
        value = json.loads(answer, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return answer
    return answer if value is None or isinstance(value, str) else value


def task_output(state: Mapping[str, Any]) -> dict[str, Any]:
    """What dependents get of a task whose trial ended in ``state`` (a result's state, as plain data)."""
    added = state.get("output") or {}
    return {**added, "answer": state.get("submitted_answer"), "score": state.get("score")}


def visible_outputs(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """``outputs`` (task id -> output) as agents may see them."""
    return {
        task_id: {name: value for name, value in output.items() if not str(name).startswith(HIDDEN)}
        if isinstance(output, Mapping)
        else output
        for task_id, output in outputs.items()
    }


def check_unique(ids: Iterable[str]) -> None:
    """Raise TaskGraphError naming every id that occurs twice."""
    seen: set[str] = set()
    twice = {i: None for i in ids if i in seen or seen.add(i)}  # type: ignore[func-returns-value]
    if twice:
        raise TaskGraphError(f"two tasks have the id {', '.join(map(repr, twice))}; ids must be unique")


def check_graph(parents: Graph) -> None:
    """Raise TaskGraphError for a parent that does not exist and for a cycle, named in full."""
    topological_order(parents)


def topological_order(parents: Graph) -> list[str]:
    """The ids with every parent before its dependents, otherwise in the given order."""
    for task_id, needed in parents.items():
        unknown = [p for p in needed if p not in parents]
        if unknown:
            raise TaskGraphError(f"task {task_id!r} needs {_list(unknown)}, which is no task here")
    order: dict[str, None] = {}
    path: dict[str, None] = {}
    for start in parents:
        if start in order:
            continue
        path[start] = None
        stack = [(start, iter(parents[start]))]
        while stack:
            task_id, rest = stack[-1]
            parent = next((p for p in rest if p not in order), None)
            if parent is None:
                stack.pop()
                del path[task_id]
                order[task_id] = None
            elif parent in path:
                raise _cycle(list(path), parent, list(parents))
            else:
                path[parent] = None
                stack.append((parent, iter(parents[parent])))
    return list(order)


def connected_components(parents: Graph) -> list[tuple[str, ...]]:
    """The groups of tasks that are linked in any direction; groups and members in the given order."""
    linked: dict[str, list[str]] = {task_id: list(needed) for task_id, needed in parents.items()}
    for task_id, needed in parents.items():
        for parent in needed:
            linked[parent].append(task_id)
    position = {task_id: i for i, task_id in enumerate(parents)}
    groups: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for start in parents:
        if start in seen:
            continue
        group, todo = [], [start]
        seen.add(start)
        while todo:
            task_id = todo.pop()
            group.append(task_id)
            new = [other for other in dict.fromkeys(linked[task_id]) if other not in seen]
            seen.update(new)
            todo.extend(new)
        groups.append(tuple(sorted(group, key=position.__getitem__)))
    return groups


def missing_parents(parents: Graph, selection: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """For each selected task that needs tasks outside the selection: which, direct parents only."""
    chosen = dict.fromkeys(selection)
    left_out = {t: tuple(p for p in dict.fromkeys(parents[t]) if p not in chosen) for t in chosen}
    return {task_id: needed for task_id, needed in left_out.items() if needed}


def _cycle(path: list[str], parent: str, order: list[str]) -> TaskGraphError:
    """The cycle from its first task in the given order, upstream to downstream: ``a -> b -> c -> a``."""
    position = {task_id: i for i, task_id in enumerate(order)}
    loop = path[path.index(parent) :][::-1]
    first = loop.index(min(loop, key=position.__getitem__))
    loop = loop[first:] + loop[:first]
    return TaskGraphError(f"the tasks depend on each other in a cycle: {' -> '.join([*loop, loop[0]])}")


def _list(names: Iterable[Any]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (" ..." if len(shown) > 20 else "") if shown else "none"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is more than a float can hold")
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
