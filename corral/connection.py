"""What a run works against: its interface, whatever it is, behind one set of asynchronous calls.

A mapping or builder of environments gets a TrialService in this process, and a pool where one is asked for. Any other
object is taken for a router: sync or async, ours or anyone's.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import anyio

from corral.errors import ConfigError, NotFound
from corral.plan import Plan
from corral.pool.config import WorkerPoolConfig
from corral.pool.supervisor import WorkerPool
from corral.routers import AsyncLocalRouter, LocalRouter, SyncRouter
from corral.runtime import describe
from corral.scratch import scratch_folder
from corral.service import ServiceLimits, TrialService
from corral.settings import RunSettings
from corral.source import EnvironmentSource
from corral.threads import Bridge, call_blocking
from corral.types import ConcurrencyConfig, TaskInfo, check_mode


class Connection:
    """A router, sync or async, and what is known of its tasks."""

    def __init__(
        self, router: Any, catalogue: Mapping[str, TaskInfo], *, pool: WorkerPool | None = None, fingerprint: str
    ) -> None:
        self.router = router
        self.catalogue = dict(catalogue)
        self.pool = pool
        self.fingerprint = fingerprint
        self.has_remote_pool = False
        """Whether the router's own side runs process-class trials on a pool."""
        self.remote_slots: int | None = None
        """The size of that pool, where the router tells it."""
        self.has_trials = hasattr(router, "create_trial")
        create = getattr(router, "create_trial", None)
        self._takes = set(inspect.signature(create).parameters) & {"seed", "outputs"} if create is not None else set()
        self._bridge = Bridge()

    @property
    def takes_outputs(self) -> bool:
        """Whether trials can be opened with outputs of tasks that did not run there."""
        return "outputs" in self._takes

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of a router, on the loop or in a thread, as it wants."""
        if _is_async(method):
            return await method(*args, **kwargs)
        value = await call_blocking(partial(method, *args, **kwargs))
        return await value if inspect.isawaitable(value) else value

    async def open_trial(
        self,
        task_id: str,
        run_id: str,
        episode_id: str | None,
        trial_index: int,
        tool_jobs: int,
        **wanted: Any,
    ) -> dict[str, Any]:
        """Open a trial runtime; without trial runtimes, the task's shared surface stands for it.

        ``wanted``: ``seed`` and ``outputs``, for routers that take them.
        """
        if not self.has_trials:
            return {"trial_runtime_id": None, "workspace": None, "lent": _Lent(self.router, task_id)}
        more = {name: value for name, value in wanted.items() if name in self._takes}
        opened: dict[str, Any] = await self.call(
            self.router.create_trial, task_id, run_id, episode_id, trial_index, tool_jobs, **more
        )
        return opened

    def bind(self, opened: Mapping[str, Any], task_id: str, settings: RunSettings) -> Any:
        """The router of one open trial."""
        if opened["trial_runtime_id"] is None:
            return opened["lent"]
        return self.router.for_trial(
            opened["trial_runtime_id"], task_id, verbosity=settings.tool_verbosity, workspace=opened.get("workspace")
        )

    def interface_for(self, on_loop: bool, bound: Any) -> Any:
        """The trial's router as its agent wants it: asynchronous on the loop, synchronous in a thread."""
        is_async = _is_async(bound.execute_tool)
        if on_loop:
            return bound if is_async else _InThreads(bound)
        return SyncRouter(bound, self._bridge.call) if is_async else bound

    async def review(self, opened: Mapping[str, Any]) -> None:
        """Have the router's ``watch`` show what its own side saw of a trial: an agent may have gone past the router."""
        review = getattr(self.router, "review_trial", None)
        if review is not None and opened.get("trial_runtime_id") is not None:
            with contextlib.suppress(NotFound):  # a server that does not tell
                await self.call(review, opened["trial_runtime_id"])

    async def close_trial(self, opened: Mapping[str, Any]) -> dict[str, Any]:
        """Close a trial runtime; what its router says of it."""
        if opened["trial_runtime_id"] is None:
            opened["lent"].take_back()
            return {}
        closed = await self.call(self.router.close_trial, opened["trial_runtime_id"])
        return closed if isinstance(closed, dict) else {}

    async def close_episode(self, episode_id: str) -> None:
        """Close an episode."""
        if hasattr(self.router, "close_episode"):
            await self.call(self.router.close_episode, episode_id)

    def check(self, plan: Plan, limits: ConcurrencyConfig) -> None:
        """ConfigError for a plan that this router cannot run."""
        if self.has_trials:
            return
        wanted = None
        if limits.per_task > 1:
            wanted = "max_concurrency_per_task above 1"
        elif plan.has_chains and limits.global_trials > 1:
            wanted = "running chains of tasks concurrently"
        elif self.has_remote_pool and limits.global_trials > 1 and plan.has_mode("process"):
            wanted = "running process-class trials on a worker pool"
        if wanted:
            name = type(self.router).__name__
            raise ConfigError(f"{wanted} needs trial runtimes, and {name} has no create_trial")


