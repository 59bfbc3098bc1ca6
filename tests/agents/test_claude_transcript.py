"""Events as the program writes them (Claude Code 2.1)."""

from __future__ import annotations

from typing import Any

import pytest

from corral.agents.claude_transcript import turn_of, usage_in, written

CALL = {"type": "tool_use", "id": "toolu_1", "name": "mcp__corral__weigh", "input": {"body": "a"}}


def _assistant(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "msg_1", "model": "m", "content": list(blocks)}, **more}


def test_a_turn_with_text_thought_and_call() -> None:
    blocks = ({"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I weigh."}, CALL)
    (message,) = written(_assistant(*blocks))
    assert (message["role"], message["content"]) == ("assistant", "I weigh.")
    assert message["tool_calls"][0]["function"] == {"name": "mcp__corral__weigh", "arguments": '{"body": "a"}'}


def test_results_and_failed_ones() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "11"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "KeyError: 'x'", "is_error": True},
        {"type": "text", "text": "a reminder"},
    ]
    assert written({"type": "user", "message": {"role": "user", "content": blocks}}) == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "11"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "KeyError: 'x'", "_is_error": True},
    ]


@pytest.mark.parametrize("event", [{"type": "system", "subtype": "init"}, {"type": "user", "message": {"content": "x"}},
                                   {"type": "rate_limit_event"}, {}])  # fmt: skip
def test_other_events_say_nothing(event: dict[str, Any]) -> None:
    assert written(event) == []
    assert turn_of(event) is None


def test_turns_are_counted_by_their_message_and_errors_are_none() -> None:
    assert turn_of(_assistant(CALL)) == "msg_1"
    assert turn_of(_assistant(CALL, error="server_error")) is None
    synthetic = {"type": "assistant", "message": {"id": "x", "model": "<synthetic>", "content": []}}
    assert turn_of(synthetic) is None


def test_usage_adds_what_came_from_and_went_into_the_cache() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20, "output_tokens": 3}
    counted = usage_in({"usage": usage, "total_cost_usd": 0.25}, requests=2)
    assert counted == {
        "requests": 2, "input_tokens": 95, "output_tokens": 3, "total_tokens": 98, "cached_input_tokens": 70,
        "cache_write_tokens": 20, "cost_usd": 0.25,
    }  # fmt: skip
    assert usage_in({}, requests=0)["total_tokens"] == 0
