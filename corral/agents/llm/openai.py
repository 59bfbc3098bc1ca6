"""OpenAI's chat completions, as data: what to send, and what an answer says. Pure.

Source: OpenAI API reference, "Create chat completion". ``usage.prompt_tokens`` includes the tokens read from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.agents.llm.endpoints import Endpoint
from corral.agents.llm.messages import (
    MalformedReply,
    Message,
    Reply,
    ToolRequest,
    public,
    read_arguments,
    text_of,
    tokens,
)


def request(
    endpoint: Endpoint, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Address, headers and body."""
    body: dict[str, Any] = {"model": endpoint.model, "messages": [public(message) for message in messages]}
    if tools:
        body["tools"] = [dict(tool) for tool in tools]
    for name, value in options.items():
        if value is not None:
            # OpenAI's newer models refuse max_tokens; other servers know nothing else.
            body["max_completion_tokens" if name == "max_tokens" and endpoint.is_official else name] = value
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    return f"{endpoint.base}/chat/completions", headers, body


def reply(body: Any) -> Reply:
    """What an answer says. MalformedReply if it is none."""
    try:
        choice = body["choices"][0]
        said = choice["message"]
        content = said.get("content") or said.get("refusal") or ""
        text = text_of(content) if isinstance(content, str | list) else str(content)
        calls = tuple(_call(item, number) for number, item in enumerate(said.get("tool_calls") or ()))
        usage = _usage(body.get("usage") or {})
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise MalformedReply(f"no chat completion: {type(error).__name__}: {error}") from None
    # In parts, as some endpoints write it, it goes back as it came: a model's thinking may be among them.
    message: Message = {"role": "assistant", "content": content if isinstance(content, list) else text}
    if calls:
        message["tool_calls"] = [_written(call, item) for call, item in zip(calls, said["tool_calls"], strict=True)]
    return Reply(message, text, calls, usage, was_cut=choice.get("finish_reason") == "length")


def _call(item: Mapping[str, Any], number: int) -> ToolRequest:
    function = item["function"]
    arguments, problem = read_arguments(function.get("arguments"))
    return ToolRequest(item.get("id") or f"call_{number}", str(function["name"]), arguments, problem)


def _written(call: ToolRequest, item: Mapping[str, Any]) -> dict[str, Any]:
    """The call as it goes back to the model: some servers leave out its id or type, and want them all the same."""
    text = item["function"].get("arguments")
    function = {"name": call.name, "arguments": text if isinstance(text, str) and not call.problem else _json(call)}
    return {"id": call.id, "type": "function", "function": function}


def _json(call: ToolRequest) -> str:
    import json

    return json.dumps(call.arguments, ensure_ascii=False)


def _usage(usage: Mapping[str, Any]) -> dict[str, int | float]:
    details = usage.get("prompt_tokens_details") or {}
    return tokens(
        input=int(usage.get("prompt_tokens") or 0),
        output=int(usage.get("completion_tokens") or 0),
        cached=int(details.get("cached_tokens") or 0),
    )
