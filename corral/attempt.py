"""One trial from opening to record: its attempts, their retries, and what is kept of each.

Guarantees
    * A trial gives exactly one result, whatever its environment, agent, router or worker does. Only a cancellation of
      the run, or a fault of Corral's own, comes out as an exception.
    * What broke the trial itself counts, whatever its agent made of it: no score follows the death of a worker.
    * The trial's limit starts when its environment is open, and covers configuring, the agent and the scoring.
    * A second attempt follows only a failure whose kind says so; the evidence of every attempt is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import anyio

from corral.agents.base import AgentRunResult
from corral.agents.remarks import Remarks, listening
from corral.blame import blame, blame_agent, too_slow
from corral.call_history import CallHistory
from corral.connection import Connection
from corral.crew import Crew, runs_on_loop
from corral.errors import (
    AgentError,
    DeadlineExceeded,
    ErrorRecord,
    FailureKind,
    InfrastructureError,
    NoSlot,
    ProtocolError,
    ScoringError,
    SubmissionError,
    TrialError,
)
from corral.lean import dataclass
from corral.pool.messages import Closed
from corral.report.progress import Progress
from corral.scheduler import Job
from corral.service import TrialService
from corral.settings import RunSettings
from corral.threads import call_blocking
from corral.types import (
    Attempt,
    TaskTrialResult,
    Timings,
    TrialContext,
    TrialKey,
    WorkerRef,
    derive_seed,
    shown,
)

UNANSWERED = frozenset({"max_iterations", "timeout", "no_answer"})
"""Agent statuses that mean: no answer within its budget. Such a trial is graded, with 0."""

CLOSE_PATIENCE = 30.0
"""Seconds that a router may take to close a trial."""


@dataclass(frozen=True)
class RunIdentity:
    """What all trials of a run have in common."""

    session_id: str
    run_id: str
    seed: int

    def context(self, key: TrialKey) -> TrialContext:
        """What the agent factory is told of a trial."""
        return TrialContext(*key, self.session_id, self.run_id, derive_seed(self.seed, *key))


@dataclass
class _Course:
    """What is known of an attempt while it goes."""

    began: float
    opened: dict[str, Any] | None = None
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
    marks: dict[str, float] = field(default_factory=dict)

    def mark(self, phase: str) -> None:
        """The phase before ``phase`` has ended now."""
        self.marks[phase] = time.monotonic()
        self.phase = phase

    def times(self) -> dict[str, Any]:
        """When the attempt was, for its evidence; by the wall clock only where it began."""
        seconds = time.monotonic() - self.began
        opened = self.marks.get("configure")
        return {
            "started_at": time.time() - seconds,
            "opened": None if opened is None else opened - self.began,
            "seconds": seconds,
        }

    def timings(self, planned_at: float) -> Timings:
        end = time.monotonic()
        marks = [self.marks.get(name) for name in ("configure", "agent", "submit")]
        spans = []
        for start, nexts in zip(marks, [marks[1:], marks[2:], []], strict=True):
            stop = next((m for m in nexts if m is not None), self.marks.get("close", end))
            spans.append(stop - start if start is not None else 0.0)
        opened = marks[0] if marks[0] is not None else end
        return Timings(max(0.0, opened - planned_at), *spans)


OutputsOf = Callable[[Job], Mapping[str, Any]]
"""The outputs of a trial's parents, by task id."""


