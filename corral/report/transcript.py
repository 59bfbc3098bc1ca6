"""An agent's messages in one form, whatever its framework wrote. Pure.

Known are OpenAI's chat messages, Anthropic's content parts, and the short form of scripted agents; anything else is
shown as the JSON that it is. Nothing is left out and nothing raises: what is nested more deeply than Python can follow
is shown as the text that it is, or cut there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from corral.plain import plain
from corral.records import reread

ROLES = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a message asks for."""

    tool: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One message."""

    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    tool: str | None = None
    """Of a tool's answer: its name."""
    call_id: str | None = None
    error: str | None = None


@dataclass
class _Parts:
    """What the content of a message comes apart into."""

    texts: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    results: list[Turn] = field(default_factory=list)


def turns(messages: Iterable[Any]) -> list[Turn]:
    """The messages as turns, in order."""
    return [turn for message in reread(list(messages)) for turn in _turns_of(message)]


def _turns_of(message: Any) -> list[Turn]:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return [Turn("other", as_text(message))]
    role = message["role"]
    parts = _parts(message.get("content"))
    calls = [*parts.calls, *map(_call, _list(message.get("tool_calls")))]
    name = message.get("tool") or message.get("name")
    if role == "assistant" and isinstance(message.get("tool"), str):
        calls.append(Call(message["tool"], _arguments(message.get("arguments"))))
    if role == "tool":
        return [_answer(message, parts, name), *parts.results]
    own = [Turn(role, "\n".join(parts.texts), tuple(calls))] if parts.texts or calls or not parts.results else []
    return own + parts.results


def _answer(message: Mapping[str, Any], parts: _Parts, name: Any) -> Turn:
    error = message.get("error")
    text = "\n".join(parts.texts) if "content" in message else as_text(message.get("result"))
    return Turn(
        "tool",
        text if error is None or "content" in message else "",
        tool=str(name) if name else None,
        call_id=message.get("tool_call_id") if isinstance(message.get("tool_call_id"), str) else None,
        error=None if error is None else as_text(error),
    )


def _parts(content: Any) -> _Parts:
    parts = _Parts()
    for part in _contents(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            parts.calls.append(Call(str(part.get("name")), _arguments(part.get("input")), _id(part)))
        elif kind == "tool_result":
            inner = "\n".join(map(_text_of, _contents(part.get("content"))))
            error = inner if part.get("is_error") else None
            parts.results.append(Turn("tool", "" if error else inner, call_id=part.get("tool_use_id"), error=error))
        else:
            parts.texts.append(_text_of(part))
    return parts


def _contents(content: Any) -> list[Any]:
    return [part for part in (content if isinstance(content, list) else [content]) if part is not None]


def _text_of(part: Any) -> str:
    return part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else as_text(part)


def _call(call: Any) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    source = function if isinstance(function, dict) else call if isinstance(call, dict) else {}
    return Call(
        str(source.get("name") or source.get("tool") or function or "?"),
        _arguments(source.get("arguments", source.get("args"))),
        _id(call),
    )


def _id(call: Any) -> str | None:
    value = call.get("id") if isinstance(call, dict) else None
    return value if isinstance(value, str) else None


def _arguments(given: Any) -> dict[str, Any]:
    """Arguments as a mapping: models send them as JSON text, and sometimes as text that is no JSON."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            return {"arguments": given}
    if isinstance(given, dict):
        return given
    return {} if given is None else {"arguments": given}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """Text as it is, other JSON data as indented JSON."""
    return value if isinstance(value, str) else as_json(value, indent=2)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON data as JSON; cut at ``plain.MAX_DEPTH`` where it is nested too deeply to be written."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=False)
    except RecursionError:
        return json.dumps(plain(value), indent=indent, ensure_ascii=False)
