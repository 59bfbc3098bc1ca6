"""What comes out of a run: figures (``metrics``), the result object, files, tables and progress displays.

Only ``rendering`` and the live progress display need rich, and nothing here imports them.
"""

from __future__ import annotations

from corral.report.files import stable, stable_bytes
from corral.report.metrics import Metric, pass_at_k, pass_hat_k
from corral.report.figures import Cost
from corral.report.intervals import Difference, Estimate
from corral.report.result import BenchmarkResult, Coverage, TaskTrialResults

__all__ = [
    "BenchmarkResult", "Coverage", "Metric", "TaskTrialResults", "pass_at_k", "pass_hat_k", "stable", "stable_bytes",
]  # fmt: skip
