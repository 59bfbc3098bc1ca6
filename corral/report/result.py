"""What ``bench`` returns: the trials of each task, the figures over them, and the report as data or as a file.

A trial that is not graded counts as 0 in every figure; ``coverage`` says how many there were and the bounds say what
the figure could have been. A planned trial without a record counts as cancelled: the run was stopped before it. Where
there is nothing to average a figure is NaN, and null in the report.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from corral.errors import FailureKind, NotFound
from corral.plain import plain
from corral.report import exports, files, metrics
from corral.report.figures import add_numbers, resources
from corral.report.intervals import Estimate, estimate
from corral.report.metrics import Bounds, Metric
from corral.report.rows import to_frame
from corral.report.task_results import Coverage, TaskTrialResults, by_k, failure_kind, sum_counts, trial_report
from corral.types import TaskTrialResult

__all__ = ["BenchmarkResult", "Coverage", "TaskTrialResults"]

SCHEMA = 1
"""The version of the report's layout (docs/report.md)."""

_CONSEQUENCES = (FailureKind.NOT_RUN, FailureKind.CANCELLED)


def _as_it_is(trial: TaskTrialResult) -> TaskTrialResult:
    return trial


@dataclass(kw_only=True, repr=False)
class BenchmarkResult:
    """The result of a run. As text, and in a notebook, it is the tables that a run ends with on a terminal."""

    session_id: str
    task_results: dict[str, TaskTrialResults]
    """By task id, in the order of the plan."""
    trials_per_task: int = 1
    k_values: tuple[int, ...] = (1,)
    """The k for which the report gives pass@k and pass^k."""
    run_name: str | None = None
    model: str | None = None
    """The agent's label."""
    seed: int | None = None
    pool: object = None
    """Statistics of the worker pool (a mapping or a dataclass), where there was one."""
    wall_seconds: float | None = 0.0
    """None where it is not known: the run was killed."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Concurrency, retries, limits: how the run was made."""
    journal: Path | None = None
    """The session's journal."""
    running: bool = False
    """Whether the session's run went on when this was read: then trials without a record are still to come."""
    metrics: tuple[Metric, ...] = ()
    """Figures of the user's own."""
    created: datetime = field(default_factory=lambda: datetime.now().astimezone())
    whole: Callable[[TaskTrialResult], TaskTrialResult] = _as_it_is
    """Gives a trial with all that was recorded of it: results that were read from a journal leave most of it there."""

    def __post_init__(self) -> None:
        self.k_values = tuple(self.k_values)
        self.metrics = tuple(self.metrics)
        self.task_results = {
            task_id: task if task.planned else replace(task, planned=self.trials_per_task)
            for task_id, task in self.task_results.items()
        }

    def __repr__(self) -> str:
        coverage = self.coverage
        graded = f"{coverage.graded} of {coverage.planned} trials graded"
        return f"<BenchmarkResult {self.session_id!r}: {graded}, average score {self.average_score():.3f}>"

    def __str__(self) -> str:
        from corral.report.rendering import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from corral.report.rendering import as_html

        return as_html(self)

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
    def trials(self) -> tuple[TaskTrialResult, ...]:
        """Every record, in the order of the plan. Of a recorded session without transcripts: see ``whole_trials``."""
        return tuple(trial for task in self.task_results.values() for trial in task.trials)

    @property
    def whole_trials(self) -> Iterator[TaskTrialResult]:
        """Every record with all that is in it, in the order of the plan; read one by one where they are on the disk."""
        return map(self.whole, self.trials)

    # ---- figures ----

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

    def success_rate(self) -> float:
        """The mean over the tasks of the share of their trials that succeeded."""
        return metrics.mean(self._success_rates())

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

    # ---- the same with their errors ----

    def average_score_estimate(self) -> Estimate:
        """The average score with its standard error, clustered by task, and its 95 % interval."""
        average = self.average_score()
        variance = metrics.mean(metrics.mean((score - average) ** 2 for score in task.scores) for task in self._tasks)
        return self._estimate((task.average_score for task in self._tasks), variance)

    def success_rate_estimate(self) -> Estimate:
        """The success rate with its standard error, clustered by task, and its 95 % interval."""
        return self._estimate(self._success_rates())

    def pass_at_k_estimate(self, k: int) -> Estimate:
        """pass@k with its standard error, clustered by task, and its 95 % interval."""
        self._check_k(k)
        return self._estimate(task.pass_at_k(k) for task in self._tasks)

    def pass_hat_k_estimate(self, k: int) -> Estimate:
        """pass^k with its standard error, clustered by task, and its 95 % interval."""
        self._check_k(k)
        return self._estimate(task.pass_hat_k(k) for task in self._tasks)

    def _estimate(self, figures: Iterable[float], variance: float | None = None) -> Estimate:
        return estimate(figures, [task.n for task in self._tasks], variance)

    def _success_rates(self) -> Iterator[float]:
        return (metrics.mean([1.0] * task.successes + [0.0] * (task.n - task.successes)) for task in self._tasks)

    def statistics(self) -> dict[str, Any]:
        """Every figure with its standard error and 95 % interval, as the report has it."""
        return {
            "average_score": self.average_score_estimate(),
            "success_rate": self.success_rate_estimate(),
            "pass_at_k": by_k(self.pass_at_k_estimate, self.k_values),
            "pass_hat_k": by_k(self.pass_hat_k_estimate, self.k_values),
        }

    # ---- the rest of what a run tells ----

    @property
    def coverage(self) -> Coverage:
        """How many trials were planned and graded, and what became of the others."""
        return Coverage(
            planned=sum(task.n for task in self._tasks),
            graded=sum(task.graded for task in self._tasks),
            not_graded=sum_counts(task.not_graded for task in self._tasks),
            failures=sum_counts(task.failures for task in self._tasks),
        )

    @property
    def unanswered(self) -> dict[str, int]:
        """Trials that are graded with 0 since there was no answer to score, by what ended them: ``max_iterations``."""
        return sum_counts(task.unanswered for task in self._tasks)

    def first_cause(self) -> str | None:
        """The first trial of the plan that was not graded, and why; None where all were graded.

        One that failed goes before those that were not run because of it, or because the run was stopped.
        """
        lost = sorted((trial for trial in self.trials if not trial.graded), key=lambda t: t.failure in _CONSEQUENCES)
        if lost:
            return f"{lost[0].trial_id}: {lost[0].error_message or failure_kind(lost[0])}"
        if self.coverage.complete:
            return None
        return "none yet: the run goes on" if self.running else "the run was stopped before every trial had ended"

    def total_token_usage(self) -> dict[str, Any]:
        """The tokens of all trials: every number in their records added up by its name, nested ones too."""
        usage: dict[str, Any] = {}
        for trial in self.trials:
            add_numbers(usage, plain(trial.token_usage))
        return usage

    @cached_property
    def metric_values(self) -> dict[str, Any]:
        """The values of the user's metrics by name, computed once; an error text where one raised."""
        return metrics.evaluate(self.metrics, self)

    # ---- the report ----

    def head(self) -> dict[str, Any]:
        """The report but for its tasks, as strict JSON data."""
        coverage = self.coverage
        return plain({  # type: ignore[no-any-return]
            "schema": SCHEMA,
            **self.run_record(),
            "planned": coverage.planned,
            "graded": coverage.graded,
            "not_graded": coverage.not_graded,
            "failures": coverage.failures,
            "complete": coverage.complete,
            "average_score": self.average_score(),
            "average_score_bounds": self.average_score_bounds(),
            "total_score": self.total_score,
            "pass_at_k": by_k(self.pass_at_k, self.k_values),
            "pass_at_k_bounds": by_k(self.pass_at_k_bounds, self.k_values),
            "pass_hat_k": by_k(self.pass_hat_k, self.k_values),
            "pass_hat_k_bounds": by_k(self.pass_hat_k_bounds, self.k_values),
            "statistics": self.statistics(),
            "token_usage": self.total_token_usage(),
            **resources(self.trials),
        })  # fmt: skip

    def run_record(self) -> dict[str, Any]:
        """What no trial's record tells of the run."""
        created = self.created if self.created.tzinfo else self.created.astimezone()
        return plain({  # type: ignore[no-any-return]
            "session": self.session_id,
            "run_name": self.run_name,
            "model": self.model,
            "seed": self.seed,
            "created": created.isoformat(),
            "wall_s": self.wall_seconds,
            "trials_per_task": self.trials_per_task,
            "k_values": self.k_values,
            "settings": self.settings,
            "pool": self.pool,
            "journal": self.journal,
            "metrics": self.metric_values,
        })  # fmt: skip

    def closing_record(self) -> dict[str, Any]:
        """What the journal gets when the run has ended: with the trials' records it holds the whole report."""
        return {**self.run_record(), "task_ids": list(self.task_results)}

    def to_report(self) -> dict[str, Any]:
        """The report as strict JSON data (docs/report.md)."""
        return {
            **self.head(),
            "tasks": {
                task_id: plain({**task.head(self.k_values), "trials": [*map(self._trial_report, task.trials)]})
                for task_id, task in self.task_results.items()
            },
        }

    def generate_report(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to ``path`` in one step: as what its ending says (``.html``: the page), else as JSON.

        ConfigError for an ending that says no format.
        """
        return exports.export(self, path, exports.report_kind(path))

    def write_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to ``path`` as strict JSON, in one step. A trial takes one line."""
        tasks = (
            (task_id, plain(task.head(self.k_values)), map(self._trial_report, task.trials))
            for task_id, task in self.task_results.items()
        )
        return files.write_chunks(path, files.report_chunks(self.head(), tasks))

    def export(self, path: str | os.PathLike[str], kind: str | None = None) -> Path:
        """Write the result as html, json, jsonl, parquet, inspect, trace or junit: as ``kind`` or the ending says."""
        return exports.export(self, path, kind)

    def to_frame(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """A data frame with a row for each trial (``corral.report.rows.COLUMNS``), of pandas or polars."""
        return to_frame(self, library)

    def _trial_report(self, trial: TaskTrialResult) -> Mapping[str, Any]:
        return trial_report(self.whole(trial))

    @property
    def _tasks(self) -> Iterable[TaskTrialResults]:
        return self.task_results.values()

    def _check_k(self, k: int) -> None:
        metrics.check_k(k, min((task.n for task in self._tasks), default=self.trials_per_task))
