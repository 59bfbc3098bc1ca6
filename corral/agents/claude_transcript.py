"""What Claude Code reports (its ``stream-json`` events), as chat messages and usage. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from corral.agents.llm.messages import Message, text_of, tokens

Event = Mapping[str, Any]


def written(event: Event) -> list[Message]:
    """An event as chat messages: a part of the model's turn, or tools' results; nothing for others."""
    content = (event.get("message") or {}).get("content")
    if not isinstance(content, list):
        return []
    if event.get("type") == "assistant":
        return [_assistant(content)]
    return list(_results(content)) if event.get("type") == "user" else []


def _assistant(blocks: Iterable[Mapping[str, Any]]) -> Message:
    texts, calls = [], []
    for block in blocks:
        if block.get("type") == "text":
            texts.append(block["text"])
        elif block.get("type") == "tool_use":
            function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
            calls.append({"id": block["id"], "type": "function", "function": function})
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    return {**message, "tool_calls": calls} if calls else message


def _results(blocks: Iterable[Mapping[str, Any]]) -> Iterable[Message]:
    for block in blocks:
        if block.get("type") == "tool_result":
            result: Message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": ""}
            result["content"] = text_of(block.get("content"))
            yield {**result, "_is_error": True} if block.get("is_error") else result


def turn_of(event: Event) -> str | None:
    """The name of the model's turn that an event is a part of: one turn comes as several events.

    None for other events, and for the messages that the program makes up itself to tell of an error.
    """
    if event.get("type") != "assistant" or event.get("error"):
        return None
    message = event["message"]
    return None if message.get("model") == "<synthetic>" else str(message.get("id"))


def usage_in(result: Event, requests: int) -> dict[str, int | float]:
    """The whole run's usage, which only its result knows. Input counts the tokens from and into the cache too."""
    usage = result.get("usage") or {}
    plain, read, made = (
        int(usage.get(name) or 0) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    output = int(usage.get("output_tokens") or 0)
    counted = tokens(input=plain + read + made, output=output, cached=read, cache_write=made)
    cost = {"cost_usd": result["total_cost_usd"]} if result.get("total_cost_usd") else {}
    return {**counted, "requests": requests, **cost}
