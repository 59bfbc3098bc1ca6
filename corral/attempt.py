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
from typing import Any

import anyio

from corral.agents.base import AgentRunResult
from corral.agents.remarks import listening
from corral.attempt_log import AttemptLog
from corral.blame import blame, blame_agent, too_slow
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
from corral.forks import OnlyHere
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
    TrialContext,
    TrialKey,
    WorkerRef,
    derive_seed,
    shown,
)
from corral.unwrap import sole

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
        self._logs: dict[TrialKey, AttemptLog] = {}
        self._put_off: dict[TrialKey, tuple[float, list[Attempt]]] = {}
        """When trials began, and their attempts so far, that have to wait for a slot again."""

    def tell_phases(self) -> None:
        """Tell the progress display what the trials are at that are with their agents, as far as the router sees it."""
        for key, log in self._logs.items():
            if log.phase == "set-up":
                self._tell_place(key)
            if log.phase == "agent":
                self._progress.phase(key, log.busy(self._watched(log)))

    async def run(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        """Attempt a trial until it has a result or its retries are spent. NoSlot: call it again when there is one."""
        began, attempts = self._put_off.pop(job.key, (time.monotonic(), []))
        while True:
            number = len(attempts) + 1
            try:
                log = await self._attempt(job, configured)
            except NoSlot:
                self._put_off[job.key] = began, attempts
                raise
            attempts.append(log.evidence(number))
            failure = log.error.kind if log.error else None
            if failure is None or not failure.retried or number > self._settings.retries:
                break
        return log.record(job, tuple(attempts), time.monotonic() - began)

    async def _attempt(self, job: Job, configured: Callable[[], None]) -> AttemptLog:
        log = self._logs[job.key] = AttemptLog(time.monotonic())
        try:
            await self._open(job, log)
            try:
                await self._work(job, log, configured)
            finally:
                await self._close(log)
        except (ProtocolError, NoSlot):
            raise
        except Exception as error:
            log.error = log.error or blame(error)
            log.worker = log.worker or log.error.worker  # type: ignore[assignment]
            if isinstance(log.error.closed, Closed):
                log.closed = log.closed or log.error.closed.to_dict()
        finally:
            del self._logs[job.key]
        _let_go_of_frames(log.error)
        return log

    async def _open(self, job: Job, log: AttemptLog) -> None:
        self._progress.started(job.key, None)
        self._progress.phase(job.key, "opening")
        log.phase = "set-up"
        log.opened = await self._connection.open_trial(
            job.key.task_id,
            self._identity.run_id,
            job.episode.episode_id if job.episode.is_chain else None,
            job.key.trial_index,
            self._settings.limits.tool_jobs_per_trial,
            seed=derive_seed(self._identity.seed, *job.key),
            outputs=self._outputs_of(job),
        )
        log.worker = log.opened.get("worker")
        self._progress_placed(job.key, log.worker)

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

    async def _work(self, job: Job, log: AttemptLog, configured: Callable[[], None]) -> None:
        seconds = self._settings.trial_timeout
        if seconds is None:
            await self._go_through(job, log, configured)
            return
        with anyio.move_on_after(seconds) as limit:
            await self._go_through(job, log, configured)
        if limit.cancelled_caught:
            await self._connection.review(log.opened or {})
            trial = self._watched(log)
            busy = trial.phase if trial is not None and trial.calling else log.phase
            log.error = self._fault(log) or too_slow(busy, seconds)

    async def _go_through(self, job: Job, log: AttemptLog, configured: Callable[[], None]) -> None:
        """What the trial's limit is for."""
        bound = self._connection.bind(log.opened or {}, job.key.task_id, self._settings)
        await self._configure(job, log, bound, configured)
        log.mark("agent")
        self._progress.phase(job.key, "agent")
        try:
            await self._run_agent(job, log, bound)
        except TrialError as error:
            error.phase = error.phase or "agent"  # else it would be that of the last call that went by
            raise
        log.mark("submit")
        self._progress.phase(job.key, "scoring")
        await self._conclude(job, log, bound)

    async def _configure(self, job: Job, log: AttemptLog, bound: Any, configured: Callable[[], None]) -> None:
        log.mark("configure")
        try:
            if job.info.configures and hasattr(bound, "configure_additional_apps"):
                self._progress.phase(job.key, "configure")
                await self._connection.call(bound.configure_additional_apps, job.key.task_id)
        finally:
            configured()

    async def _run_agent(self, job: Job, log: AttemptLog, bound: Any) -> None:
        log.agent = await self._crew.hire(self._identity.context(job.key))
        on_loop = runs_on_loop(log.agent)
        interface = self._connection.interface_for(on_loop, bound)
        given, failure = None, None
        try:
            with listening() as log.remarks:
                if on_loop:
                    given = await _on_loop(log.agent, interface, job.key.task_id)
                else:
                    given = await call_blocking(_in_thread, log.agent, interface, job.key.task_id)
        except (Exception, SystemExit) as error:
            # An agent may have task groups of its own, and what failed in them says who is to blame.
            failure = sole(error)
        if not isinstance(failure, TrialError):  # else it came by way of the router, which has seen it
            await self._connection.review(log.opened or {})
        if (fault := self._fault(log)) is not None:
            raise fault from failure
        if failure is not None:
            raise blame_agent(failure) from failure
        if not isinstance(given, AgentRunResult):
            raise AgentError(f"the agent gave {shown(given)} instead of an AgentRunResult")
        log.run = given

    async def _conclude(self, job: Job, log: AttemptLog, bound: Any) -> None:
        try:
            await self._hand_in(job, log, bound)
        except SubmissionError:
            # A submission of the agent's own may still have been under way.
            await self._connection.review(log.opened or {})
            trial = self._watched(log)
            if trial is None or trial.result is None:
                raise
            log.result = trial.result

    async def _hand_in(self, job: Job, log: AttemptLog, bound: Any) -> None:
        run = log.run
        assert run is not None
        if (trial := self._watched(log)) is not None and trial.result is not None:
            log.result = trial.result  # the agent has submitted or surrendered by itself
        elif run.status == "surrender":
            result = await self._connection.call(bound.surrender_task, job.key.task_id)
            log.result = result if isinstance(result, TaskTrialResult) else None
        elif run.status == "success" and run.answer is not None:
            log.result = await self._connection.call(bound.submit_answer, job.key.task_id, run.answer)
            if not isinstance(log.result, TaskTrialResult):
                given, log.result = log.result, None
                raise InfrastructureError(
                    f"the router's submit_answer gave {shown(given)}, which is no TaskTrialResult"
                )
        elif run.status in UNANSWERED or run.status == "success":
            if hasattr(bound, "get_task_state"):
                log.state = await self._connection.call(bound.get_task_state, job.key.task_id)
        else:
            kind = InfrastructureError if run.status == FailureKind.INFRASTRUCTURE else AgentError
            raise kind(f"the agent ended as {run.status!r}: {run.error_message or 'no reason given'}")

    def _fault(self, log: AttemptLog) -> TrialError | None:
        trial = self._watched(log)
        return trial.fault if trial is not None else None

    def _watched(self, log: AttemptLog) -> Any:
        runtime_id = (log.opened or {}).get("trial_runtime_id")
        watch = getattr(self._connection.router, "watch", None)
        return watch(runtime_id) if watch is not None and runtime_id is not None else None

    async def _close(self, log: AttemptLog) -> None:
        log.mark("close")
        if (trial := self._watched(log)) is not None:
            log.history, log.worker = trial.history, trial.worker
            if trial.phase != "set-up":
                log.phase = trial.phase
        patience = max(CLOSE_PATIENCE, self._settings.close_timeout + CLOSE_PATIENCE / 2)
        warning = f"closing the trial did not end within {patience:g} s"
        try:
            with anyio.move_on_after(patience, shield=True):
                log.closed = await self._connection.close_trial(log.opened or {})
                warning = ""
        except ProtocolError:
            raise
        except Exception as error:
            warning = f"closing the trial failed: {ErrorRecord.of(error)}"
        if warning:
            log.closed = {"warnings": [warning]}
        if trial is not None and isinstance(log.error, DeadlineExceeded | ScoringError):
            log.error.output = log.error.output or trial.output


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


def _in_thread(agent: Any, interface: Any, task_id: str) -> Any:
    """Run an agent; a cancellation of its own making is an error of the agent, and none of the run's."""
    try:
        with OnlyHere():
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
