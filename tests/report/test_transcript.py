"""Messages of several frameworks in one form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.report.transcript import Call, Turn, as_json, as_text, turns


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


@pytest.mark.parametrize("ending", ["", "1" + "}" * 100_000])
def test_arguments_that_are_nested_too_deeply_to_be_read_are_kept(ending: str) -> None:
    arguments = '{"a":' * 100_000 + ending
    (turn,) = turns([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}])
    assert turn.calls == (Call("f", {"arguments": arguments}),)


def test_arguments_that_can_be_read_but_not_written_are_cut() -> None:
    """Python reads more levels in one place than it writes in another."""
    value: Any = 1
    for _ in range(100_000):
        value = {"a": value}
    for written in (as_json(value), as_text(value)):
        assert "<nested too deeply>" in written
        assert json.loads(written).keys() == {"a"}


def test_what_is_no_text_in_a_result_is_shown_as_it_is() -> None:
    inner: Any = {"type": "tool_result", "content": [{"type": "text", "text": "2 g"}]}
    (turn,) = turns([{"role": "user", "content": [{"type": "tool_result", "content": ["so:", inner, None]}]}])
    assert turn.text == "so:\n" + as_text(inner)


def test_results_within_results_are_cut_where_they_cannot_be_followed() -> None:
    content: Any = "2 g"
    for _ in range(2_500):
        content = [{"type": "tool_result", "content": content}]
    (turn,) = turns([{"role": "user", "content": content}])
    assert "<nested too deeply>" in turn.text
