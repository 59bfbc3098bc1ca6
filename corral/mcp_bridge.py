"""A trial's tools for MCP clients: one lowlevel server serves every trial, each at its own address.

``tools/list`` and ``tools/call`` are the trial's own; the prompt "task" is the task's. With ``?submit=true`` in the
address there are two tools more, by which a client ends the trial itself: ``submit_answer`` and ``surrender_task``.
A call that fails is a result with ``isError``; a trial that broke, or is closed, is a JSON-RPC error whose data holds
the kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskStatus
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from corral.data import well_formed
from corral.errors import CorralError, NotFound
from corral.exchange import check_size
from corral.guide import message_text
from corral.plain import plain
from corral.protocol import to_problem
from corral.records import to_record
from corral.types import Action, ToolResponse, check_verbosity

Ask = Callable[..., Awaitable[Any]]
"""``ask(gone, runtime_id, action, *arguments)`` of the server's front, in a task of its own; ``gone`` tells whether
the client has gone."""

TASK_PROMPT = "task"

_ENDINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "submit_answer": (
        "Submit the final answer. It ends the trial.",
        {"type": "object", "properties": {"answer": {"description": "the answer"}}, "required": ["answer"]},
    ),
    "surrender_task": ("Give the task up. It ends the trial.", {"type": "object", "properties": {}}),
}
_DATA_URL = re.compile(r"data:(image/[a-z0-9.+-]+);base64,(.+)", re.DOTALL)


class McpBridge:
    """The MCP side of an environment server: an ASGI application for ``/trials/{trial_id}/mcp``."""

    def __init__(self, ask: Ask, version: str, *, max_body: int, max_result: int) -> None:
        self._ask = ask
        self._max_result = max_result
        server: Server[Any] = Server(
            "corral",
            version=version,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )
        self._manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, max_request_body_size=max_body
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Once only, and before the first request."""
        async with self._manager.run():
            task_status.started()
            await anyio.sleep_forever()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        await self._manager.handle_request(scope, receive, send)

    async def _asked(self, context: Any, action: Action, *arguments: Any) -> Any:
        request = context.request
        try:
            return await self._ask(request.is_disconnected, request.path_params["trial_id"], action, *arguments)
        except CorralError as error:
            raise _rpc_error(error) from error

    async def _list_tools(self, context: Any, request: Any) -> types.ListToolsResult:
        query = context.request.query_params
        try:
            verbosity = check_verbosity(query.get("verbosity", "brief"))
        except CorralError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        schemas = await self._asked(context, Action.TOOLS, verbosity)
        tools = [_tool(schema["function"]) for schema in schemas]
        if _may_end(query):
            taken = {tool.name for tool in tools}
            tools += [types.Tool(name=name, description=text, input_schema=schema)
                      for name, (text, schema) in _ENDINGS.items() if name not in taken]  # fmt: skip
        return types.ListToolsResult(tools=tools)

    async def _call_tool(self, context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        name, arguments = request.name, dict(request.arguments or {})
        if name in _ENDINGS and _may_end(context.request.query_params) and not await self._has(context, name):
            return await self._end(context, name, arguments)
        content = content_of(await self._asked(context, Action.EXECUTE, name, arguments))
        try:
            check_size(_size(content), self._max_result, f"tool {name}")
        except CorralError as error:
            raise _rpc_error(error) from error
        return content

    async def _has(self, context: Any, name: str) -> bool:
        """Whether the environment has a tool of this name itself."""
        schemas = await self._asked(context, Action.TOOLS, "brief")
        return any(schema["function"]["name"] == name for schema in schemas)

    async def _end(self, context: Any, name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        if name == "surrender_task":
            result = await self._asked(context, Action.SURRENDER)
        else:
            result = await self._asked(context, Action.SUBMIT, arguments.get("answer"))
        record = to_record(result)
        return content_of(ToolResponse(True, {key: record[key] for key in ("task_id", "score", "surrendered")}))

    async def _list_prompts(self, context: Any, request: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[types.Prompt(name=TASK_PROMPT, description="The task")])

    async def _get_prompt(self, context: Any, request: types.GetPromptRequestParams) -> types.GetPromptResult:
        if request.name != TASK_PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {request.name!r}; there is {TASK_PROMPT!r}")
        prompt = await self._asked(context, Action.PROMPT)
        text = prompt if isinstance(prompt, str) else "\n\n".join(map(message_text, prompt))
        message = types.PromptMessage(role="user", content=types.TextContent(type="text", text=well_formed(text)))
        return types.GetPromptResult(messages=[message])


def _rpc_error(error: CorralError) -> MCPError:
    _, problem, _ = to_problem(error)
    code = types.INVALID_PARAMS if isinstance(error, NotFound) else types.INTERNAL_ERROR
    return MCPError(code, str(error), {key: value for key, value in problem.items() if value})


def _size(content: types.CallToolResult) -> int:
    """Characters of what is sent; its structured content says the same once more."""
    return sum(len(getattr(block, "text", "") or getattr(block, "data", "")) for block in content.content)


def _may_end(query: Mapping[str, str]) -> bool:
    return query.get("submit", "").lower() in ("true", "1")


def _tool(function: Mapping[str, Any]) -> types.Tool:
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return types.Tool(name=function["name"], description=function.get("description"), input_schema=parameters)


def content_of(response: ToolResponse) -> types.CallToolResult:
    """A tool's response as MCP content. ``structuredContent`` holds the result as data, unless it has images."""
    if not response.success:
        text = types.TextContent(type="text", text=well_formed(response.error or "the call failed"))
        return types.CallToolResult(content=[text], is_error=True)
    data = plain(response.result)
    parts = data if isinstance(data, list) else [data]
    images = [_image(part) for part in parts]
    if any(images):
        blocks = [image or _text(part) for image, part in zip(images, parts, strict=True)]
        return types.CallToolResult(content=list(blocks))
    structured = json.loads(well_formed(json.dumps(data, ensure_ascii=False)))
    return types.CallToolResult(content=[_text(data)], structured_content={"result": structured})


def _text(data: Any) -> types.TextContent:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return types.TextContent(type="text", text=well_formed(text))


def _image(part: Any) -> types.ImageContent | None:
    """An image, as MCP, OpenAI or Anthropic write one in their messages."""
    if not isinstance(part, dict) or part.get("type") not in ("image", "image_url"):
        return None
    inner = part.get("source")
    source = inner if isinstance(inner, dict) else part
    kind = source.get("mimeType") or source.get("mime_type") or source.get("media_type")
    if isinstance(source.get("data"), str) and isinstance(kind, str):
        return types.ImageContent(type="image", data=source["data"], mime_type=kind)
    url = part.get("image_url")
    match = _DATA_URL.fullmatch(str(url.get("url") if isinstance(url, dict) else url))
    return types.ImageContent(type="image", data=match[2], mime_type=match[1]) if match else None
