"""The tool calls of a trial as they pass: all are counted, and of what they hold a bounded part is kept. Pure.

Guarantees: what a trial's calls take, in memory and in its record, has a limit, whatever its tools give. The first
calls are kept as they are; of those for which there is no room a few words remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from corral.types import ToolCall

CALLS_KEPT = 1000
"""Tool calls of one trial that who drives it remembers, for the record of an attempt that is lost."""
ROOM = 16 * 2**20
"""What the kept calls of one trial may hold together, in characters: some times what the largest model reads."""
BRIEF = 200
"""Characters that any value may have, room or not."""

Statistics = dict[str, dict[str, int]]
"""By tool: its ``calls``, and those that were ``errors``."""


class CallHistory:
    """What passed of one trial."""

    def __init__(self) -> None:
        self.kept: list[ToolCall] = []
        """The first CALLS_KEPT."""
        self.made = 0
        """How many there were."""
        self.statistics: Statistics = {}
        self._room = Room()

    def passed(self, tool: str, success: bool) -> bool:
        """One more call was answered. Whether to ``keep`` it."""
        self.made += 1
        count(self.statistics, tool, success)
        return len(self.kept) < CALLS_KEPT

    def keep(self, call: ToolCall) -> None:
        """Remember the call that passed."""
        self.kept.append(self._room.fit(call))

    def add(self, call: ToolCall) -> None:
        """Both."""
        if self.passed(call.tool, call.success):
            self.keep(call)

    @classmethod
    def told(cls, calls: Iterable[ToolCall], statistics: Mapping[str, Any] | None = None) -> CallHistory:
        """What somebody else saw pass. ``statistics``: where they tell of more calls than they kept."""
        history = cls()
        for call in calls:
            history.add(call)
        if statistics is not None:
            history.statistics = {tool: dict(counts) for tool, counts in statistics.items()}
            history.made = sum(counts["calls"] for counts in history.statistics.values())
        return history


def count(statistics: Statistics, tool: str, success: bool) -> None:
    """Count a call."""
    if (counts := statistics.get(tool)) is None:
        counts = statistics[tool] = {"calls": 0, "errors": 0}
    counts["calls"] += 1
    if not success:
        counts["errors"] += 1


class Room:
    """What is left of ROOM."""

    def __init__(self) -> None:
        self._left = ROOM

    def fit(self, call: ToolCall) -> ToolCall:
        """The call as it is, where there is room for that; else in a few words."""
        size = _size(call.arguments, self._left) + _size(call.result, self._left) + len(call.error or "")
        if size <= self._left:
            self._left -= size
            return call
        return replace(
            call,
            arguments=_brief_arguments(call.arguments),
            result=_brief(call.result),
            error=call.error if call.error is None or len(call.error) <= BRIEF else f"{call.error[:BRIEF]} ...",
        )


def _size(value: Any, most: int) -> int:
    """About the characters of ``value`` as JSON; some number above ``most`` where they are more."""
    kind = type(value)  # data is of no other types than these; it is measured with every call
    if kind is not dict and kind is not list:
        return len(value) + 4 if kind is str else 4
    size, rest = 4, [value]
    while rest and size <= most:
        inside = rest.pop()
        if type(inside) is dict:
            for name in inside:
                size += len(name) if type(name) is str else 4
            inside = inside.values()
        for item in inside:
            kind = type(item)
            size += len(item) + 4 if kind is str else 4
            if kind is dict or kind is list:
                rest.append(item)
    return size


def _brief(value: Any) -> Any:
    if _size(value, BRIEF) <= BRIEF:
        return value
    if isinstance(value, str):
        return f"<text of {len(value)} characters>"
    return f"<object of {len(value)} names>" if isinstance(value, dict) else f"<list of {len(value)} items>"


def _brief_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    short = {name: _brief(value) for name, value in arguments.items()}
    return short if _size(short, 10 * BRIEF) <= 10 * BRIEF else {"(not kept)": _brief(arguments)}
