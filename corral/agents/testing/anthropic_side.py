"""The scripted endpoint as Anthropic's messages: requests read strictly, answers as JSON and as a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corral.agents.llm.messages import text_of
from corral.agents.testing.openai_side import OBSERVATION, BadRequest
from corral.agents.testing.scripts import Call, Conversation, Result, Turn
from corral.agents.testing.tokens import Usage

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 402: "billing_error", 404: "not_found_error",
    429: "rate_limit_error", 529: "overloaded_error",
}  # fmt: skip
"""The names of errors, by their status."""


def read(body: Mapping[str, Any]) -> Conversation:
    """A request. BadRequest if the real API would refuse it."""
    messages = body.get("messages")
    if not isinstance(body.get("model"), str) or not isinstance(messages, list) or not messages:
        raise BadRequest("model and messages are required")
    if not isinstance(body.get("max_tokens"), int):
        raise BadRequest("max_tokens: Field required")
    results = _results(messages)
    users = [text_of(_texts(message)) for message in messages if message["role"] == "user"]
    return Conversation(
        model=body["model"],
        prompt=users[0] if users else "",
        results=tuple(results),
        turns=sum(message["role"] == "assistant" for message in messages),
        tools=tuple(tool["name"] for tool in body.get("tools") or ()),
        system=text_of(body.get("system")),
        last=users[-1] if users else "",
    )


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _texts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [block for block in _blocks(message) if block.get("type") == "text"]


def _results(messages: list[Any]) -> list[Result]:
    """The tools' results in the order of the calls. The turn after a call must hold the result of each."""
    results: list[Result] = []
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            raise BadRequest(f"messages.{number}: unknown role {message.get('role')!r}")
        blocks = _blocks(message)
        if not blocks:
            raise BadRequest(f"messages.{number}: empty content")
        given = {block["tool_use_id"]: block for block in blocks if block.get("type") == "tool_result"}
        if set(given) != set(open_calls):
            raise BadRequest(f"messages.{number}: tool_use ids {open_calls} without tool_result blocks, or the reverse")
        results += [_result(given[call]) for call in open_calls]
        open_calls = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        texts = [block["text"] for block in _texts(message)]
        if "" in texts:
            raise BadRequest(f"messages.{number}: text content blocks must be non-empty")
        if message["role"] == "user":
            results += [Result.read(t.removeprefix(OBSERVATION)) for t in texts if t.startswith(OBSERVATION)]
    if open_calls:
        raise BadRequest(f"tool_use ids {open_calls} without tool_result blocks")
    return results


def _result(block: Mapping[str, Any]) -> Result:
    return Result.read(text_of(block.get("content")), is_error=bool(block.get("is_error")))


def answer(conversation: Conversation, turn: Turn, usage: Usage, number: int) -> dict[str, Any]:
    """A whole answer."""
    content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    content += [_tool_use(call, f"toolu_{number}_{index}") for index, call in enumerate(turn.calls)]
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": conversation.model,
        "content": content, "stop_reason": _stop_reason(turn), "stop_sequence": None,
        "usage": {
            "input_tokens": usage.fresh, "output_tokens": usage.output, "cache_read_input_tokens": usage.cached,
            "cache_creation_input_tokens": 0,
        },
    }  # fmt: skip


def _tool_use(call: Call, id: str) -> dict[str, Any]:
    given: Any = call.arguments if call.raw is None else call.raw
    return {"type": "tool_use", "id": id, "name": call.tool, "input": given}


def stream(whole: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as server-sent events."""
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield _event("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": _json(block["input"])}
        yield _event("content_block_start", index=index, content_block=empty)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=whole["usage"])
    yield _event("message_stop")


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


def error(status: int, message: str, code: str | None) -> dict[str, Any]:
    """An error's body."""
    kind = code or KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _stop_reason(turn: Turn) -> str:
    return "max_tokens" if turn.was_cut else "tool_use" if turn.calls else "end_turn"
