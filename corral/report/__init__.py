"""What comes out of a run: figures (``metrics``), the result object, files, tables and progress displays.

Only ``rendering`` and the live progress display need rich, and nothing here imports them.
"""

from __future__ import annotations

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
