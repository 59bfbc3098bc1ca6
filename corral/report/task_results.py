"""The trials of one task, the figures over them, and their part of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.errors import ConfigError, FailureKind
from corral.records import as_data
from corral.report import metrics
from corral.report.intervals import Estimate, estimate
from corral.report.metrics import Bounds
from corral.types import TaskTrialResult


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
        return max(self.planned, *(trial.trial_index + 1 for trial in self.trials[-1:]), 0)

    @property
    def graded(self) -> int:
        """Trials that the scorer gave a score, or that ended by the agent's own doing."""
        return sum(trial.graded for trial in self.trials)

    @property
    def not_graded(self) -> dict[str, int]:
        """Trials that were not graded, by kind of failure."""
        kinds = Counter(failure_kind(trial) for trial in self.trials if not trial.graded)
        return dict(kinds + Counter({FailureKind.CANCELLED.value: self.n - len(self.trials)}))

    @property
    def failures(self) -> dict[str, int]:
        """All trials that failed, by kind, graded with 0 or not graded."""
        graded = Counter(trial.failure.value for trial in self.trials if trial.graded and trial.failure is not None)
        return dict(Counter(self.not_graded) + graded)

    @property
    def unanswered(self) -> dict[str, int]:
        """Trials that are graded with 0 since there was no answer to score, by what ended them."""
        return dict(Counter(why for trial in self.trials if (why := why_unanswered(trial)) is not None))

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
        known = {trial.trial_index: float(trial.score) for trial in self.trials if trial.graded}
        return [known.get(index) for index in range(self.n)]

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

    def head(self, k_values: Sequence[int] = ()) -> dict[str, Any]:
        """The task's part of the report, but for its trials."""
        spread = estimate(self.scores)
        return {
            "average_score": self.average_score,
            "average_score_bounds": self.average_score_bounds,
            "standard_error": spread.standard_error,
            "interval": (spread.low, spread.high),
            "scores": self.scores,
            "planned": self.n,
            "successes": self.successes,
            "graded": self.graded,
            "not_graded": self.not_graded,
            "pass_at_k": by_k(self.pass_at_k, k_values),
            "pass_hat_k": by_k(self.pass_hat_k, k_values),
        }

    def to_report(self, k_values: Sequence[int] = ()) -> dict[str, Any]:
        """The task's part of the report."""
        return {**self.head(k_values), "trials": [trial_report(trial) for trial in self.trials]}


def failure_kind(trial: TaskTrialResult) -> str:
    """What a trial failed of, in one word."""
    return "unknown" if trial.failure is None else trial.failure.value


def why_unanswered(trial: TaskTrialResult) -> str | None:
    """What ended a trial that is graded with 0 without an answer; None of any other trial."""
    if not trial.graded or trial.failure is FailureKind.SUBMISSION:  # there was an answer, which could not be accepted
        return None
    if trial.surrendered:
        return "surrendered"
    if trial.failure is not None:
        return trial.failure.value
    # One that submitted by itself has a score, whatever its agent ran into later, and no message.
    return None if trial.error_message is None else trial.agent_status


def sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by kind, added up."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {kind: total[kind] for kind in sorted(total)}


def by_k(figure: Callable[[int], float | Bounds | Estimate], k_values: Sequence[int]) -> dict[str, Any]:
    """The figure for each k by its name; None where it does not exist, so that the report is never lost for one."""
    values: dict[str, Any] = {}
    for k in k_values:
        try:
            values[str(k)] = figure(k)
        except ConfigError:
            values[str(k)] = None
    return values


def trial_report(trial: TaskTrialResult) -> dict[str, Any]:
    """A trial's part of the report; what the environment and the agent gave stands as it is."""
    data = as_data(trial)
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
        "attempts": data["attempts"],
        "worker": data["worker"],
        "timings": data["timings"],
        "duration": trial.duration,
        "warnings": trial.warnings,
    }
