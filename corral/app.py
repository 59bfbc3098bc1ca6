"""The environment server as an ASGI application: HTTP in, the front's methods, HTTP out. No engine logic.

Guarantees
    * Its lifespan starts and stops everything: the pool, the service, the sweeping, MCP. When it ends nothing is left.
    * A request without the token, or from a web page elsewhere, reaches nothing but this module.
    * An operation with a key goes on when its client goes away, and is joined when that comes back.
Assumption: the lifespan is entered before the first request. (httpx's ASGITransport does not: enter ``lifespan()``.)
"""

from __future__ import annotations

import importlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from corral import counters, openapi
from corral.endpoints import ENDPOINTS, Endpoint, Visit
from corral.errors import ConfigError, NotFound, SerializationError
from corral.front import Front
from corral.guard import Guard, trial_key
from corral.once import GRACE, Operation, Operations
from corral.pool.config import WorkerPoolConfig
from corral.pool.supervisor import WorkerPool
from corral.protocol import (
    KEY_HEADER,
    KEY_PATTERN,
    MAX_WAIT,
    OWN_TYPE,
    WAIT_HEADER,
    NotJSON,
    NotStarted,
    TooLarge,
    decode,
    encode,
    to_problem,
)
from corral.runtime import describe
from corral.scratch import scratch_folder
from corral.service import ServiceLimits, TrialService
from corral.source import EnvironmentSource
from corral.threads import call_blocking
from corral.types import Action, TaskInfo

if TYPE_CHECKING:
    from corral.mcp_bridge import McpBridge

log = logging.getLogger("corral.server")

