"""What ``bench`` was asked for, checked before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from corral.errors import ConfigError
from corral.header import check_session_id
from corral.pool.config import WorkerPoolConfig
from corral.types import ConcurrencyConfig, Verbosity, check_count, check_flag, check_seconds, check_verbosity, shown

States = Literal["memory", "disk"]
"""Where the states and transcripts of recorded trials are kept while a run goes on."""


@dataclass(frozen=True)
class RunSettings:
    """The arguments of ``bench``, valid and complete. ``check`` makes one from what the user gave."""

    task_ids: tuple[str, ...] | None
    trials_per_task: int
    k_values: tuple[int, ...]
    limits: ConcurrencyConfig
    worker_pool: WorkerPoolConfig | None
    session_id: str | None
    run_name: str | None
    resume: bool
    retry_errors: bool
    retries: int
    seed: int | None
    trial_timeout: float | None
    tool_timeout: float | None
    configure_timeout: float | None
    tool_verbosity: Verbosity
    progress: Any
    setup_timeout: float | None = None
    close_timeout: float = 10.0
    states: States = "memory"

    def described(self) -> dict[str, Any]:
        """What of it the report tells."""
        return {
            "max_concurrency": self.limits.global_trials,
            "max_concurrency_per_task": self.limits.per_task,
            "per_model": dict(self.limits.per_model or {}),
            "tool_jobs_per_trial": self.limits.tool_jobs_per_trial,
            "configure_apps": self.limits.configure_apps,
            "worker_pool": self.worker_pool is not None,
            "reuse": self.worker_pool.reuse if self.worker_pool else None,
            "retries": self.retries,
            "trial_timeout": self.trial_timeout,
            "tool_timeout": self.tool_timeout,
            "configure_timeout": self.configure_timeout,
            "setup_timeout": self.setup_timeout,
            "close_timeout": self.close_timeout,
        }


def check_settings(
    *,
    task_ids: Any,
    trials_per_task: Any,
    k_values: Any,
    max_concurrency: Any,
    max_concurrency_per_task: Any,
    concurrency: Any,
    worker_pool: Any,
    session_id: Any,
    run_name: Any,
    resume: Any,
    retry_errors: Any,
    retries: Any,
    seed: Any,
    trial_timeout: Any,
    tool_timeout: Any,
    configure_timeout: Any,
    tool_verbosity: Any,
    verbose: Any,
    progress: Any,
    setup_timeout: Any = None,
    close_timeout: Any = 10.0,
    states: Any = "memory",
) -> RunSettings:
    """Settings from what the user gave; ConfigError naming the first argument that cannot be used."""
    trials = check_count(trials_per_task, "trials_per_task")
    close_limit = check_seconds(close_timeout, "close_timeout")
    if close_limit is None:
        raise ConfigError("close_timeout must be a number of seconds: a slot must not wait for ever")
    if states not in get_args(States):
        raise ConfigError(f'states must be "memory" or "disk", not {shown(states)}')
    return RunSettings(
        task_ids=_check_tasks(task_ids),
        trials_per_task=trials,
        k_values=_check_k(k_values, trials),
        limits=_check_limits(concurrency, max_concurrency, max_concurrency_per_task),
        worker_pool=_check_pool(worker_pool),
        session_id=None if session_id is None else check_session_id(session_id),
        run_name=_check_name(run_name),
        resume=check_flag(resume, "resume"),
        retry_errors=check_flag(retry_errors, "retry_errors"),
        retries=check_count(retries, "retries", least=0),
        seed=None if seed is None else check_count(seed, "seed", least=0),
        trial_timeout=check_seconds(trial_timeout, "trial_timeout"),
        tool_timeout=check_seconds(tool_timeout, "tool_timeout"),
        configure_timeout=check_seconds(configure_timeout, "configure_timeout"),
        tool_verbosity="brief" if tool_verbosity is None else check_verbosity(tool_verbosity),
        progress=True if progress is None and verbose else progress,
        setup_timeout=check_seconds(setup_timeout, "setup_timeout"),
        close_timeout=close_limit,
        states=states,
    )


def _check_tasks(task_ids: Any) -> tuple[str, ...] | None:
    if task_ids is None:
        return None
    if isinstance(task_ids, str | bytes) or not isinstance(task_ids, Iterable):
        raise ConfigError(f"task_ids must be a list of task ids, not {shown(task_ids)}")
    chosen = tuple(task_ids)
    if not chosen:
        raise ConfigError("task_ids is empty: leave it out to run every task")
    if wrong := [task for task in chosen if not isinstance(task, str)]:
        raise ConfigError(f"task_ids must hold texts, not {shown(wrong[0])}")
    if twice := [task for task, times in Counter(chosen).items() if times > 1]:
        raise ConfigError(f"task_ids names a task twice: {', '.join(map(repr, twice))}")
    return chosen


def _check_k(k_values: Any, trials: int) -> tuple[int, ...]:
    if k_values is None:
        return tuple(sorted({1, trials}))
    if isinstance(k_values, str | bytes) or not isinstance(k_values, Iterable):
        raise ConfigError(f"k_values must be a list of whole numbers, not {shown(k_values)}")
    wanted = tuple(dict.fromkeys(check_count(k, "k_values") for k in k_values))
    if not wanted:
        raise ConfigError("k_values is empty: leave it out for 1 and the number of trials")
    for k in wanted:
        if k > trials:
            raise ConfigError(f"k_values: k = {k} needs at least {k} trials per task, and trials_per_task is {trials}")
    return wanted


def _check_limits(concurrency: Any, trials: Any, per_task: Any) -> ConcurrencyConfig:
    trials, per_task = check_count(trials, "max_concurrency"), check_count(per_task, "max_concurrency_per_task")
    if concurrency is None:
        return ConcurrencyConfig(global_trials=trials, per_task=per_task)
    if not isinstance(concurrency, ConcurrencyConfig):
        raise ConfigError(f"concurrency must be a ConcurrencyConfig, not {shown(concurrency)}")
    return concurrency


def _check_pool(worker_pool: Any) -> WorkerPoolConfig | None:
    if worker_pool is False or worker_pool is None:
        return None
    if worker_pool is True:
        return WorkerPoolConfig()
    if isinstance(worker_pool, WorkerPoolConfig):
        return worker_pool
    if hasattr(worker_pool, "__index__"):
        return WorkerPoolConfig(size=worker_pool)
    raise ConfigError(
        f"worker_pool must be True, False, a number of workers or a WorkerPoolConfig, not {shown(worker_pool)}"
    )


def _check_name(run_name: Any) -> str | None:
    if run_name is not None and not isinstance(run_name, str):
        raise ConfigError(f"run_name must be text, not {shown(run_name)}")
    return run_name
