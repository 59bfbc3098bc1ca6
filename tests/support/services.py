"""A TrialService, on a pool or without one, for the tests of what is built on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from corral import Environment
from corral.pool import WorkerPool, WorkerPoolConfig
from corral.runtime import describe
from corral.service import ServiceLimits, TrialService
from corral.source import EnvironmentSource

Build = Callable[[], dict[str, Environment]]


@asynccontextmanager
async def service(
    build: Build, folder: Path, *, size: int = 0, limits: ServiceLimits | None = None, **options: object
) -> AsyncIterator[TrialService]:
    """A service, on a pool with these ``options`` if it has a size."""
    source = EnvironmentSource(build)
    if size:
        async with WorkerPool(build, WorkerPoolConfig(size=size, **options)) as pool:  # type: ignore[arg-type]
            made = TrialService(source, pool.catalogue, pool=pool, limits=limits, work_root=folder)
            yield made
            await made.aclose()
    else:
        made = TrialService(source, describe(source.here()), limits=limits, work_root=folder)
        yield made
        await made.aclose()
