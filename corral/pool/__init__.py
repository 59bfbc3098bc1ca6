"""The worker pool: spawned interpreters that hold the environments and run trials in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.pool.config import WorkerPoolConfig
    from corral.pool.dask.config import Certificates, DaskConfig
    from corral.pool.dask.launch import BatchNodes, LocalNodes, SSHNodes
    from corral.pool.lease import Lease
    from corral.pool.supervisor import NodeStatistics, PoolStatistics, WorkerPool, WorkerStatistics

__all__ = [
    "BatchNodes", "Certificates", "DaskConfig", "Lease", "LocalNodes", "NodeStatistics", "PoolStatistics", "SSHNodes",
    "WorkerPool", "WorkerPoolConfig", "WorkerStatistics",
]  # fmt: skip

_HOMES = {
    "WorkerPoolConfig": "corral.pool.config",
    "BatchNodes": "corral.pool.dask.launch",
    "Certificates": "corral.pool.dask.config",
    "DaskConfig": "corral.pool.dask.config",
    "Lease": "corral.pool.lease",
    "LocalNodes": "corral.pool.dask.launch",
    "NodeStatistics": "corral.pool.supervisor",
    "SSHNodes": "corral.pool.dask.launch",
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
