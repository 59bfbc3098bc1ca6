"""Bodies as the API reference shows them."""

from __future__ import annotations

from typing import Any

import pytest

from corral.agents.llm import anthropic
from corral.agents.llm.endpoints import Endpoint
from corral.agents.llm.messages import MalformedReply, ToolRequest, tool_message

HERE = Endpoint("anthropic/m", "m", "anthropic", "http://127.0.0.1/v1", "k")

THINKING = {"type": "thinking", "thinking": "hm", "signature": "s=="}
CALLED = {
    "id": "msg_01", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
    "content": [THINKING, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky"}},
                {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {}}],
    "usage": {"input_tokens": 50, "cache_creation_input_tokens": 248, "cache_read_input_tokens": 1800,
              "output_tokens": 503},
}  # fmt: skip


def _body(messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    return anthropic.request(HERE, messages, [], options)[2]


def test_the_input_is_the_sum_of_its_three_parts() -> None:
    assert anthropic.reply(CALLED).usage == {
        "requests": 1, "input_tokens": 2098, "output_tokens": 503, "total_tokens": 2601, "cached_input_tokens": 1800,
        "cache_write_tokens": 248,
    }  # fmt: skip


def test_calls_and_text() -> None:
    reply = anthropic.reply(CALLED)
    assert reply.text == "I look."
    assert reply.calls == (ToolRequest("toolu_1", "look", {"at": "sky"}), ToolRequest("toolu_2", "add"))


def test_thinking_goes_back_unchanged_and_results_of_a_turn_into_one_message() -> None:
    reply = anthropic.reply(CALLED)
    results = [tool_message(reply.calls[0], "blue"), tool_message(reply.calls[1], "no", is_error=True)]
    turns = _body([{"role": "user", "content": "go"}, reply.message, *results])["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert turns[1]["content"] == CALLED["content"]
    assert turns[2]["content"] == [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True,
         "cache_control": {"type": "ephemeral"}},
    ]  # fmt: skip


def test_the_system_message_stands_apart_and_max_tokens_is_always_there() -> None:
    body = _body([{"role": "system", "content": "be good"}, {"role": "user", "content": "go"}], temperature=None)
    assert body["system"][0]["text"] == "be good"
    assert body["max_tokens"] == anthropic.MAX_TOKENS
    assert "temperature" not in body
    assert _body([{"role": "user", "content": "go"}], max_tokens=9)["max_tokens"] == 9


def test_tools_and_headers() -> None:
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}
    url, headers, body = anthropic.request(HERE, [{"role": "user", "content": "go"}], [tool], {})
    assert url == "http://127.0.0.1/v1/messages"
    assert headers == {"anthropic-version": "2023-06-01", "x-api-key": "k"}
    assert body["tools"] == [{"name": "t", "description": "d", "input_schema": {"type": "object"}}]


def test_an_empty_turn_of_the_model_is_left_out() -> None:
    user = {"role": "user", "content": "go"}
    turns = _body([user, {"role": "assistant", "content": ""}, {"role": "user", "content": "well?"}])["messages"]
    assert [turn["role"] for turn in turns] == ["user"]


def test_images_change_their_form() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    block = _body([{"role": "user", "content": [image]}])["messages"][0]["content"][0]
    assert block["source"] == {"type": "base64", "media_type": "image/png", "data": "QUJD"}


@pytest.mark.parametrize("body", [{}, {"content": None}, {"content": [{"type": "text"}]}, "x", None, {"content": [3]}])
def test_what_is_no_message(body: Any) -> None:
    with pytest.raises(MalformedReply, match="no message"):
        anthropic.reply(body)


def test_text_of_white_space_alone_is_not_sent() -> None:
    blank = {"type": "text", "text": "\n\n"}
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    plain = {"role": "assistant", "content": "\n\n", "tool_calls": [
        {"id": "t", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}  # fmt: skip
    native = anthropic.reply({"content": [THINKING, blank, use]}).message
    results = tool_message(ToolRequest("t", "look"), "5")
    for message, sent in ((plain, [use]), (native, [THINKING, use])):
        assert _body([message, results])["messages"][0] == {"role": "assistant", "content": sent}
