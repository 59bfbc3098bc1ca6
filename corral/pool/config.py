"""How a pool is set up: its settings, checked, and the default size of this machine."""

from __future__ import annotations

import math
import operator
import os
import re
from pathlib import Path
from typing import Any, Literal, get_args

from corral.errors import ConfigError
from corral.lean import dataclass
from corral.pool.dask.config import DaskConfig
from corral.types import FreshMode, check_count, check_path, check_seconds, shown

Backend = Literal["local", "dask"]
Reuse = Literal["trial", "worker"]

CGROUPS = Path("/sys/fs/cgroup")
"""Where the system tells what the control group of this process may use."""

MAX_SIZE = 512
"""Workers of one pool: each costs an interpreter, and descriptors of the supervisor (``descriptors``)."""

MIN_MEMORY = 32 * 2**20
"""Bytes of the least memory limit: a trial process that does nothing takes as much."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(value: Any, name: str) -> int:
    """A number of bytes, from an int or text such as ``2GiB``, ``500 MB``, ``1g``; else ConfigError naming ``name``."""
    if hasattr(value, "__index__") and not isinstance(value, bool | type) and (number := operator.index(value)) > 0:
        return number
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?)?b?\s*", value, re.IGNORECASE)
        size = float(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
        if 1 <= size < math.inf:
            return int(size)
    raise ConfigError(f'{name} must be a positive number of bytes or a size such as "2GiB", not {shown(value)}')


def available_cpus() -> int:
    """The processors that this process may use: its affinity, and its cgroup's quota, rounded up."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, math.ceil(quota)) if quota else count)


def _cgroup_quota() -> float | None:
    """Processors that the control group grants (v2, then v1), or None for no limit."""
    try:
        quota, period = (CGROUPS / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        base = CGROUPS / "cpu"
        quota_us = int((base / "cpu.cfs_quota_us").read_text())
        return quota_us / int((base / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _check_choice(value: object, choices: tuple[str, ...], name: str) -> None:
    if value not in choices:
        listed = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"{name} must be {listed}, not {shown(value)}")


@dataclass(frozen=True)
class WorkerPoolConfig:
    """Settings of a worker pool. Each is checked at once: ConfigError (a ValueError) naming the field."""

    size: int | None = None
    """Workers. None: as many as the processors that this process may use (affinity and cgroup quota)."""
    start_timeout: float = 60.0
    """Seconds that a worker may take from its spawn until its environments are loaded."""
    memory_limit: int | str | None = None
    """Bytes, or text such as ``"2GiB"``, that a trial process and all its children may use together: resident memory.
    On Linux what they share counts once, elsewhere for each of them."""
    max_trials_per_worker: int | None = None
    """Trials after which a worker is replaced by a new one."""
    reuse: Reuse = "trial"
    """``"trial"``: fresh process state for every trial or episode. ``"worker"``: one process serves many."""
    fresh: FreshMode = "auto"
    """How fresh process state is made: ``"fork"`` from a loaded, clean worker, ``"spawn"`` of a new interpreter (one is
    kept warm), or ``"auto"``: fork where that is sound (Linux, and loading left one thread), else spawn."""
    log_dir: str | os.PathLike[str] | None = None
    """Where the workers' output is kept whole: ``slot-0.log``, ``slot-1.log``, ... A run beside another one with the
    same folder writes to ``slot-0.2.log``, ... None: the output's end only, for the run only."""
    backend: Backend = "local"
    """Where the workers run. ``"local"``: on this machine. ``"dask"``: on the nodes of a Dask cluster."""
    dask: DaskConfig | None = None
    """Which cluster, and what holds on its nodes. None: some nodes on this machine, to try it."""

    def __post_init__(self) -> None:
        if self.size is not None:
            object.__setattr__(self, "size", check_count(self.size, "worker pool size"))
            if self.workers > MAX_SIZE:
                raise ConfigError(f"worker pool size must be at most {MAX_SIZE}, not {self.size}")
        if (patience := check_seconds(self.start_timeout, "start_timeout")) is None:
            raise ConfigError("start_timeout must be a number of seconds: a worker that never starts must be noticed")
        object.__setattr__(self, "start_timeout", patience)
        if self.max_trials_per_worker is not None:
            most = check_count(self.max_trials_per_worker, "max_trials_per_worker")
            object.__setattr__(self, "max_trials_per_worker", most)
        if self.memory_limit is not None:
            limit = parse_bytes(self.memory_limit, "memory_limit")
            if limit < MIN_MEMORY:
                raise ConfigError(
                    f"memory_limit must be at least {MIN_MEMORY // 2**20} MiB, which a trial process takes by itself, "
                    f'not {limit} bytes; sizes have units, such as "2GiB"'
                )
            object.__setattr__(self, "memory_limit", limit)
        if self.log_dir is not None:
            check_path(self.log_dir, "log_dir")
        _check_choice(self.reuse, get_args(Reuse), "reuse")
        _check_choice(self.fresh, get_args(FreshMode), "fresh")
        _check_choice(self.backend, get_args(Backend), "backend")
        if self.dask is not None and not isinstance(self.dask, DaskConfig):
            raise ConfigError(f"dask must be a DaskConfig, not {shown(self.dask)}")
        if self.dask is not None and self.backend != "dask":
            raise ConfigError('a DaskConfig is for backend="dask"')

    @property
    def workers(self) -> int:
        """The size, or the machine's default."""
        return self.size if self.size is not None else available_cpus()

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit in bytes."""
        return None if self.memory_limit is None else parse_bytes(self.memory_limit, "memory_limit")
