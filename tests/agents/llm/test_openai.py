"""Bodies as the API reference shows them."""

from __future__ import annotations

from typing import Any

import pytest

from corral.agents.llm import openai
from corral.agents.llm.endpoints import Endpoint
from corral.agents.llm.messages import MalformedReply, ToolRequest

HERE = Endpoint("openai/m", "m", "openai", "http://127.0.0.1/v1", "k")

CALLED = {
    "id": "chatcmpl-abc123", "object": "chat.completion", "created": 1699896916, "model": "gpt-4o-mini",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": "{\n\"x\": 1}"}},
        {"id": "call_b", "type": "function", "function": {"name": "look", "arguments": "{\"x\": "}},
    ]}, "logprobs": None, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306,
              "prompt_tokens_details": {"cached_tokens": 1920},
              "completion_tokens_details": {"reasoning_tokens": 0}},
}  # fmt: skip


def test_calls_keep_their_order_and_broken_arguments_are_a_problem() -> None:
    reply = openai.reply(CALLED)
    first, second = reply.calls
    assert first == ToolRequest("call_a", "add", {"x": 1})
    assert (second.name, second.arguments) == ("look", {})
    assert "no valid JSON" in str(second.problem)


def test_cached_tokens_are_a_part_of_the_input() -> None:
    assert openai.reply(CALLED).usage == {
        "requests": 1, "input_tokens": 2006, "output_tokens": 300, "total_tokens": 2306, "cached_input_tokens": 1920,
        "cache_write_tokens": 0,
    }  # fmt: skip


def test_the_turn_can_be_sent_back() -> None:
    calls = openai.reply(CALLED).message["tool_calls"]
    assert [call["id"] for call in calls] == ["call_a", "call_b"]
    assert [call["function"]["arguments"] for call in calls] == ['{\n"x": 1}', "{}"]


def test_a_cut_reply_and_a_refusal() -> None:
    choice = {"message": {"role": "assistant", "content": "so f"}, "finish_reason": "length"}
    assert openai.reply({"choices": [choice]}).was_cut
    choice = {"message": {"role": "assistant", "content": None, "refusal": "I can't."}, "finish_reason": "stop"}
    assert openai.reply({"choices": [choice]}).text == "I can't."


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"message": None}]},
        [],
        "x",
        None,
        {"choices": [{}]},
        {"error": {"message": "no"}},
    ],
)
def test_what_is_no_completion(body: Any) -> None:
    with pytest.raises(MalformedReply, match="no chat completion"):
        openai.reply(body)


def test_a_request() -> None:
    message = {"role": "tool", "tool_call_id": "c", "content": "x", "_is_error": True}
    url, headers, body = openai.request(HERE, [message], [], {"temperature": None, "max_tokens": 5})
    assert url == "http://127.0.0.1/v1/chat/completions"
    assert headers == {"authorization": "Bearer k"}
    assert body == {"model": "m", "max_tokens": 5, "messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}]}


def test_openais_own_address_gets_its_newer_name_for_the_limit() -> None:
    endpoint = Endpoint("openai/m", "m", "openai", "https://api.openai.com/v1", "k", is_official=True)
    assert openai.request(endpoint, [], [], {"max_tokens": 5})[2]["max_completion_tokens"] == 5


def test_content_in_parts_is_read_and_goes_back_as_it_came() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "Answer: 42"}]
    reply = openai.reply({"choices": [{"message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}]})
    assert reply.text == "Answer: 42"
    assert openai.request(HERE, [reply.message], [], {})[2]["messages"] == [{"role": "assistant", "content": parts}]


DEEP = '{"a":' * 3000


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 200 + "1" + "}" * 200])
def test_arguments_that_are_nested_too_deeply_are_told_to_the_model(text: str) -> None:
    item = {"id": "c", "function": {"name": "look", "arguments": text}}
    (call,) = openai.reply({"choices": [{"message": {"content": None, "tool_calls": [item]}}]}).calls
    assert (call.arguments, call.problem) == ({}, "the arguments are no valid JSON (it is nested too deeply)")


def test_a_usage_that_is_no_number_is_no_completion() -> None:
    with pytest.raises(MalformedReply, match="OverflowError"):
        openai.reply({"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": float("inf")}})