class TrialDriver:
    """Runs trials to their results."""

    def __init__(
        self,
        connection: Connection,
        settings: RunSettings,
        crew: Crew,
        identity: RunIdentity,
        progress: Progress,
        outputs_of: OutputsOf,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._crew = crew
        self._identity = identity
        self._progress = progress
        self._outputs_of = outputs_of
        self._courses: dict[TrialKey, _Course] = {}
        self._put_off: dict[TrialKey, tuple[float, list[Attempt]]] = {}
        """When trials began, and their attempts so far, that have to wait for a slot again."""

    def tell_phases(self) -> None:
        """Tell the progress display what the trials are at that are with their agents, as far as the router sees it."""
        for key, course in self._courses.items():
            if course.phase == "set-up":
                self._tell_place(key)
            if course.phase == "agent":
                self._progress.phase(key, _busy(self._watched(course), course.remarks))

    async def run(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        """Attempt a trial until it has a result or its retries are spent. NoSlot: call it again when there is one."""
        began, attempts = self._put_off.pop(job.key, (time.monotonic(), []))
        while True:
            number = len(attempts) + 1
            try:
                course = await self._attempt(job, configured)
            except NoSlot:
                self._put_off[job.key] = began, attempts
                raise
            attempts.append(_evidence(number, course))
            failure = course.error.kind if course.error else None
            if failure is None or not failure.retried or number > self._settings.retries:
                break
        return self._result(job, course, tuple(attempts), began)

    async def _attempt(self, job: Job, configured: Callable[[], None]) -> _Course:
        course = self._courses[job.key] = _Course(time.monotonic())
        try:
            await self._open(job, course)
            try:
                await self._work(job, course, configured)
            finally:
                await self._close(course)
        except (ProtocolError, NoSlot):
            raise
        except Exception as error:
            course.error = course.error or blame(error)
            course.worker = course.worker or course.error.worker  # type: ignore[assignment]
            if isinstance(course.error.closed, Closed):
                course.closed = course.closed or course.error.closed.to_dict()
        finally:
            del self._courses[job.key]
        _let_go_of_frames(course.error)
        return course

    async def _open(self, job: Job, course: _Course) -> None:
        self._progress.started(job.key, None)
        self._progress.phase(job.key, "opening")
        course.phase = "set-up"
        course.opened = await self._connection.open_trial(
            job.key.task_id,
            self._identity.run_id,
            job.episode.episode_id if job.episode.is_chain else None,
            job.key.trial_index,
            self._settings.limits.tool_jobs_per_trial,
            seed=derive_seed(self._identity.seed, *job.key),
            outputs=self._outputs_of(job),
        )
        course.worker = course.opened.get("worker")
        self._progress_placed(job.key, course.worker)

    def _tell_place(self, key: TrialKey) -> None:
        """Where a trial is that is being set up, as far as the router sees it."""
        service = getattr(self._connection.router, "service", None)
        trial = service.opening.get(key) if isinstance(service, TrialService) else None
        if trial is not None:
            self._progress_placed(key, trial.host.worker)

    def _progress_placed(self, key: TrialKey, worker: WorkerRef | None) -> None:
        # Displays that somebody wrote need not have it.
        if (placed := getattr(self._progress, "placed", None)) is not None:
            placed(key, worker)

    async def _work(self, job: Job, course: _Course, configured: Callable[[], None]) -> None:
        seconds = self._settings.trial_timeout
        if seconds is None:
            await self._go_through(job, course, configured)
            return
        with anyio.move_on_after(seconds) as limit:
            await self._go_through(job, course, configured)
        if limit.cancelled_caught:
            await self._connection.review(course.opened or {})
            trial = self._watched(course)
            busy = trial.phase if trial is not None and trial.calling else course.phase
            course.error = self._fault(course) or too_slow(busy, seconds)

    async def _go_through(self, job: Job, course: _Course, configured: Callable[[], None]) -> None:
        """What the trial's limit is for."""
        bound = self._connection.bind(course.opened or {}, job.key.task_id, self._settings)
        await self._configure(job, course, bound, configured)
        course.mark("agent")
        self._progress.phase(job.key, "agent")
        try:
            await self._run_agent(job, course, bound)
        except TrialError as error:
            error.phase = error.phase or "agent"  # else it would be that of the last call that went by
            raise
        course.mark("submit")
        self._progress.phase(job.key, "scoring")
        await self._conclude(job, course, bound)

    async def _configure(self, job: Job, course: _Course, bound: Any, configured: Callable[[], None]) -> None:
        course.mark("configure")
        try:
            if job.info.configures and hasattr(bound, "configure_additional_apps"):
                self._progress.phase(job.key, "configure")
                await self._connection.call(bound.configure_additional_apps, job.key.task_id)
        finally:
            configured()

    async def _run_agent(self, job: Job, course: _Course, bound: Any) -> None:
        course.agent = await self._crew.hire(self._identity.context(job.key))
        on_loop = runs_on_loop(course.agent)
        interface = self._connection.interface_for(on_loop, bound)
        given, failure = None, None
        try:
            with listening() as course.remarks:
                if on_loop:
                    given = await _on_loop(course.agent, interface, job.key.task_id)
                else:
                    given = await call_blocking(_in_thread, course.agent, interface, job.key.task_id)
        except (Exception, SystemExit) as error:
            failure = error
        if not isinstance(failure, TrialError):  # else it came by way of the router, which has seen it
            await self._connection.review(course.opened or {})
        if (fault := self._fault(course)) is not None:
            raise fault from failure
        if failure is not None:
            raise blame_agent(failure) from failure
        if not isinstance(given, AgentRunResult):
            raise AgentError(f"the agent gave {shown(given)} instead of an AgentRunResult")
        course.run = given

    async def _conclude(self, job: Job, course: _Course, bound: Any) -> None:
        try:
            await self._hand_in(job, course, bound)
        except SubmissionError:
            # A submission of the agent's own may still have been under way.
            await self._connection.review(course.opened or {})
            trial = self._watched(course)
            if trial is None or trial.result is None:
                raise
            course.result = trial.result

    async def _hand_in(self, job: Job, course: _Course, bound: Any) -> None:
        run = course.run
        assert run is not None
        if (trial := self._watched(course)) is not None and trial.result is not None:
            course.result = trial.result  # the agent has submitted or surrendered by itself
        elif run.status == "surrender":
            result = await self._connection.call(bound.surrender_task, job.key.task_id)
            course.result = result if isinstance(result, TaskTrialResult) else None
        elif run.status == "success" and run.answer is not None:
            course.result = await self._connection.call(bound.submit_answer, job.key.task_id, run.answer)
            if not isinstance(course.result, TaskTrialResult):
                given, course.result = course.result, None
                raise InfrastructureError(
                    f"the router's submit_answer gave {shown(given)}, which is no TaskTrialResult"
                )
        elif run.status in UNANSWERED or run.status == "success":
            if hasattr(bound, "get_task_state"):
                course.state = await self._connection.call(bound.get_task_state, job.key.task_id)
        else:
            kind = InfrastructureError if run.status == FailureKind.INFRASTRUCTURE else AgentError
            raise kind(f"the agent ended as {run.status!r}: {run.error_message or 'no reason given'}")

    def _fault(self, course: _Course) -> TrialError | None:
        trial = self._watched(course)
        return trial.fault if trial is not None else None

    def _watched(self, course: _Course) -> Any:
        runtime_id = (course.opened or {}).get("trial_runtime_id")
        watch = getattr(self._connection.router, "watch", None)
        return watch(runtime_id) if watch is not None and runtime_id is not None else None

    async def _close(self, course: _Course) -> None:
        course.mark("close")
        if (trial := self._watched(course)) is not None:
            course.history, course.worker = trial.history, trial.worker
            if trial.phase != "set-up":
                course.phase = trial.phase
        patience = max(CLOSE_PATIENCE, self._settings.close_timeout + CLOSE_PATIENCE / 2)
        warning = f"closing the trial did not end within {patience:g} s"
        try:
            with anyio.move_on_after(patience, shield=True):
                course.closed = await self._connection.close_trial(course.opened or {})
                warning = ""
        except ProtocolError:
            raise
        except Exception as error:
            warning = f"closing the trial failed: {ErrorRecord.of(error)}"
        if warning:
            course.closed = {"warnings": [warning]}
        if trial is not None and isinstance(course.error, DeadlineExceeded | ScoringError):
            course.error.output = course.error.output or trial.output

    # ---- the record ----

    def _result(self, job: Job, course: _Course, attempts: tuple[Attempt, ...], began: float) -> TaskTrialResult:
        base = course.result if course.error is None and course.result is not None else self._unscored(job, course)
        run = course.run
        return replace(
            base,
            task_id=job.key.task_id,
            trial_index=job.key.trial_index,
            token_usage=run.token_usage if run else _copied(course.agent, "token_usage", dict),
            messages=run.messages if run else _copied(course.agent, "messages", list),
            agent_status=_status(course),
            worker=course.worker,
            timings=course.timings(job.planned_at),
            attempts=attempts,
            duration=time.monotonic() - began,
            warnings=(*base.warnings, *course.closed.get("warnings", ())),
        )

    def _unscored(self, job: Job, course: _Course) -> TaskTrialResult:
        state = course.state or {"task_id": job.key.task_id, "tool_calls": list(course.history.kept)}
        statistics = course.history.statistics
        if course.error is not None:
            if course.run is not None and course.error.kind is FailureKind.SCORING:
                state = {**state, "submitted_answer": course.run.answer}  # it can be scored again
            return TaskTrialResult.not_graded(
                job.key, course.error.kind, str(course.error), state=state, tool_statistics=statistics
            )
        surrendered = course.run is not None and course.run.status == "surrender"
        message = None if surrendered else (course.run and course.run.error_message) or "the agent gave no answer"
        return TaskTrialResult(
            *job.key, state=state, tool_statistics=statistics, error_message=message, surrendered=surrendered
        )


def _busy(trial: Any, remarks: Remarks | None) -> str:
    """What a trial is at that is with its agent, as far as the router sees it, and the agent says."""
    if trial is not None and trial.calling:
        return f"{trial.phase} (call {trial.history.made + 1})"
    made = trial.history.made if trial is not None else 0
    said = [f"after call {made}" if made else "", remarks.now if remarks is not None else ""]
    told = "; ".join(filter(None, said))
    return f"agent ({told})" if told else "agent"


def _status(course: _Course) -> str | None:
    """How its agent ended: one that means success, and has neither given nor submitted anything, gave no answer."""
    run = course.run
    if run is None:
        return None
    is_empty = run.status == "success" and run.answer is None and course.result is None
    return "no_answer" if is_empty else run.status


def _copied(agent: Any, name: str, kind: type) -> Any:
    """What an agent holds that was given up, and may go on. What is no such collection, its record will tell of."""
    value = None
    try:
        value = getattr(agent, name, None)
        return kind(value or ())
    except Exception:
        return value


def _let_go_of_frames(error: BaseException | None) -> None:
    """Have an error, told by now, not hold what ran: its frames hold the attempt, which holds it, so that all that the
    agent and its tools gave would stay until the garbage collector comes.
    """
    rest, seen = [error], set[int]()
    while rest:
        if (one := rest.pop()) is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            rest += one.__cause__, one.__context__


def _evidence(number: int, course: _Course) -> Attempt:
    error = course.error
    return Attempt(
        number,
        failure=error.kind if error else None,
        message=str(error) if error else None,
        phase=(error.phase or course.phase) if error else None,
        worker=course.worker,
        exit_status=error.exit_status if error and error.exit_status is not None else course.closed.get("exit_status"),
        peak_rss=course.closed.get("peak_rss") or None,
        cpu_seconds=course.closed.get("cpu_seconds") or None,
        traceback=error.record.traceback if error and error.record else "",
        output=(error.output if error else "") or course.closed.get("output") or "",
        **course.times(),
    )


def _in_thread(agent: Any, interface: Any, task_id: str) -> Any:
    """Run an agent; a cancellation of its own making is an error of the agent, and none of the run's."""
    try:
        return agent.run_agent(interface, task_id)
    except (Exception, SystemExit):
        raise
    except BaseException as error:
        record = ErrorRecord.of(error)
        raise AgentError(f"the agent raised: {record}", record=record) from error


async def _on_loop(agent: Any, interface: Any, task_id: str) -> Any:
    """The same for an agent on the event loop."""
    try:
        return await agent.arun_agent(interface, task_id)
    except anyio.get_cancelled_exc_class() as error:
        if anyio.current_effective_deadline() == -math.inf:  # the run, or the trial's limit, ends it
            raise
        record = ErrorRecord.of(error)
        raise AgentError(f"the agent raised: {record}", record=record) from error
