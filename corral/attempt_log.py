"""What is known of an attempt while it goes, and what is kept of it: its evidence, and its trial's record."""

from __future__ import annotations

import time
from dataclasses import field, replace
from typing import Any

from corral.agents.base import AgentRunResult
from corral.agents.remarks import Remarks
from corral.call_history import CallHistory
from corral.errors import FailureKind, TrialError
from corral.lean import dataclass
from corral.scheduler import Job
from corral.types import Attempt, TaskTrialResult, Timings, WorkerRef


@dataclass
class AttemptLog:
    """Filled in as the attempt goes; times are those of the monotonic clock, in seconds."""

    began: float
    opened: dict[str, Any] | None = None
    """What the router said of the open trial."""
    agent: Any = None
    run: AgentRunResult | None = None
    remarks: Remarks | None = None
    """What the agent says of itself, while it runs."""
    result: TaskTrialResult | None = None
    error: TrialError | None = None
    phase: str = "waiting for a place"
    worker: WorkerRef | None = None
    history: CallHistory = field(default_factory=CallHistory)
    state: dict[str, Any] = field(default_factory=dict)
    closed: dict[str, Any] = field(default_factory=dict)
    """What was said of the trial when it was closed."""
    marks: dict[str, float] = field(default_factory=dict)
    """When phases began."""

    def mark(self, phase: str) -> None:
        """The phase before ``phase`` has ended now."""
        self.marks[phase] = time.monotonic()
        self.phase = phase

    def busy(self, trial: Any) -> str:
        """What a trial is at that is with its agent, as far as the router sees ``trial``, and the agent says."""
        if trial is not None and trial.calling:
            return f"{trial.phase} (call {trial.history.made + 1})"
        made = trial.history.made if trial is not None else 0
        said = [f"after call {made}" if made else "", self.remarks.now if self.remarks is not None else ""]
        told = "; ".join(filter(None, said))
        return f"agent ({told})" if told else "agent"

    def evidence(self, number: int) -> Attempt:
        """What is kept of the attempt, as the trial's so many-th."""
        error, closed = self.error, self.closed
        return Attempt(
            number,
            failure=error.kind if error else None,
            message=str(error) if error else None,
            phase=(error.phase or self.phase) if error else None,
            worker=self.worker,
            exit_status=error.exit_status if error and error.exit_status is not None else closed.get("exit_status"),
            peak_rss=closed.get("peak_rss") or None,
            cpu_seconds=closed.get("cpu_seconds") or None,
            traceback=error.record.traceback if error and error.record else "",
            output=(error.output if error else "") or closed.get("output") or "",
            **self._times(),
        )

    def record(self, job: Job, attempts: tuple[Attempt, ...], seconds: float) -> TaskTrialResult:
        """The trial's record, after this as the last of its ``attempts``; it took ``seconds``."""
        base = self.result if self.error is None and self.result is not None else self._unscored(job)
        run = self.run
        return replace(
            base,
            task_id=job.key.task_id,
            trial_index=job.key.trial_index,
            token_usage=run.token_usage if run else _copied(self.agent, "token_usage", dict),
            messages=run.messages if run else _copied(self.agent, "messages", list),
            agent_status=self._status(),
            worker=self.worker,
            timings=self._timings(job.planned_at),
            attempts=attempts,
            duration=seconds,
            warnings=(*base.warnings, *self.closed.get("warnings", ())),
        )

    def _unscored(self, job: Job) -> TaskTrialResult:
        state = self.state or {"task_id": job.key.task_id, "tool_calls": list(self.history.kept)}
        statistics = self.history.statistics
        if self.error is not None:
            if self.run is not None and self.error.kind is FailureKind.SCORING:
                state = {**state, "submitted_answer": self.run.answer}  # it can be scored again
            return TaskTrialResult.not_graded(
                job.key, self.error.kind, str(self.error), state=state, tool_statistics=statistics
            )
        surrendered = self.run is not None and self.run.status == "surrender"
        message = None if surrendered else (self.run and self.run.error_message) or "the agent gave no answer"
        return TaskTrialResult(
            *job.key, state=state, tool_statistics=statistics, error_message=message, surrendered=surrendered
        )

    def _status(self) -> str | None:
        """How its agent ended: one that means success, and has neither given nor submitted anything, gave no answer."""
        run = self.run
        if run is None:
            return None
        is_empty = run.status == "success" and run.answer is None and self.result is None
        return "no_answer" if is_empty else run.status

    def _times(self) -> dict[str, Any]:
        """When the attempt was; by the wall clock only where it began."""
        seconds = time.monotonic() - self.began
        opened = self.marks.get("configure")
        return {
            "started_at": time.time() - seconds,
            "opened": None if opened is None else opened - self.began,
            "seconds": seconds,
        }

    def _timings(self, planned_at: float) -> Timings:
        end = time.monotonic()
        marks = [self.marks.get(name) for name in ("configure", "agent", "submit")]
        spans = []
        for start, nexts in zip(marks, [marks[1:], marks[2:], []], strict=True):
            stop = next((m for m in nexts if m is not None), self.marks.get("close", end))
            spans.append(stop - start if start is not None else 0.0)
        opened = marks[0] if marks[0] is not None else end
        return Timings(max(0.0, opened - planned_at), *spans)


def _copied(agent: Any, name: str, kind: type) -> Any:
    """What an agent holds that was given up, and may go on. What is no such collection, its record will tell of."""
    value = None
    try:
        value = getattr(agent, name, None)
        return kind(value or ())
    except Exception:
        return value
