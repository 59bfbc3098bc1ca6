"""What comes out of a run: figures (``metrics``), the result object, files, tables and progress displays.

Only ``rendering`` and the live progress display need rich, and nothing here imports them. What this names is imported
when it is asked for: the shell command's signals are dealt with from its first moment on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.report.comparison import Comparison, compare
    from corral.report.figures import Cost
    from corral.report.files import stable, stable_bytes
    from corral.report.intervals import Difference, Estimate
    from corral.report.metrics import Metric, pass_at_k, pass_hat_k
    from corral.report.result import BenchmarkResult, Coverage, TaskTrialResults
    from corral.report.sessions import open_session

__all__ = [
    "BenchmarkResult", "Comparison", "Cost", "Coverage", "Difference", "Estimate", "Metric", "TaskTrialResults",
    "compare", "open_session", "pass_at_k", "pass_hat_k", "stable", "stable_bytes",
]  # fmt: skip

_HOMES = {
    "comparison": ("Comparison", "compare"),
    "figures": ("Cost",),
    "files": ("stable", "stable_bytes"),
    "intervals": ("Difference", "Estimate"),
    "metrics": ("Metric", "pass_at_k", "pass_hat_k"),
    "result": ("BenchmarkResult", "Coverage", "TaskTrialResults"),
    "sessions": ("open_session",),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"corral.report.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
