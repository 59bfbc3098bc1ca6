"""The scripted endpoint: it refuses what the real APIs refuse, and streams what they stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from corral.agents.testing import Call, Conversation, Fault, Faults, ScriptedEndpoint, Turn, following, saying
from tests.support.endpoints import serving

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USER = {"role": "user", "content": "go"}
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture
def endpoint() -> ScriptedEndpoint:
    return ScriptedEndpoint(saying(Turn("I look.", (Call("look", {"at": "sky"}),))), key="k")


@pytest.fixture
def client(endpoint: ScriptedEndpoint) -> Iterator[httpx.Client]:
    with serving(endpoint) as url, httpx.Client(base_url=url, headers={"x-api-key": "k"}, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "robot", "content": "x"}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, USER],
        [USER, {"role": "tool", "tool_call_id": "c1", "content": "x"}],
        [USER, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c2", "content": "x"}],
        [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {}}}]}],
    ],
)
def test_openai_requests_that_are_refused(client: httpx.Client, messages: list[Any]) -> None:
    response = client.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [USER]},
        {"max_tokens": 5, "messages": []},
        {"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": []}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]},
        {"max_tokens": 5, "messages": [USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "look", "input": {}}]}, USER]},
    ],
)  # fmt: skip
def test_anthropic_requests_that_are_refused(client: httpx.Client, body: dict[str, Any]) -> None:
    response = client.post("/v1/messages", json={"model": "m", **body})
    assert response.status_code == 400
    assert response.json()["type"] == "error"


def test_a_wrong_key_and_a_wrong_path(client: httpx.Client) -> None:
    body = {"model": "m", "messages": [USER]}
    assert client.post("/v1/chat/completions", json=body, headers={"x-api-key": "no"}).status_code == 401
    assert client.post("/v1/embeddings", json=body).status_code == 404


def test_anthropics_stream(client: httpx.Client) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [USER], "tools": [{"name": "look", "input_schema": {}}]}
    text = client.post("/v1/messages", json={**body, "stream": True}).text
    events = [block.split("\n", 1) for block in text.strip().split("\n\n")]
    assert [first.removeprefix("event: ") for first, _ in events] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "content_block_start",
        "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    data = [json.loads(second.removeprefix("data: ")) for _, second in events]
    assert json.loads(data[5]["delta"]["partial_json"]) == {"at": "sky"}
    assert data[7]["delta"]["stop_reason"] == "tool_use"


def test_openais_stream(client: httpx.Client) -> None:
    body = {"model": "m", "messages": [USER], "tools": [LOOK], "stream": True}
    lines = client.post("/v1/chat/completions", json=body).text.strip().split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[-1] == "data: [DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    assert deltas[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
    assert chunks[-1]["usage"]["prompt_tokens"] > 0


def test_faults_by_number_by_share_and_for_all() -> None:
    faults = Faults(at={3: Fault(status=402)}, rate=0.25, kinds=(Fault(status=429),), seed=1)
    seen = [faults.of(number) for number in range(1000)]
    assert seen[3] == Fault(status=402)
    assert 200 < sum(fault == Fault(status=429) for fault in seen) < 300
    assert seen == [faults.of(number) for number in range(1000)]
    assert Faults(always=Fault("hang")).of(7) == Fault("hang")


def test_a_policy_is_replayed_from_the_conversation() -> None:
    def policy(lab: Any, prompt: str) -> str:
        first = lab.call("look", at=prompt)
        return f"{first} then {lab.call_all(('a', {}), ('b', {}))}"

    script = following(policy)
    from corral.agents.testing import Result

    one = script(Conversation("m", "sky"))
    two = script(Conversation("m", "sky", (Result("blue"),)))
    three = script(Conversation("m", "sky", (Result("blue"), Result(1), Result(2))))
    assert one == Turn(calls=(Call("look", {"at": "sky"}),))
    assert two == Turn(calls=(Call("a"), Call("b")))
    assert three == Turn(answer="blue then [1, 2]")
