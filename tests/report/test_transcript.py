"""Messages of several frameworks in one form."""

from __future__ import annotations

from typing import Any

import pytest

from corral.report.transcript import Call, Turn, turns


def test_openai_messages() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weigh", "arguments": '{"g": 2}'}}
    found = turns([
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ])  # fmt: skip
    assert found == [
        Turn("system", "be brief"),
        Turn("assistant", "", (Call("weigh", {"g": 2}, "c1"),)),
        Turn("tool", "ok", call_id="c1"),
    ]


def test_anthropic_parts() -> None:
    found = turns([
        {"role": "assistant", "content": [
            {"type": "text", "text": "I weigh."}, {"type": "tool_use", "id": "t1", "name": "weigh", "input": {"g": 2}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2 g"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no such tool", "is_error": True},
        ]},
    ])  # fmt: skip
    assert found == [
        Turn("assistant", "I weigh.", (Call("weigh", {"g": 2}, "t1"),)),
        Turn("tool", "2 g", call_id="t1"),
        Turn("tool", "", call_id="t2", error="no such tool"),
    ]


def test_the_short_form_of_scripted_agents() -> None:
    found = turns([
        {"role": "assistant", "tool": "split", "arguments": {"ml": 1}},
        {"role": "tool", "tool": "split", "result": {"left": 9}},
        {"role": "tool", "tool": "split", "error": "ValueError: empty"},
    ])  # fmt: skip
    assert found == [
        Turn("assistant", "", (Call("split", {"ml": 1}),)),
        Turn("tool", '{\n  "left": 9\n}', tool="split"),
        Turn("tool", "", tool="split", error="ValueError: empty"),
    ]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("just text", "just text"), ({"event": 1}, '{\n  "event": 1\n}'), (None, "null"),
        ({"role": "critic"}, '{\n  "role": "critic"\n}'),
    ],
)  # fmt: skip
def test_what_is_not_known_is_shown_as_it_is(message: Any, text: str) -> None:
    assert turns([message]) == [Turn("other", text)]


def test_arguments_that_are_no_json_are_kept() -> None:
    (turn,) = turns([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{broken"}}, "odd"]}])
    assert turn.calls == (Call("f", {"arguments": "{broken"}), Call("?", {}))
