"""A trial's tools at an MCP address on loopback, for agents in another process, where no environment server runs.

Streamable HTTP, stateless, JSON answers. Its path holds a random token: other users of this machine cannot guess it.
Tool calls go through the trial's own router, so the trial's limits and faults hold for them as for any other.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from corral.agents.loopback import serving_async
from corral.data import to_data, well_formed
from corral.errors import ConfigError, ErrorRecord
from corral.threads import Bridge, call_blocking
from corral.types import ToolResponse

CallTool = Callable[[str, dict[str, Any]], Awaitable[ToolResponse]]


@contextlib.asynccontextmanager
async def serving_tools(interface: Any, task_id: str) -> AsyncIterator[str]:
    """The MCP address of a trial's tools, served while the block runs. Needs the ``mcp`` package."""
    tools = (await interface.get_available_tools_for_task(task_id))["tools"]
    bridge = Bridge()

    async def execute(name: str, arguments: dict[str, Any]) -> ToolResponse:
        return await interface.execute_tool(task_id, name, arguments)  # type: ignore[no-any-return]

    async def call(name: str, arguments: dict[str, Any]) -> ToolResponse:
        return await call_blocking(bridge.call, execute, name, arguments)

    path = f"/{secrets.token_urlsafe(16)}/mcp"
    async with serving_async(tool_app(tools, call, path)) as url:
        yield url + path


def tool_app(tools: Sequence[Mapping[str, Any]], call: CallTool, path: str) -> Any:
    """An ASGI application that offers ``tools`` (OpenAI function schemas) over MCP at ``path``."""
    try:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise ConfigError("serving tools over MCP needs the mcp package: pip install 'corral[claude]'") from error

    class Endpoint:  # a class: Starlette takes a function for a request handler, an object for an application
        manager: Any = None

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.manager.handle_request(scope, receive, send)

    endpoint = Endpoint()

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        # Made here, in the server's event loop: its lock belongs to the loop in which it is made.
        endpoint.manager = StreamableHTTPSessionManager(_server(tools, call), stateless=True, json_response=True)
        async with endpoint.manager.run():
            yield

    return Starlette(routes=[Route(path, endpoint)], lifespan=lifespan)


def _server(tools: Sequence[Mapping[str, Any]], call: CallTool) -> Any:
    import mcp_types as types
    from mcp.server.lowlevel import Server

    functions = [tool["function"] for tool in tools]
    offered = [
        types.Tool(
            name=function["name"],
            description=function.get("description"),
            input_schema=function.get("parameters") or {"type": "object", "properties": {}},
        )
        for function in functions
    ]

    async def list_tools(context: Any, request: Any) -> Any:
        return types.ListToolsResult(tools=offered)

    async def call_tool(context: Any, request: Any) -> Any:
        try:
            text, fine = readable(await call(request.name, dict(request.arguments or {})))
        except Exception as error:  # the trial's own record holds it; the client must not hang on it
            text, fine = f"the trial broke: {ErrorRecord.of(error)}", False
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=not fine)

    return Server("corral", on_list_tools=list_tools, on_call_tool=call_tool)


def readable(response: ToolResponse) -> tuple[str, bool]:
    """A tool's response as text, and whether the call succeeded."""
    if not response.success:
        return well_formed(response.error or "the call failed"), False
    data = to_data(response.result, "a tool", arrays="list")
    return well_formed(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)), True