def _is_async(method: Callable[..., Any]) -> bool:
    """Whether ``method`` gives something to await. The functions of classes, which all trials call, are asked once."""
    function = getattr(method, "__func__", None)
    return inspect.iscoroutinefunction(method) if function is None else _is_async_function(function)


@lru_cache(maxsize=256)
def _is_async_function(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function)


class _Lent:
    """A router without trial runtimes, lent to one trial. Who acts after that trial's end gets NotFound."""

    def __init__(self, router: Any, task_id: str) -> None:
        self._router = router
        self._task_id = task_id
        self._is_over = False

    def take_back(self) -> None:
        self._is_over = True

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._router, name)
        if not callable(value):
            return value

        async def later(*args: Any, **kwargs: Any) -> Any:
            self._check()
            return await value(*args, **kwargs)

        def now(*args: Any, **kwargs: Any) -> Any:
            self._check()
            return value(*args, **kwargs)

        return later if inspect.iscoroutinefunction(value) else now

    def _check(self) -> None:
        if self._is_over:
            raise NotFound("trial", self._task_id)


class _InThreads:
    """An asynchronous view of a synchronous router."""

    def __init__(self, router: Any) -> None:
        self._router = router

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._router, name)
        if not callable(value) or name in ("for_trial", "set_verbosity"):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await call_blocking(partial(value, *args, **kwargs))

        return call


def source_of(interface: Any) -> EnvironmentSource | None:
    """The environments behind an interface that runs in-process; None for a router. ConfigError for anything else."""
    if isinstance(interface, LocalRouter):
        return interface.source
    if isinstance(interface, type):
        raise ConfigError(f"interface must be an object, not the class {interface.__qualname__}: call it first")
    if hasattr(interface, "get_available_tasks"):
        return None
    if isinstance(interface, Mapping) or callable(interface):
        return EnvironmentSource(interface)
    raise ConfigError(
        "interface must be a router, a mapping {task_id: Environment} or a function that returns one, "
        f"not {interface!r}"
    )


@contextlib.asynccontextmanager
async def connect(interface: Any, settings: RunSettings) -> AsyncIterator[Connection]:
    """Open what the run works against, and close it."""
    source = source_of(interface)
    if source is None:
        if settings.worker_pool is not None:
            raise ConfigError(
                "worker_pool needs an interface that runs in-process (environments or a builder); with a router the "
                "pool belongs to its server: start that one with a pool"
            )
        for name in ("tool_timeout", "configure_timeout", "setup_timeout"):
            if getattr(settings, name) is not None:
                raise ConfigError(
                    f"{name} needs an interface that runs in-process; with a router it is its server's to set"
                )
        connection = await _connect_router(interface)
        try:
            yield connection
        finally:  # its connections belong to this event loop; the router itself can be used again
            with anyio.move_on_after(5, shield=True):
                await _ask(connection, "disconnect", None)
        return
    async with contextlib.AsyncExitStack() as stack:
        pool = None
        if settings.worker_pool is not None:
            # One worker at first: it says how many trials there are that could use more.
            first = _resized(settings.worker_pool, 1)
            pool = await stack.enter_async_context(WorkerPool(source.build, first))
            catalogue = pool.catalogue
        else:
            catalogue = await call_blocking(lambda: describe(source.here()))
        work_root = Path(stack.enter_context(scratch_folder()))
        limits = ServiceLimits(
            settings.tool_timeout,
            settings.configure_timeout,
            close_timeout=settings.close_timeout,
            setup_timeout=settings.setup_timeout or settings.trial_timeout,
        )
        service = TrialService(source, catalogue, pool=pool, limits=limits, work_root=work_root)
        stack.push_async_callback(service.aclose)
        router = AsyncLocalRouter(service, verbosity=settings.tool_verbosity)
        yield Connection(router, catalogue, pool=pool, fingerprint=source.fingerprint())


def _resized(config: WorkerPoolConfig, size: int) -> WorkerPoolConfig:
    from dataclasses import replace

    return replace(config, size=size)


async def _connect_router(router: Any) -> Connection:
    connection = Connection(router, {}, fingerprint="router")
    task_ids = await connection.call(router.get_available_tasks)
    modes = await _ask(connection, "get_concurrency_modes", {})
    graph = await _ask(connection, "get_dependency_graph", {})
    connection.has_remote_pool = bool(await _ask(connection, "get_trial_worker_active", False))
    connection.remote_slots = await _ask(connection, "get_trial_worker_size", None)
    for task_id in task_ids:
        mode = check_mode(modes.get(task_id, "thread"), f"task {task_id!r}")
        connection.catalogue[task_id] = TaskInfo(task_id, mode, tuple(graph.get(task_id, ())), configures=True)
    return connection


async def _ask(connection: Connection, name: str, otherwise: Any) -> Any:
    method = getattr(connection.router, name, None)
    return otherwise if method is None else await connection.call(method)
