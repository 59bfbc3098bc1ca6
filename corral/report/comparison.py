"""Two runs compared on the tasks that both have, each task with itself: overall and per task. Pure.

Differences are after minus before. A trial that was not
graded counts as 0 here as everywhere, and ``not_graded`` says how many of each run did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from corral.errors import ConfigError
from corral.report.intervals import Difference, adjusted, paired, unpaired
from corral.report.result import BenchmarkResult
from corral.report.task_results import TaskTrialResults


@dataclass(frozen=True)
class TaskComparison:
    """One task in both runs."""

    task_id: str
    before: float
    """Its average score."""
    after: float
    trials: tuple[int, int]
    difference: Difference
    """Of the average scores, with Welch's interval and p-value over its trials; NaN with fewer than two each."""
    adjusted_p: float
    """The p-value corrected for the number of tasks looked at (Holm)."""


@dataclass(frozen=True)
class Comparison:
    """What changed from one run to another."""

    before: str
    """The session's id."""
    after: str
    average_score: Difference
    success_rate: Difference
    pass_at_k: dict[str, Difference]
    pass_hat_k: dict[str, Difference]
    tasks: tuple[TaskComparison, ...]
    only_before: tuple[str, ...]
    """Tasks that the other run does not have; they are left out."""
    only_after: tuple[str, ...]
    not_graded: tuple[int, int]


def compare(before: BenchmarkResult, after: BenchmarkResult) -> Comparison:
    """How ``after`` differs from ``before``. ConfigError where they have no task in common."""
    shared = [task_id for task_id in before.task_results if task_id in after.task_results]
    if not shared:
        raise ConfigError(f"sessions {before.session_id!r} and {after.session_id!r} have no task in common")
    pairs = [(before.task_results[task_id], after.task_results[task_id]) for task_id in shared]

    def over_tasks(figure: Callable[[TaskTrialResults], float]) -> Difference:
        return paired([figure(a) for a, _ in pairs], [figure(b) for _, b in pairs])

    fewest = min(min(a.n, b.n) for a, b in pairs)
    ks = sorted({k for k in (*before.k_values, *after.k_values) if k <= fewest})
    return Comparison(
        before=before.session_id,
        after=after.session_id,
        average_score=over_tasks(lambda task: task.average_score),
        success_rate=over_tasks(lambda task: task.successes / task.n),
        pass_at_k={str(k): over_tasks(lambda task, k=k: task.pass_at_k(k)) for k in ks},  # type: ignore[misc]
        pass_hat_k={str(k): over_tasks(lambda task, k=k: task.pass_hat_k(k)) for k in ks},  # type: ignore[misc]
        tasks=_by_task(pairs),
        only_before=tuple(task_id for task_id in before.task_results if task_id not in after.task_results),
        only_after=tuple(task_id for task_id in after.task_results if task_id not in before.task_results),
        not_graded=(sum(a.n - a.graded for a, _ in pairs), sum(b.n - b.graded for _, b in pairs)),
    )


def _by_task(pairs: list[tuple[TaskTrialResults, TaskTrialResults]]) -> tuple[TaskComparison, ...]:
    differences = [unpaired(a.scores, b.scores) for a, b in pairs]
    corrected = adjusted([difference.p_value for difference in differences])
    return tuple(
        TaskComparison(a.task_id, a.average_score, b.average_score, (a.n, b.n), difference, p)
        for (a, b), difference, p in zip(pairs, differences, corrected, strict=True)
    )
