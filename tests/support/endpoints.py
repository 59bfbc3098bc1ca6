"""Scripted endpoints, all behind one server: starting and stopping one costs more than most tests."""

from __future__ import annotations

import atexit
import contextlib
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

from corral.agents.loopback import LoopbackServer
from corral.agents.testing import ScriptedEndpoint

_served: dict[str, ScriptedEndpoint] = {}
_names = map(str, itertools.count())


async def _switch(scope: Any, receive: Any, send: Any) -> None:
    """Each endpoint has its name as the first part of its address."""
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    await _served[scope["path"].split("/")[1]](scope, receive, send)


@cache
def _address() -> str:
    server = LoopbackServer(_switch)
    atexit.register(server.stop)
    return server.start()


@contextlib.contextmanager
def serving(endpoint: ScriptedEndpoint) -> Iterator[str]:
    """The address of an endpoint while the block runs."""
    name = next(_names)
    _served[name] = endpoint
    try:
        yield f"{_address()}/{name}"
    finally:
        del _served[name]
