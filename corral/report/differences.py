"""Where two reports that should be equal differ: trial by trial. Pure.

For the ``stable`` reports of two runs of one plan (``corral.report.files``), which are equal when nothing is found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from corral.report.text import shortened

VALUE_LIMIT = 80
"""Characters shown of a value."""

_GONE = object()
"""Stands for what one of the two does not have."""


@dataclass(frozen=True)
class Differing:
    """A trial, a task or the run as a whole, and the first of its values that are not the same in both reports."""

    what: str
    """``TASK#INDEX``, ``task TASK`` or ``the run``."""
    field: str
    """Where the value stands: ``state.tool_calls[2].result``."""
    here: str
    there: str
    also: tuple[str, ...] = ()
    """Its other fields that differ."""


def differing(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[Differing]:
    """The trials that differ, in the order of the plan; if there are none, the tasks, or the run's own figures."""
    tasks, others = here.get("tasks") or {}, there.get("tasks") or {}
    found = False
    for task_id in {**tasks, **others}:
        pair = _by_key(task_id, tasks), _by_key(task_id, others)
        for name in {**pair[0], **pair[1]}:
            for one in _differ(name, pair[0].get(name, _GONE), pair[1].get(name, _GONE)):
                found = True
                yield one
    if not found:
        for task_id in {**tasks, **others}:
            yield from _differ(f"task {task_id}", tasks.get(task_id, _GONE), others.get(task_id, _GONE))
        yield from _differ("the run", {**here, "tasks": None}, {**there, "tasks": None})


def _by_key(task_id: str, tasks: Mapping[str, Any]) -> dict[str, Any]:
    trials = (tasks.get(task_id) or {}).get("trials") or ()
    return {f"{task_id}#{trial.get('trial_index')}": trial for trial in trials}


def _differ(what: str, here: Any, there: Any) -> Iterator[Differing]:
    places = list(_places(here, there, ""))
    if places:
        first, one, other = places[0]
        also = dict.fromkeys(_top(field) for field, _, _ in places)
        also.pop(_top(first))
        yield Differing(what, first, _shown(one), _shown(other), tuple(also))


def _top(field: str) -> str:
    return field.partition(".")[0].partition("[")[0]


def _places(here: Any, there: Any, field: str) -> Iterator[tuple[str, Any, Any]]:
    """Every place where one has another value than the other. ``1`` and ``1.0`` are not the same."""
    if isinstance(here, dict) and isinstance(there, dict):
        for key in {**here, **there}:
            inside = f"{field}.{key}" if field else str(key)
            yield from _places(here.get(key, _GONE), there.get(key, _GONE), inside)
    elif isinstance(here, list) and isinstance(there, list):
        for index in range(max(len(here), len(there))):
            one, other = (items[index] if index < len(items) else _GONE for items in (here, there))
            yield from _places(one, other, f"{field}[{index}]")
    elif _written(here) != _written(there):
        yield field, here, there


def _written(value: Any) -> str:
    """As a report has it: there NaN is as good as NaN."""
    return "nothing" if value is _GONE else json.dumps(value, ensure_ascii=False)


def _shown(value: Any) -> str:
    return shortened(_written(value), VALUE_LIMIT)
