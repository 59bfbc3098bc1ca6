"""The scripted endpoint as OpenAI's chat completions: requests read strictly, answers as JSON and as a stream. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from corral.agents.llm.messages import text_of
from corral.agents.testing.scripts import Conversation, Result, Turn
from corral.agents.testing.tokens import Usage

OBSERVATION = "Observation: "
"""How a ReAct agent tells of a result."""


class BadRequest(ValueError):
    """The request breaks the protocol."""


def read(body: Mapping[str, Any]) -> Conversation:
    """A request. BadRequest if the real API would refuse it."""
    messages = body.get("messages")
    if not isinstance(body.get("model"), str) or not isinstance(messages, list) or not messages:
        raise BadRequest("model and messages are required")
    results = _results(messages)
    texts = [(message["role"], text_of(message.get("content"))) for message in messages]
    users = [text for role, text in texts if role == "user"]
    return Conversation(
        model=body["model"],
        prompt=users[0] if users else "",
        results=tuple(results),
        turns=sum(role == "assistant" for role, _ in texts),
        tools=tuple(tool["function"]["name"] for tool in body.get("tools") or ()),
        system="\n".join(text for role, text in texts if role == "system"),
        last=texts[-1][1],
    )


def _results(messages: list[Any]) -> list[Result]:
    """The tools' results in the order of the calls. Each call must have one, right after its turn."""
    results: list[Result] = []
    open_calls: list[str] = []
    for message in messages:
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise BadRequest(f"unknown role {role!r}")
        if role == "tool":
            if not open_calls or message.get("tool_call_id") != open_calls[0]:
                raise BadRequest("a tool message must answer the calls of the turn before, in their order here")
            open_calls.pop(0)
            results.append(Result.read(text_of(message["content"])))
            continue
        if open_calls:
            raise BadRequest(f"no tool message for the calls {open_calls}")
        for call in message.get("tool_calls") or ():
            if not isinstance(call["function"]["arguments"], str) or call.get("type") != "function":
                raise BadRequest("a call needs a type and arguments as text")
            open_calls.append(call["id"])
        text = text_of(message.get("content"))
        if role == "user" and text.startswith(OBSERVATION):
            results.append(Result.read(text.removeprefix(OBSERVATION)))
    if open_calls:
        raise BadRequest(f"no tool message for the calls {open_calls}")
    return results


def answer(conversation: Conversation, turn: Turn, usage: Usage, number: int) -> dict[str, Any]:
    """A whole answer."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}", "type": "function",
                "function": {"name": call.tool, "arguments": _arguments(call.raw, call.arguments)},
            }
            for index, call in enumerate(turn.calls)
        ]  # fmt: skip
    finish = "length" if turn.was_cut else "tool_calls" if turn.calls else "stop"
    return {
        "id": f"chatcmpl-{number}", "object": "chat.completion", "created": 0, "model": conversation.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": _usage(usage),
    }  # fmt: skip


def _arguments(raw: str | None, arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments) if raw is None else raw


def _usage(usage: Usage) -> dict[str, Any]:
    prompt = usage.fresh + usage.cached
    return {
        "prompt_tokens": prompt, "completion_tokens": usage.output, "total_tokens": prompt + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }  # fmt: skip


def stream(whole: Mapping[str, Any]) -> Iterator[str]:
    """The same answer as server-sent events."""
    head = {"id": whole["id"], "object": "chat.completion.chunk", "created": 0, "model": whole["model"]}
    choice = whole["choices"][0]
    message = dict(choice["message"])
    calls = [{"index": index, **call} for index, call in enumerate(message.pop("tool_calls", []))]
    for delta in ({"role": "assistant", "content": ""}, {"content": message["content"]}, {"tool_calls": calls}):
        yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    yield _event({**head, "choices": [], "usage": whole["usage"]})
    yield "data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def error(status: int, message: str, code: str | None) -> dict[str, Any]:
    """An error's body."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    return {"error": {"message": message, "type": kinds.get(status, "server_error"), "code": code, "param": None}}
