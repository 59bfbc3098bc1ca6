"""What ``bench`` returns: the trials of each task, the figures over them, and the report as data or as a file.

A trial that is not graded counts as 0 in every figure; ``coverage`` says how many there were and the bounds say what
the figure could have been. A planned trial without a record counts as cancelled: the run was stopped before it. Where
there is nothing to average a figure is NaN, and null in the report.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from corral.errors import ConfigError, FailureKind, NotFound
from corral.plain import plain
from corral.report import files, metrics
from corral.report.metrics import Bounds, Metric
from corral.types import TaskTrialResult

SCHEMA = 1
"""The version of the report's layout (docs/report.md)."""

_CONSEQUENCES = (FailureKind.NOT_RUN, FailureKind.CANCELLED)


@dataclass(frozen=True)
class Coverage:
    """How much of the plan was graded, and what became of the rest."""

    planned: int
    graded: int
    not_graded: dict[str, int]
    """Trials that were not graded, by kind of failure."""
    failures: dict[str, int]
    """All trials that failed, by kind: also those that are graded with 0, such as a trial time limit."""

    @property
    def complete(self) -> bool:
        """Whether every planned trial was graded."""
        return self.graded == self.planned


@dataclass(frozen=True)
class TaskTrialResults:
    """The trials of one task, ordered by index."""

    task_id: str
    trials: tuple[TaskTrialResult, ...] = ()
    planned: int = 0
    """Trials planned, where there may be more than have a record."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trials", tuple(sorted(self.trials, key=lambda trial: trial.trial_index)))

    @property
    def n(self) -> int:
        """Trials planned; those without a record are among them."""
        return max(self.planned, len(self.trials))

    @property
    def graded(self) -> int:
        """Trials that the scorer gave a score, or that ended by the agent's own doing."""
        return sum(trial.graded for trial in self.trials)

    @property
    def not_graded(self) -> dict[str, int]:
        """Trials that were not graded, by kind of failure."""
        kinds = Counter(_kind(trial) for trial in self.trials if not trial.graded)
        return dict(kinds + Counter({FailureKind.CANCELLED.value: self.n - len(self.trials)}))

    @property
    def failures(self) -> dict[str, int]:
        """All trials that failed, by kind, graded with 0 or not graded."""
        graded = Counter(trial.failure.value for trial in self.trials if trial.graded and trial.failure is not None)
        return dict(Counter(self.not_graded) + graded)

    @property
    def successes(self) -> int:
        """Graded trials with a score above 0, no error and no surrender."""
        return sum(trial.graded and trial.success for trial in self.trials)

    @property
    def scores(self) -> list[float]:
        """The score of each planned trial, 0 where it was not graded."""
        return [0.0 if score is None else score for score in self._scores]

    @property
    def _scores(self) -> list[float | None]:
        known = [float(trial.score) if trial.graded else None for trial in self.trials]
        return known + [None] * (self.n - len(known))

    @property
    def average_score(self) -> float:
        """The mean over the planned trials."""
        return metrics.mean(self.scores)

    @property
    def average_score_bounds(self) -> Bounds:
        """What the average could be, had the trials that were not graded scored 0, or 1."""
        return metrics.score_bounds(self._scores)

    def pass_at_k(self, k: int) -> float:
        """The chance that at least one of k trials is a success."""
        return metrics.pass_at_k(self.n, self.successes, k)

    def pass_hat_k(self, k: int) -> float:
        """The chance that all of k trials are successes."""
        return metrics.pass_hat_k(self.n, self.successes, k)

    def pass_at_k_bounds(self, k: int) -> Bounds:
        """What pass@k could be, had the trials that were not graded failed, or succeeded."""
        return metrics.pass_at_k_bounds(self.n, self.successes, self.n - self.graded, k)

    def pass_hat_k_bounds(self, k: int) -> Bounds:
        """What pass^k could be, had the trials that were not graded failed, or succeeded."""
        return metrics.pass_hat_k_bounds(self.n, self.successes, self.n - self.graded, k)

    def to_report(self, k_values: Sequence[int] = ()) -> dict[str, Any]:
        """The task's part of the report."""
        return {
            "average_score": self.average_score,
            "average_score_bounds": self.average_score_bounds,
            "scores": self.scores,
            "planned": self.n,
            "successes": self.successes,
            "graded": self.graded,
            "not_graded": self.not_graded,
            "pass_at_k": _by_k(self.pass_at_k, k_values),
            "pass_hat_k": _by_k(self.pass_hat_k, k_values),
            "trials": [_trial_report(trial) for trial in self.trials],
        }


