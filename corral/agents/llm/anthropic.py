"""Anthropic's messages, as data: what to send, and what an answer says. Pure.

Source: Anthropic API reference, "Messages". ``usage.input_tokens`` counts only what was neither read from the cache
(``cache_read_input_tokens``) nor written into it (``cache_creation_input_tokens``): the input is the sum of the three.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.agents.llm.endpoints import Endpoint
from corral.agents.llm.messages import (
    NATIVE,
    MalformedReply,
    Message,
    Reply,
    ToolRequest,
    read_arguments,
    text_of,
    text_part,
    tokens,
)

VERSION = "2023-06-01"
MAX_TOKENS = 8192
"""Tokens of an answer where the user names no number: the API wants one."""

_DATA_URL = re.compile(r"data:(?P<type>[\w/+.-]+);base64,(?P<data>.*)", re.DOTALL)
_CACHE_HERE = {"type": "ephemeral"}

Block = dict[str, Any]


def request(
    endpoint: Endpoint, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Address, headers and body. The conversation so far is marked for the cache: the next turn repeats it."""
    system = "\n\n".join(text_of(message["content"]) for message in messages if message["role"] == "system")
    turns = _turns(message for message in messages if message["role"] != "system")
    if turns:
        turns[-1]["content"][-1] = {**turns[-1]["content"][-1], "cache_control": _CACHE_HERE}
    body: dict[str, Any] = {"model": endpoint.model, "max_tokens": MAX_TOKENS, "messages": turns}
    if system:
        body["system"] = [{**text_part(system), "cache_control": _CACHE_HERE}]
    if tools:
        body["tools"] = [_tool(tool["function"]) for tool in tools]
    body.update({name: value for name, value in options.items() if value is not None})
    headers = {"anthropic-version": VERSION}
    if endpoint.key:
        headers["x-api-key"] = endpoint.key
    return f"{endpoint.base}/messages", headers, body


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    empty = {"type": "object", "properties": {}}
    tool = {"name": function["name"], "input_schema": function.get("parameters") or empty}
    return {**tool, "description": function["description"]} if function.get("description") else tool


def _turns(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Turns of user and model, strictly in alternation: all results of one turn's calls belong into one message."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[Block]:
    if NATIVE in message:
        return [dict(block) for block in message[NATIVE] if _says_something(block)]
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return [{**result, "is_error": True}] if message.get("_is_error") else [result]
    content = message.get("content")
    parts = [text_part(content)] if isinstance(content, str) else list(content or ())
    blocks = [_part(part) for part in parts if _says_something(part)]
    for call in message.get("tool_calls") or ():
        arguments, _ = read_arguments(call["function"]["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
    return blocks


def _says_something(part: Mapping[str, Any]) -> bool:
    """The API refuses text that is nothing but white space, its own model's too."""
    return part.get("type") != "text" or bool(str(part.get("text") or "").strip())


def _part(part: Mapping[str, Any]) -> Block:
    """A part of a message; an image in OpenAI's form becomes one in Anthropic's."""
    if part.get("type") != "image_url":
        return dict(part)
    url = part["image_url"]["url"]
    if (data := _DATA_URL.fullmatch(url)) is not None:
        source = {"type": "base64", "media_type": data["type"], "data": data["data"]}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": source}


def reply(body: Any) -> Reply:
    """What an answer says. MalformedReply if it is none."""
    try:
        blocks = [dict(block) for block in body["content"]]
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        calls = tuple(_call(block) for block in blocks if block["type"] == "tool_use")
        usage = _usage(body.get("usage") or {})
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"no message: {type(error).__name__}: {error}") from None
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [_written(call) for call in calls]
    if any(block["type"] not in ("text", "tool_use") for block in blocks):
        message[NATIVE] = blocks
    return Reply(message, text, calls, usage, was_cut=body.get("stop_reason") == "max_tokens")


def _call(block: Block) -> ToolRequest:
    arguments, problem = read_arguments(block.get("input"))
    return ToolRequest(str(block["id"]), str(block["name"]), arguments, problem)


def _written(call: ToolRequest) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def _usage(usage: Mapping[str, Any]) -> dict[str, int | float]:
    plain, read, written = (
        int(usage.get(name) or 0) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    output = int(usage.get("output_tokens") or 0)
    return tokens(input=plain + read + written, output=output, cached=read, cache_write=written)
