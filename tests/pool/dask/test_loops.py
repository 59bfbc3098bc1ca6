"""The driver's loop: what is open on it ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import pytest

pytest.importorskip("distributed")

from distributed import Client
from tornado.iostream import IOStream
from tornado.tcpclient import TCPClient

from corral.pool.dask.client import security_of
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.loops import run_driver


def test_a_connection_whose_making_is_cancelled_when_it_is_there_does_not_stay_open(
    dask_nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[IOStream] = []
    connect = TCPClient.connect

    async def cut_short(self: TCPClient, *place: Any, **options: Any) -> IOStream:
        made.append(await connect(self, *place, **options))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        raise AssertionError

    async def main() -> None:
        config = DaskConfig(dask_nodes.address, dask_nodes.certificates)
        async with contextlib.AsyncExitStack() as stack:
            client = Client(config.scheduler, security=security_of(config), asynchronous=True, set_as_default=False)
            stack.push_async_callback(client.close)
            with pytest.raises(asyncio.CancelledError):
                await client
        assert made[0].socket.fileno() != -1

    monkeypatch.setattr(TCPClient, "connect", cut_short)
    run_driver(main)
    assert [(type(stream.socket), stream.socket.fileno()) for stream in made] == [(ssl.SSLSocket, -1)]
