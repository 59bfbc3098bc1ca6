"""What is said to a model and by it, whoever serves it.

A conversation is a list of messages as OpenAI's chat completions write them: roles ``system``, ``user``, ``assistant``
(with ``tool_calls``) and ``tool`` (with ``tool_call_id``). It is plain data, and is kept as the trial's transcript.
Keys that begin with ``_`` are notes for one protocol and are not sent to others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

NATIVE = "_native"
"""An assistant message's content as its own protocol wrote it: thinking must go back to its model unchanged."""


@dataclass(frozen=True)
class ToolRequest:
    """A model wants a tool called. ``problem`` says why its arguments are no JSON object, where they are none."""

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Reply:
    """One turn of a model."""

    message: Message
    text: str
    calls: tuple[ToolRequest, ...] = ()
    usage: Mapping[str, int | float] = field(default_factory=dict)
    was_cut: bool = False
    """Whether it ended because of its token limit."""


class MalformedReply(ValueError):
    """An endpoint answered with something that is no reply."""


def tokens(*, input: int, output: int, cached: int = 0, cache_write: int = 0) -> dict[str, int | float]:
    """One answer's usage. ``input`` counts all tokens that were read, those from and into the cache included."""
    return {
        "requests": 1,
        "input_tokens": input,
        "output_tokens": output,
        "total_tokens": input + output,
        "cached_input_tokens": cached,
        "cache_write_tokens": cache_write,
    }


MAX_DEPTH = 100
"""Levels of nesting in a model's arguments: what is deeper is a model that repeats itself, and breaks who reads it."""


def read_json(text: str, *, strict: bool = True) -> Any:
    """JSON as a model wrote it. ValueError where it is none."""
    try:
        value = json.loads(text, strict=strict)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    check_depth(value)
    return value


TOO_DEEP = "it is nested too deeply"


def check_depth(value: object, left: int = MAX_DEPTH) -> None:
    """ValueError where data is nested deeper than ``left`` levels."""
    if isinstance(value, dict | list | tuple | set):
        if left == 0:
            raise ValueError(TOO_DEEP)
        for item in value.values() if isinstance(value, dict) else value:
            check_depth(item, left - 1)


def read_arguments(text: object) -> tuple[dict[str, Any], str | None]:
    """A tool call's arguments, and what is wrong with them: models write broken JSON at times."""
    if isinstance(text, Mapping):
        return dict(text), None
    if text is None or text == "":
        return {}, None
    try:
        value = read_json(str(text))
    except ValueError as error:
        return {}, f"the arguments are no valid JSON ({error})"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, not {type(value).__name__}"
    return value, None


def tool_message(call: ToolRequest, content: str, *, is_error: bool = False) -> Message:
    """A tool's result, for the model that asked for it."""
    message: Message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
    if is_error:
        message["_is_error"] = True
    return message


def public(message: Mapping[str, Any]) -> Message:
    """A message without notes."""
    return {key: value for key, value in message.items() if not key.startswith("_")}


def prompt_messages(prompt: object) -> list[Message]:
    """A task's prompt as messages: text, a list of message parts, or a list of messages."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, str):
        return [{"role": "user", "content": str(prompt)}]
    if all(isinstance(item, Mapping) and "role" in item for item in prompt):
        return [dict(item) for item in prompt]
    return [{"role": "user", "content": [dict(p) if isinstance(p, Mapping) else text_part(p) for p in prompt]}]


def text_part(text: object) -> dict[str, Any]:
    """A text as a message part."""
    return {"type": "text", "text": str(text)}


def text_of(content: object) -> str:
    """The text in a message's content."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: Iterable[Any] = content if isinstance(content, list) else [content]
    texts = [part.get("text", "") if isinstance(part, Mapping) else str(part) for part in parts]
    return "\n".join(text for text in texts if text)
