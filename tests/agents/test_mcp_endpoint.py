"""A trial's tools at an MCP address, asked by the official client."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from corral.agents import BaseAgent
from corral.agents.mcp_endpoint import serving_tools
from corral.types import ToolResponse
from tests.support.agent_envs import only_trial

pytest.importorskip("mcp.client.streamable_http")
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _session(url: str) -> Any:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with streamable_http_client(url) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        yield session


class OverMCP(BaseAgent):
    """Solves the task through the MCP address of its trial's tools."""

    seen: Any = None

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> str:
        async with serving_tools(interface, task_id) as url, _session(url) as session:
            offered = (await session.list_tools()).tools
            assert [tool.name for tool in offered] == ["weigh", "story"]
            assert offered[0].input_schema["required"] == ["body"]
            masses = [await self._weigh(session, body) for body in "abc"]
            failed = await session.call_tool("weigh", {"body": "x"})
            assert (failed.is_error, failed.content[0].text) == (True, "KeyError: 'x'")
        return str(sum(masses))

    async def _weigh(self, session: Any, body: str) -> int:
        result = await session.call_tool("weigh", {"body": body})
        assert not result.is_error
        return int(result.content[0].text)


async def test_a_whole_trial_over_mcp(tmp_path: Path) -> None:
    trial = await only_trial(tmp_path, lambda _: OverMCP())
    assert (trial.score, trial.error_message) == (1.0, None)
    assert [call["success"] for call in trial.state["tool_calls"]] == [True, True, True, False]


class Tools:
    """A router whose tools break its trial, never end, or say what is no text."""

    def __init__(self) -> None:
        self.called = threading.Event()

    async def get_available_tools_for_task(self, task_id: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {}}
        return {"tools": [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in "abc"]}

    async def execute_tool(self, task_id: str, name: str, arguments: Any) -> Any:
        self.called.set()
        if name == "a":
            raise RuntimeError("the worker died")
        if name == "c":
            return ToolResponse(True, "odd: \ud800") if arguments else ToolResponse(False, error="odd: \ud800")
        return await anyio.sleep_forever()


async def test_a_trial_that_breaks_is_told_to_the_client() -> None:
    async with serving_tools(Tools(), "t") as url, _session(url) as session:
        result = await session.call_tool("a", {})
    assert (result.is_error, result.content[0].text) == (True, "the trial broke: RuntimeError: the worker died")


async def test_what_utf8_cannot_carry_reaches_the_client_as_what_it_can() -> None:
    async with serving_tools(Tools(), "t") as url, _session(url) as session:
        results = [await session.call_tool("c", arguments) for arguments in ({"fine": True}, {})]
    assert [(result.is_error, result.content[0].text) for result in results] == [(False, "odd: ?"), (True, "odd: ?")]


async def test_the_address_cannot_be_guessed() -> None:
    async with serving_tools(Tools(), "t") as url, httpx.AsyncClient(trust_env=False) as client:
        path = httpx.URL(url).path
        assert len(path) > 25
        response = await client.post(url.removesuffix(path) + "/mcp", json={})
    assert response.status_code == 404