@dataclass(kw_only=True)
class BenchmarkResult:
    """The result of a run."""

    session_id: str
    task_results: dict[str, TaskTrialResults] = field(repr=False)
    """By task id, in the order of the plan."""
    trials_per_task: int = 1
    k_values: tuple[int, ...] = (1,)
    """The k for which the report gives pass@k and pass^k."""
    run_name: str | None = None
    seed: int | None = None
    pool: object = None
    """Statistics of the worker pool (a mapping or a dataclass), where there was one."""
    wall_seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    """Concurrency, retries, limits: how the run was made."""
    journal: Path | None = None
    """The session's journal."""
    metrics: tuple[Metric, ...] = ()
    """Figures of the user's own."""
    created: datetime = field(default_factory=lambda: datetime.now().astimezone())

    def __post_init__(self) -> None:
        self.k_values = tuple(self.k_values)
        self.metrics = tuple(self.metrics)
        self.task_results = {
            task_id: task if task.planned else replace(task, planned=self.trials_per_task)
            for task_id, task in self.task_results.items()
        }

    @classmethod
    def collect(
        cls, session_id: str, task_ids: Iterable[str], records: Iterable[TaskTrialResult], **more: Any
    ) -> BenchmarkResult:
        """The result of a plan's tasks, from the records of their trials in any order."""
        by_task: dict[str, list[TaskTrialResult]] = {task_id: [] for task_id in task_ids}
        for record in records:
            if record.task_id not in by_task:
                raise NotFound("task", record.task_id, list(by_task))
            by_task[record.task_id].append(record)
        tasks = {task_id: TaskTrialResults(task_id, tuple(trials)) for task_id, trials in by_task.items()}
        return cls(session_id=session_id, task_results=tasks, **more)

    @property
    def trials(self) -> Iterator[TaskTrialResult]:
        """Every record, in the order of the plan."""
        return (trial for task in self.task_results.values() for trial in task.trials)

    @property
    def total_score(self) -> float:
        """The sum of the scores of all trials."""
        return metrics.total(score for task in self._tasks for score in task.scores)

    def average_score(self) -> float:
        """The mean over the tasks of the mean over their trials."""
        return metrics.mean(task.average_score for task in self._tasks)

    def average_score_bounds(self) -> Bounds:
        """What the average could be, had the trials that were not graded scored 0, or 1."""
        return metrics.mean_bounds(task.average_score_bounds for task in self._tasks)

    def task_average_score(self, task_id: str) -> float:
        """The mean over the trials of one task."""
        if task_id not in self.task_results:
            raise NotFound("task", task_id, list(self.task_results))
        return self.task_results[task_id].average_score

    def pass_at_k(self, k: int) -> float:
        """The chance that at least one of k trials of a task is a success, averaged over the tasks."""
        self._check_k(k)
        return metrics.mean(task.pass_at_k(k) for task in self._tasks)

    def pass_hat_k(self, k: int) -> float:
        """The chance that all of k trials of a task are successes, averaged over the tasks."""
        self._check_k(k)
        return metrics.mean(task.pass_hat_k(k) for task in self._tasks)

    def pass_at_k_bounds(self, k: int) -> Bounds:
        """What pass@k could be, had the trials that were not graded failed, or succeeded."""
        self._check_k(k)
        return metrics.mean_bounds(task.pass_at_k_bounds(k) for task in self._tasks)

    def pass_hat_k_bounds(self, k: int) -> Bounds:
        """What pass^k could be, had the trials that were not graded failed, or succeeded."""
        self._check_k(k)
        return metrics.mean_bounds(task.pass_hat_k_bounds(k) for task in self._tasks)

    @property
    def coverage(self) -> Coverage:
        """How many trials were planned and graded, and what became of the others."""
        return Coverage(
            planned=sum(task.n for task in self._tasks),
            graded=sum(task.graded for task in self._tasks),
            not_graded=_sum_counts(task.not_graded for task in self._tasks),
            failures=_sum_counts(task.failures for task in self._tasks),
        )

    def first_cause(self) -> str | None:
        """The first trial of the plan that was not graded, and why; None where all were graded.

        One that failed goes before those that were not run because of it, or because the run was stopped.
        """
        lost = sorted((trial for trial in self.trials if not trial.graded), key=lambda t: t.failure in _CONSEQUENCES)
        if lost:
            return f"{lost[0].trial_id}: {lost[0].error_message or _kind(lost[0])}"
        return None if self.coverage.complete else "the run was stopped before every trial had ended"

    def total_token_usage(self) -> dict[str, Any]:
        """The tokens of all trials: every number in their records added up by its name, nested ones too."""
        usage: dict[str, Any] = {}
        for trial in self.trials:
            _add_numbers(usage, plain(trial.token_usage))
        return usage

    @cached_property
    def metric_values(self) -> dict[str, Any]:
        """The values of the user's metrics by name, computed once; an error text where one raised."""
        return metrics.evaluate(self.metrics, self)

    def to_report(self) -> dict[str, Any]:
        """The report as strict JSON data (docs/report.md)."""
        coverage = self.coverage
        report = {
            "schema": SCHEMA,
            "session": self.session_id,
            "run_name": self.run_name,
            "seed": self.seed,
            "created": self.created.astimezone().isoformat(),
            "planned": coverage.planned,
            "graded": coverage.graded,
            "not_graded": coverage.not_graded,
            "failures": coverage.failures,
            "complete": coverage.complete,
            "average_score": self.average_score(),
            "average_score_bounds": self.average_score_bounds(),
            "total_score": self.total_score,
            "pass_at_k": _by_k(self.pass_at_k, self.k_values),
            "pass_at_k_bounds": _by_k(self.pass_at_k_bounds, self.k_values),
            "pass_hat_k": _by_k(self.pass_hat_k, self.k_values),
            "pass_hat_k_bounds": _by_k(self.pass_hat_k_bounds, self.k_values),
            "token_usage": self.total_token_usage(),
            "wall_s": self.wall_seconds,
            "settings": self.settings,
            "pool": self.pool,
            "journal": self.journal,
            "metrics": self.metric_values,
            "tasks": {task_id: task.to_report(self.k_values) for task_id, task in self.task_results.items()},
        }
        return plain(report)  # type: ignore[no-any-return]

    def generate_report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to ``path`` as strict JSON, in one step."""
        return files.write(path, files.dump(self.to_report()))

    @property
    def _tasks(self) -> Iterable[TaskTrialResults]:
        return self.task_results.values()

    def _check_k(self, k: int) -> None:
        metrics.check_k(k, min((task.n for task in self._tasks), default=self.trials_per_task))


def _kind(trial: TaskTrialResult) -> str:
    return "unknown" if trial.failure is None else trial.failure.value


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {kind: total[kind] for kind in sorted(total)}


def _by_k(figure: Callable[[int], float | Bounds], k_values: Sequence[int]) -> dict[str, float | Bounds | None]:
    """The figure for each k by its name; None where it does not exist, so that the report is never lost for one."""
    values: dict[str, float | Bounds | None] = {}
    for k in k_values:
        try:
            values[str(k)] = figure(k)
        except ConfigError:
            values[str(k)] = None
    return values


def _add_numbers(total: dict[str, Any], usage: Mapping[str, Any]) -> None:
    for name, value in usage.items():
        if isinstance(value, Mapping):
            if isinstance(nested := total.setdefault(name, {}), dict):
                _add_numbers(nested, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            so_far = total.get(name, 0)
            if not isinstance(so_far, dict):
                total[name] = so_far + value


def _trial_report(trial: TaskTrialResult) -> dict[str, Any]:
    return {
        "trial_index": trial.trial_index,
        "score": trial.score,
        "success": trial.success,
        "graded": trial.graded,
        "failure": trial.failure,
        "error_message": trial.error_message,
        "surrendered": trial.surrendered,
        "agent_status": trial.agent_status,
        "answer": trial.state.get("submitted_answer"),
        "state": trial.state,
        "tool_statistics": trial.tool_statistics,
        "token_usage": trial.token_usage,
        "messages": trial.messages,
        "attempts": trial.attempts,
        "worker": trial.worker,
        "timings": trial.timings,
        "duration": trial.duration,
        "warnings": trial.warnings,
    }
