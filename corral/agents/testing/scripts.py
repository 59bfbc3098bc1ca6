"""What a scripted model says: a function from the conversation so far to its next turn. Pure.

Endpoints keep no state between requests, and neither does a script: it finds everything in the conversation, which is
what makes one endpoint good for any number of trials at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.agents.scripted import ToolFailed
from corral.agents.testing.faults import Fault


@dataclass(frozen=True)
class Call:
    """A tool call that the model makes. ``raw`` is sent in place of its arguments: broken JSON, for instance."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    raw: str | None = None


@dataclass(frozen=True)
class Turn:
    """One turn of the model: text, tool calls, or an answer."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    answer: str | None = None
    """Handed in as the agent that asks expects it: by a call of ``submit_answer``, or as text."""
    was_cut: bool = False
    """Whether it ends because of its token limit."""


@dataclass(frozen=True)
class Result:
    """What a tool gave; ``error`` where the call failed."""

    value: Any = None
    error: str | None = None

    @classmethod
    def read(cls, text: str, *, is_error: bool = False) -> Result:
        """From what an agent tells the model of it."""
        if is_error or text.startswith("Error: "):
            return cls(error=text.removeprefix("Error: "))
        try:
            return cls(json.JSONDecoder().raw_decode(text)[0])
        except ValueError:
            return cls(text)


@dataclass(frozen=True)
class Conversation:
    """A request, whatever protocol it came by."""

    model: str
    prompt: str
    """What the user said first."""
    results: tuple[Result, ...] = ()
    """Of all calls so far, in their order."""
    turns: int = 0
    """How many the model has had."""
    tools: tuple[str, ...] = ()
    system: str = ""
    last: str = ""
    """What the user, or a tool, said last."""


Script = Callable[[Conversation], Turn | Fault]
"""The next turn, or how the endpoint fails instead."""


class _Next(BaseException):
    """Leaves a policy at its first call that has no result yet; no ``except Exception`` of the policy holds it."""

    def __init__(self, calls: tuple[Call, ...]) -> None:
        super().__init__()
        self.calls = calls


class _Replay:
    """A policy's hands: they give the results that the conversation holds, one after the other."""

    def __init__(self, conversation: Conversation) -> None:
        self.tools = list(conversation.tools)
        self._results = list(conversation.results)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of the next call."""
        return self.call_all((tool, arguments))[0]

    def call_all(self, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
        """The results of several calls made in one turn."""
        if len(self._results) < len(calls):
            raise _Next(tuple(Call(tool, arguments) for tool, arguments in calls))
        values = []
        for tool, _ in calls:
            result = self._results.pop(0)
            if result.error is not None:
                raise ToolFailed(tool, result.error)
            values.append(result.value)
        return values


def following(policy: Callable[[Any, str], Any]) -> Script:
    """The script of a policy ``(lab, prompt) -> answer``, such as a ScriptedAgent's: it must be deterministic."""

    def script(conversation: Conversation) -> Turn:
        try:
            answer = policy(_Replay(conversation), conversation.prompt)
        except _Next as following:
            return Turn(calls=following.calls)
        return Turn(answer=answer if isinstance(answer, str) else json.dumps(answer))

    return script


def saying(*turns: Turn | Fault | str) -> Script:
    """The script that says these turns one after the other, and the last one for ever; a text is an answer."""
    said: Sequence[Turn | Fault] = [Turn(answer=turn) if isinstance(turn, str) else turn for turn in turns]

    def script(conversation: Conversation) -> Turn | Fault:
        return said[min(conversation.turns, len(said) - 1)]

    return script
