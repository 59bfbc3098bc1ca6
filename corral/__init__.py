"""Corral: benchmarks of LLM agents against simulation-backed environments.

Every public name is importable from here and loaded when it is first used, so that ``import corral`` costs nothing and
a worker loads no more than it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.environment import Environment, build_environments
    from corral.remote import AsyncCorralRouter, CorralRouter
    from corral.report.result import BenchmarkResult, TaskTrialResults
    from corral.routers import LocalRouter
    from corral.runner import CorralRunner
    from corral.server import create_benchmark_server, run_server
    from corral.tasks import InputRef, TaskDefinition
    from corral.tools import Tool, tool
    from corral.types import ConcurrencyConfig, FailureKind, TaskTrialResult, TrialContext

__version__ = "0.1.0"

_HOMES = {
    "AsyncCorralRouter": "corral.remote",
    "BenchmarkResult": "corral.report.result",
    "ConcurrencyConfig": "corral.types",
    "CorralRouter": "corral.remote",
    "CorralRunner": "corral.runner",
    "Environment": "corral.environment",
    "FailureKind": "corral.types",
    "InputRef": "corral.tasks",
    "LocalRouter": "corral.routers",
    "TaskDefinition": "corral.tasks",
    "TaskTrialResult": "corral.types",
    "TaskTrialResults": "corral.report.result",
    "Tool": "corral.tools",
    "TrialContext": "corral.types",
    "build_environments": "corral.environment",
    "create_benchmark_server": "corral.server",
    "run_server": "corral.server",
    "tool": "corral.tools",
}

__all__ = [
    "AsyncCorralRouter", "BenchmarkResult", "ConcurrencyConfig", "CorralRouter", "CorralRunner", "Environment",
    "FailureKind", "InputRef", "LocalRouter", "TaskDefinition", "TaskTrialResult", "TaskTrialResults", "Tool",
    "TrialContext", "build_environments", "create_benchmark_server", "run_server", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