SWEEP = 0.5
"""Seconds between two looks at what is idle or abandoned."""
JSON = "application/json"
VERSION = version("corral")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How an environment server is set up. Times in seconds, sizes in bytes."""

    worker_pool: WorkerPoolConfig | None = None
    pool_if_needed: bool = False
    """Whether the pool is only for process-class environments, and left out where there are none."""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    idle_timeout: float = 1800.0
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_body: int = 16 * 2**20
    max_result: int = 64 * 2**20


class EnvironmentServer:
    """The ASGI application over the environments of ``source``."""

    def __init__(self, source: EnvironmentSource, settings: ServerSettings) -> None:
        self.server_id = f"srv_{secrets.token_hex(6)}"
        self.failure: Exception | None = None
        """Why it could not start."""
        self.front: Front | None = None
        self._source = source
        self._settings = settings
        self._document = b""
        self._mcp: McpBridge | None = None
        self._mcp_starting = anyio.Lock()
        self._tasks: TaskGroup
        self._operations: Operations
        app = Starlette(routes=self._routes(), lifespan=self._lifespan)
        app.add_exception_handler(HTTPException, _no_route)
        self._guarded = Guard(app, settings.token, settings.allowed_hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI connection."""
        await self._guarded(scope, receive, send)

    def _routes(self) -> list[Route]:
        routes = [Route(e.path.replace("{task_id}", "{task_id:path}").replace("{episode_id}", "{episode_id:path}"),
                        partial(self._serve, e), methods=[e.method]) for e in ENDPOINTS]  # fmt: skip
        return [
            Route("/trials/{trial_id}/mcp", _App(self._serve_mcp)),
            Route("/openapi.json", self._openapi),
            Route("/docs", self._docs),
            Route("/metrics", self._metrics),
            *routes,
        ]

    # ---- life ----

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start it; it serves while the block runs; then close every trial and stop the pool."""
        async with AsyncExitStack() as stack:
            service = await self._start_service(stack)
            front = Front(service, idle_timeout=self._settings.idle_timeout)
            front.counters.watch(partial(_gauges, front))
            tasks = await stack.enter_async_context(anyio.create_task_group())
            self._tasks, self._operations = tasks, Operations(tasks)
            tasks.start_soon(self._sweep, front)
            self._document = encode(
                openapi.document(VERSION, service.catalogue, has_token=self._settings.token is not None)
            )
            self.front = front
            try:
                yield
            finally:
                self.front = self._mcp = None
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(self.lifespan())
                except Exception as error:
                    self.failure = error
                    raise
                yield
        except Exception:
            log.debug("the lifespan ended with an error", exc_info=True)
            raise

    async def _start_service(self, stack: AsyncExitStack) -> TrialService:
        pool, catalogue = await self._start_pool(stack)
        if pool is None:
            catalogue = await call_blocking(lambda: describe(self._source.here()))
        work_root = Path(stack.enter_context(scratch_folder()))
        service = TrialService(self._source, catalogue, pool=pool, limits=self._settings.limits, work_root=work_root)
        service.check_episode_support()
        stack.push_async_callback(service.aclose)
        return service

    async def _start_pool(self, stack: AsyncExitStack) -> tuple[WorkerPool | None, dict[str, TaskInfo]]:
        config = self._settings.worker_pool
        if config is None:
            return None, {}
        pool = await stack.enter_async_context(WorkerPool(self._source.build, config))
        if self._settings.pool_if_needed and not any(info.mode == "process" for info in pool.catalogue.values()):
            await stack.aclose()
            return None, {}
        return pool, pool.catalogue

    async def _sweep(self, front: Front) -> None:
        while True:
            await anyio.sleep(min(SWEEP, self._settings.idle_timeout / 4))
            try:
                await front.look_around()
                await self._operations.sweep()
            except Exception:
                log.exception("sweeping failed")

    def drain(self) -> None:
        """Take no new trials from now on."""
        if self.front is not None:
            self.front.drain()
            log.info("draining", extra={"facts": {"open_trials": self.front.open_trials}})

    @property
    def is_quiet(self) -> bool:
        """Whether no call runs."""
        return self.front is None or not self.front.running_calls

    # ---- requests ----

    async def _serve(self, endpoint: Endpoint, request: Request) -> Response:
        try:
            if self.front is None:
                raise NotStarted(
                    "the application's lifespan was not entered: use `async with app.lifespan()`, or a server that does"
                )
            visit = await self._read(endpoint, request, self.front)
            return self._answer(request, await self._carry_out(endpoint, visit, request))
        except _Pending:
            return _json(202, {"kind": "pending", "detail": "it has not ended yet: ask again under the same key"})
        except Exception as error:
            return self._problem(request, error)

    async def _read(self, endpoint: Endpoint, request: Request, front: Front) -> Visit:
        body = await self._body(request) if endpoint.body is not None else b""
        read: Any = None
        if endpoint.body is not None:
            read = endpoint.body.model_validate(decode(body) if body or endpoint.body_required else {})
        mcp_url = partial(self._mcp_url, request)
        return Visit(front, request.path_params, request.query_params, read, self.server_id, mcp_url)

    async def _body(self, request: Request) -> bytes:
        limit, parts, size = self._settings.max_body, [], 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise TooLarge(f"the request's body is over this server's limit of {limit / 2**20:g} MiB")
            parts.append(part)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if size and kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
            raise NotJSON(f"the body must be {JSON}, not {kind or 'without a content type'}")
        return b"".join(parts)

    def _mcp_url(self, request: Request, runtime_id: str) -> str:
        url = f"{request.base_url}trials/{runtime_id}/mcp"
        token = self._settings.token
        return url if token is None else f"{url}?key={trial_key(token, runtime_id)}"

    async def _carry_out(self, endpoint: Endpoint, visit: Visit, request: Request) -> Any:
        key, wait = _key(request), _wait(request)
        work = partial(endpoint.handle, visit)
        if key is None and endpoint.undo is None:
            return await work()
        undo = partial(endpoint.undo, visit.front) if endpoint.undo is not None else None
        asked = (endpoint.method, request.scope["path"], request.scope["query_string"], visit.body)
        name, grace = (f"client {key}", GRACE) if key is not None else (secrets.token_hex(8), 0.0)
        operation = self._operations.begin(visit.scope, name, asked, work, undo, grace)
        value = await _outcome(operation, request, wait if key is not None else None)
        if endpoint.method == "DELETE":  # nobody asks again for what a closed trial gave
            self._operations.drop(visit.scope, but=name)
        return value

    async def _ask_apart(self, runtime_id: str, action: Action, *arguments: Any) -> Any:
        """Ask in a task of its own: a client that goes away must not break the trial in the middle of a call."""
        if self.front is None:
            raise NotFound("trial", runtime_id)
        work = partial(self.front.ask, runtime_id, action, *arguments)
        key = secrets.token_hex(8)
        return await self._operations.begin(runtime_id, key, None, work, None, 0.0).outcome()

    async def _serve_mcp(self, scope: Any, receive: Any, send: Any) -> None:
        runtime_id = scope["path_params"]["trial_id"]
        if self.front is None or not self.front.has(runtime_id):
            await _json(404, _rpc_error(NotFound("trial", runtime_id)))(scope, receive, send)
            return
        bridge = self._mcp or await self._start_mcp()
        await bridge(scope, receive, send)

    async def _start_mcp(self) -> McpBridge:
        """With the first MCP client: the SDK takes longer to load than all the rest of a server."""
        async with self._mcp_starting:
            if self._mcp is None:
                module = await call_blocking(importlib.import_module, "corral.mcp_bridge")
                bridge: McpBridge = module.McpBridge(self._ask_apart, VERSION, max_body=self._settings.max_body)
                await self._tasks.start(bridge.run)
                self._mcp = bridge
        return self._mcp

    # ---- answers ----

    def _answer(self, request: Request, value: Any) -> Response:
        own = OWN_TYPE in request.headers.get("accept", "")
        body = encode(value, strict=not own)
        if len(body) > (limit := self._settings.max_result):
            raise SerializationError(
                f"the answer to {request.url.path} has {len(body) / 2**20:.1f} MiB, over this server's limit of "
                f"{limit / 2**20:g} MiB"
            )
        return Response(body, media_type=OWN_TYPE if own else JSON)

    def _problem(self, request: Request, error: Exception) -> Response:
        status, body, headers = to_problem(error)
        if body["kind"] in ("internal", "protocol"):
            log.error("a request failed", exc_info=error, extra={"facts": {"path": request.url.path}})
        return _json(status, body, headers)

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(openapi.page(VERSION))

    async def _metrics(self, request: Request) -> Response:
        if self.front is None:
            return self._problem(request, NotStarted("the server has not started yet"))
        return Response(self.front.counters.text(), media_type=counters.CONTENT_TYPE)


class _App:
    """An ASGI application as an object: Starlette takes a function, or a method, for a handler of requests."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self._serve = serve

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._serve(scope, receive, send)


