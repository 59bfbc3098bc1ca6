"""The client against real HTTP servers on loopback."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from corral.agents.llm.backoff import Backoff
from corral.agents.llm.client import ChatClient
from corral.agents.llm.endpoints import resolve
from corral.agents.llm.errors import ContextExceeded, EndpointError, RequestRefused
from corral.agents.llm.messages import Message
from corral.agents.llm.throttle import Throttle
from corral.agents.testing import Call, Fault, Faults, ScriptedEndpoint, Turn, saying
from corral.errors import AgentError, InfrastructureError
from tests.support.endpoints import serving
from tests.support.raw_http import TRICKLE, RawServer, free_port

pytestmark = pytest.mark.anyio

SAID: list[Message] = [{"role": "user", "content": "go"}]
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
QUICK = Backoff(retries=3, first=0.01, longest=0.02)


def _client(url: str, provider: str = "openai", **more: Any) -> ChatClient:
    endpoint = resolve(f"{provider}/m", api_base=f"{url}/v1", api_key="k")
    return ChatClient(endpoint, **{"patience": QUICK, "timeout": 5, **more})


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_reply(provider: str) -> None:
    endpoint = ScriptedEndpoint(saying(Turn("hello", (Call("look", {"at": "sky"}),))), key="k")
    with serving(endpoint) as url:
        async with _client(url, provider, options={"top_p": 0.5}, headers={"x-mine": "1"}) as client:
            reply = await client.complete(SAID, [LOOK])
    assert (reply.text, [(call.name, call.arguments) for call in reply.calls]) == ("hello", [("look", {"at": "sky"})])
    (served,) = endpoint.served
    assert served.body["top_p"] == 0.5
    assert (served.headers or {})["x-mine"] == "1"
    assert {name: reply.usage[name] for name in endpoint.usage} == endpoint.usage


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503, 529])
async def test_a_passing_failure_is_overcome(status: int) -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(at={0: Fault(status=status), 1: Fault(status=status)}))
    with serving(endpoint) as url:
        async with _client(url) as client:
            await client.complete(SAID)
            assert client.retried == 2
    assert [served.status for served in endpoint.served] == [status, status, 200]


@pytest.mark.parametrize("kind", ["cut", "garbage"])
async def test_a_broken_answer_is_asked_for_again(kind: Any) -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(at={0: Fault(kind)}))
    with serving(endpoint) as url:
        async with _client(url) as client:
            await client.complete(SAID)
    assert len(endpoint.served) == 2


async def test_retry_after_is_waited_out() -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(at={0: Fault(status=429, retry_after=0.4)}))
    with serving(endpoint) as url:
        async with _client(url) as client:
            await client.complete(SAID)
    first, second = endpoint.served
    assert second.at - first.at >= 0.4


async def test_a_failure_that_stays_is_the_endpoints_with_its_own_words() -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault(status=429, message="slow down")))
    with serving(endpoint) as url:
        async with _client(url) as client:
            with pytest.raises(EndpointError, match=r"openai/m answered HTTP 429 4 times.*slow down") as caught:
                await client.complete(SAID)
    assert isinstance(caught.value, InfrastructureError)
    assert caught.value.status_code == 429
    assert len(endpoint.served) == 4


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_key_and_account_are_the_infrastructures_and_not_repeated(status: int) -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault(status=status)))
    with serving(endpoint) as url:
        async with _client(url) as client:
            with pytest.raises(EndpointError, match=f"HTTP {status}"):
                await client.complete(SAID)
    assert len(endpoint.served) == 1


@pytest.mark.parametrize(
    "head",
    [
        "503 Busy\r\nx-should-retry: false",
        "408 Slow\r\nx-should-retry: false",
        "307 There\r\nlocation: https://k:pw@else/v1",
    ],
)
async def test_what_the_endpoint_does_not_want_repeated_is_its_failure_all_the_same(head: str) -> None:
    server = RawServer([f"HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()])
    with server.serving() as url:
        async with _client(url) as client:
            with pytest.raises(EndpointError, match=f"answered HTTP {head[:3]}") as caught:
                await client.complete(SAID)
    assert server.connections == 1
    assert ("it sends to https://else/v1;" in str(caught.value)) == ("location" in head)


async def test_a_request_is_strict_json_whatever_tools_and_models_say() -> None:
    odd = {"type": "function", "function": {"name": "run", "parameters": {"properties": {"t": {"default": math.inf}}}}}
    endpoint = ScriptedEndpoint(saying("x"))
    with serving(endpoint) as url:
        async with _client(url, "anthropic") as client:
            call = {"id": "c", "function": {"name": "run", "arguments": '{"t": [NaN, 1.5]}'}}
            said: list[Message] = [*SAID, {"role": "assistant", "content": None, "tool_calls": [call]}]
            said.append({"role": "tool", "tool_call_id": "c", "content": "done"})
            await client.complete(said, [odd])
    body = endpoint.served[0].body
    assert body["tools"][0]["input_schema"]["properties"] == {"t": {"default": None}}
    assert body["messages"][1]["content"][0]["input"] == {"t": [None, 1.5]}


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_refused_request_is_ours_and_not_repeated(status: int) -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault(status=status, message="unknown model")))
    with serving(endpoint) as url:
        async with _client(url) as client:
            with pytest.raises(
                RequestRefused, match=f"refused the request with HTTP {status}.*unknown model"
            ) as caught:
                await client.complete(SAID)
    assert isinstance(caught.value, AgentError)
    assert len(endpoint.served) == 1


@pytest.mark.parametrize(
    "message", ["This model's maximum context length is 8192 tokens.", "prompt is too long: 210000 tokens > 200000"]
)
async def test_too_long_a_conversation_has_its_own_error(message: str) -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault(status=400, message=message)))
    with serving(endpoint) as url:
        async with _client(url) as client:
            with pytest.raises(ContextExceeded):
                await client.complete(SAID)


async def test_an_empty_account_is_not_waited_for() -> None:
    spent = Fault(status=429, code="insufficient_quota")
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=spent))
    with serving(endpoint) as url:
        async with _client(url) as client:
            with pytest.raises(EndpointError, match="429"):
                await client.complete(SAID)
    assert len(endpoint.served) == 1


async def test_an_endpoint_that_hangs_costs_its_time_limit_and_few_tries() -> None:
    endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault("hang")))
    with serving(endpoint) as url:
        async with _client(url, timeout=0.2) as client:
            with pytest.raises(EndpointError, match=r"no answer in 2 tries: .*within 0\.2 s"):
                await client.complete(SAID)


async def test_a_trickle_does_not_hold_the_limit_off() -> None:
    server = RawServer([TRICKLE, *itertools.repeat(b" ", 400)], pause=0.05)
    with server.serving() as url:
        async with _client(url, timeout=0.3, patience=Backoff(retries=0)) as client:
            with pytest.raises(EndpointError, match=r"nothing within 0\.3 s"):
                await client.complete(SAID)


async def test_nobody_listens() -> None:
    async with _client(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(EndpointError, match=r"no answer in 4 tries: ConnectError"):
            await client.complete(SAID)


async def test_something_that_speaks_no_http() -> None:
    with RawServer([b"SSH-2.0-OpenSSH_9.2\r\n"]).serving() as url:
        async with _client(url) as client:
            with pytest.raises(EndpointError, match=r"RemoteProtocolError|ReadError"):
                await client.complete(SAID)


async def test_text_that_has_no_utf8_goes_through() -> None:
    endpoint = ScriptedEndpoint(saying("x"))
    with serving(endpoint) as url:
        async with _client(url) as client:
            await client.complete([{"role": "user", "content": "a lone \ud800 surrogate"}])
    assert endpoint.served[0].status == 200


async def test_a_429_is_told_to_the_throttle_and_a_500_is_not() -> None:
    for status, lowered in ((429, True), (500, False)):
        throttle = Throttle()
        endpoint = ScriptedEndpoint(saying("x"), faults=Faults(always=Fault(status=status)))
        with serving(endpoint) as url:
            async with _client(url, throttle=throttle, patience=Backoff(retries=0)) as client:
                with pytest.raises(EndpointError):
                    await client.complete(SAID)
        assert (throttle.is_lowered, throttle.in_flight) == (lowered, 0)
