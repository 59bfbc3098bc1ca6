"""The worker pool: spawned interpreters that hold the environments and run trials in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.pool.config import WorkerPoolConfig
    from corral.pool.lease import Lease
    from corral.pool.supervisor import PoolStatistics, WorkerPool, WorkerStatistics

__all__ = ["Lease", "PoolStatistics", "WorkerPool", "WorkerPoolConfig", "WorkerStatistics"]

_HOMES = {
    "WorkerPoolConfig": "corral.pool.config",
    "Lease": "corral.pool.lease",
    "PoolStatistics": "corral.pool.supervisor",
    "WorkerPool": "corral.pool.supervisor",
    "WorkerStatistics": "corral.pool.supervisor",
}


def __getattr__(name: str) -> Any:
    # Lazy, since worker and supervisor share this package and neither should load the other's side.
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
