from __future__ import annotations

import socket
import threading
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from corral.agents.loopback import serving, serving_async
from corral.errors import CorralError


async def hello(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def broken(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no"})


def test_it_serves_on_loopback_while_the_block_runs_and_leaves_nothing() -> None:
    threads = threading.active_count()
    with serving(hello) as url:
        address = urlsplit(url)
        assert address.hostname == "127.0.0.1"
        assert httpx.get(url, trust_env=False).text == "hello"
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.port or 0)))


def test_ten_at_once_have_ten_addresses() -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        urls = {stack.enter_context(serving(hello)) for _ in range(10)}
        assert len(urls) == 10
        assert {httpx.get(url, trust_env=False).text for url in urls} == {"hello"}


@pytest.mark.anyio
async def test_in_an_event_loop() -> None:
    async with serving_async(hello) as url, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(url)).text == "hello"


def test_an_application_that_does_not_start_is_an_error() -> None:
    with pytest.raises(CorralError, match="did not start"), serving(broken):
        pass
