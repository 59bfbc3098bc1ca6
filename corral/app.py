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
from corral.errors import NotFound
from corral.exchange import JSON, Pending, answer, as_json, digest, key_of, outcome_of, problem, read_body, wait_of
from corral.front import SWEEP, Front
from corral.guard import Guard, trial_key
from corral.guests import Gone
from corral.once import Operations
from corral.pool.config import WorkerPoolConfig
from corral.pool.supervisor import WorkerPool
from corral.protocol import NotStarted, decode, encode, to_problem
from corral.runtime import describe
from corral.scratch import scratch_folder
from corral.service import ServiceLimits, TrialService
from corral.source import EnvironmentSource
from corral.threads import call_blocking
from corral.types import Action, TaskInfo
from corral.unwrap import unwrapped

if TYPE_CHECKING:
    from corral.mcp_bridge import McpBridge

log = logging.getLogger("corral.server")

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
        with unwrapped():
            async with self._started():
                yield

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
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
            await anyio.sleep(min(SWEEP, self._settings.idle_timeout) / 4)
            try:
                await front.look_around(self._tasks)
                self._operations.sweep()
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
            with self.front.visits.to(visit.place, request.is_disconnected):
                value = await self._carry_out(endpoint, visit, request)
            return answer(request, value, self._settings.max_result)
        except Pending:
            return as_json(202, {"kind": "pending", "detail": "it has not ended yet: ask again under the same key"})
        except Exception as error:
            return problem(request, error)

    async def _read(self, endpoint: Endpoint, request: Request, front: Front) -> Visit:
        raw, body = b"", None
        if endpoint.body is not None:
            raw = await read_body(request, self._settings.max_body)
            body = endpoint.body.model_validate(decode(raw) if raw or endpoint.body_required else {})
        mcp_url = partial(self._mcp_url, request)
        return Visit(front, request.path_params, request.query_params, raw, body, self.server_id, mcp_url)

    def _mcp_url(self, request: Request, runtime_id: str) -> str:
        url = f"{request.base_url}trials/{runtime_id}/mcp"
        token = self._settings.token
        return url if token is None else f"{url}?key={trial_key(token, runtime_id)}"

    async def _carry_out(self, endpoint: Endpoint, visit: Visit, request: Request) -> Any:
        key = key_of(request)
        value = await self._carry_out_once(endpoint, visit, request, key)
        if endpoint.method == "DELETE":  # nobody asks again for what a closed trial gave
            self._operations.drop(visit.scope, but=key)
        return value

    async def _carry_out_once(self, endpoint: Endpoint, visit: Visit, request: Request, key: str | None) -> Any:
        wait = wait_of(request)
        work = partial(endpoint.handle, visit)
        if key is None and endpoint.undo is None:
            return await work()
        undo = partial(endpoint.undo, visit.front) if endpoint.undo is not None else None
        operation = self._operations.begin(visit.scope, key, digest(request, visit.raw), work, undo)
        return await outcome_of(operation, request, wait if key is not None else None)

    async def _ask_apart(self, gone: Gone, runtime_id: str, action: Action, *arguments: Any) -> Any:
        """Ask in a task of its own: a client that goes away must not break the trial in the middle of a call."""
        if self.front is None:
            raise NotFound("trial", runtime_id)
        work = partial(self.front.ask, runtime_id, action, *arguments)
        with self.front.visits.to(("trial", runtime_id), gone):
            return await self._operations.begin(runtime_id, None, b"", work).outcome()

    async def _serve_mcp(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if self.front is None:
                raise NotFound("trial", scope["path_params"]["trial_id"])
            self.front.find(scope["path_params"]["trial_id"])
        except NotFound as error:
            await as_json(404, _rpc_error(error))(scope, receive, send)
            return
        bridge = self._mcp or await self._start_mcp()
        await bridge(scope, receive, send)

    async def _start_mcp(self) -> McpBridge:
        """With the first MCP client: the SDK takes longer to load than all the rest of a server."""
        async with self._mcp_starting:
            if self._mcp is None:
                module = await call_blocking(importlib.import_module, "corral.mcp_bridge")
                bridge: McpBridge = module.McpBridge(
                    self._ask_apart, VERSION, max_body=self._settings.max_body, max_result=self._settings.max_result
                )
                await self._tasks.start(bridge.run)
                self._mcp = bridge
        return self._mcp

    # ---- answers ----

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)

    async def _docs(self, request: Request) -> Response:
        return HTMLResponse(openapi.page(VERSION))

    async def _metrics(self, request: Request) -> Response:
        if self.front is None:
            return problem(request, NotStarted("the server has not started yet"))
        return Response(self.front.counters.text(), media_type=counters.CONTENT_TYPE)


class _App:
    """An ASGI application as an object: Starlette takes a function, or a method, for a handler of requests."""

    def __init__(self, serve: Callable[..., Any]) -> None:
        self._serve = serve

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._serve(scope, receive, send)


def _rpc_error(error: NotFound) -> dict[str, Any]:
    """For MCP clients, which read errors of their own kind only."""
    _, problem, _ = to_problem(error)
    return {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": str(error), "data": problem}}


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = "not_found" if error.status_code == 404 else "refused"
    detail = f"there is no {request.method} {request.url.path} here; /docs lists what there is"
    return as_json(error.status_code, {"kind": kind, "detail": detail}, dict(error.headers or {}))


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
