"""Agents that reach their trial's tools over MCP only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyio import from_thread, to_thread
from mcp import Client

from corral.agents import BaseAgent
from corral.agents.scripted import ToolFailed
from corral.unwrap import unwrapped


class _Lab:
    """The laboratory of a plain policy, in a thread, over an MCP client of the loop."""

    def __init__(self, client: Client, tools: list[str], log: list[Any]) -> None:
        self.tools = tools
        self._client = client
        self._log = log

    def call(self, tool: str, **arguments: Any) -> Any:
        result: Any = from_thread.run(self._client.call_tool, tool, arguments)
        self._log.append({"role": "assistant", "tool": tool, "arguments": arguments})
        if result.is_error:
            self._log.append({"role": "tool", "tool": tool, "error": result.content[0].text})
            raise ToolFailed(tool, result.content[0].text)
        self._log.append({"role": "tool", "tool": tool, "result": result.structured_content["result"]})
        return result.structured_content["result"]


class McpScriptedAgent(BaseAgent):
    """Follows a plain policy, as ScriptedAgent does, with an MCP client instead of a router."""

    def __init__(self, policy: Callable[[Any, Any], Any], query: str = "") -> None:
        super().__init__(f"scripted/{policy.__name__}")
        self.policy = policy
        self.query = query

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        with unwrapped():
            return await self._follow(interface.mcp_url + self.query)

    async def _follow(self, url: str) -> Any:
        async with Client(url) as client:
            prompt = (await client.get_prompt("task")).messages[0].content.text  # type: ignore[union-attr]
            self.messages.append({"role": "user", "content": prompt})
            tools = [tool.name for tool in (await client.list_tools()).tools]
            lab = _Lab(client, tools, self.messages)
            answer = await to_thread.run_sync(self.policy, lab, prompt)
        self.messages.append({"role": "assistant", "content": answer})
        return answer