class _Pending(Exception):
    """The operation goes on."""


def _key(request: Request) -> str | None:
    key = request.headers.get(KEY_HEADER)
    if key is not None and not re.fullmatch(KEY_PATTERN, key):
        raise ConfigError(f"{KEY_HEADER} must be 1 to 200 letters, digits, - and _, not {key!r:.100}")
    return key


def _wait(request: Request) -> float | None:
    given = request.headers.get(WAIT_HEADER)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT:
        raise ConfigError(f"{WAIT_HEADER} must be a number of seconds from 0 to {MAX_WAIT:g}, not {given!r}")
    return seconds


async def _outcome(operation: Operation, request: Request, wait: float | None) -> Any:
    """The operation's outcome; _Pending when the wait is over, or its client has gone."""
    if operation.undo is None:
        with anyio.move_on_after(wait):
            return await operation.outcome()
        raise _Pending
    outcome: list[Any] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_gone, request, tasks.cancel_scope)
        with anyio.move_on_after(wait):
            try:
                outcome.append(await operation.outcome())
            except Exception as error:
                errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not outcome:
        raise _Pending
    return outcome[0]


async def _cancel_when_gone(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _json(status: int, data: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(data), status, headers, media_type=JSON)


def _rpc_error(error: NotFound) -> dict[str, Any]:
    """For MCP clients, which read errors of their own kind only."""
    _, problem, _ = to_problem(error)
    return {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": str(error), "data": problem}}


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found" if error.status_code == 404 else "refused"
    detail = f"there is no {request.method} {request.url.path} here; /docs lists what there is"
    return _json(error.status_code, {"kind": kind, "detail": detail}, dict(error.headers or {}))


def _gauges(front: Front) -> dict[str, float]:
    gauges: dict[str, float] = {
        "trials_open": front.open_trials, "trials_waiting": front.waiting, "calls_running": front.running_calls
    }  # fmt: skip
    if front.service.pool is not None:
        pool = front.service.pool.statistics()
        gauges |= {
            "slots": pool.size, "slots_idle": pool.idle, "slots_leased": pool.leased, "slots_starting": pool.starting,
            "worker_restarts": pool.restarts,
        }  # fmt: skip
    return gauges
