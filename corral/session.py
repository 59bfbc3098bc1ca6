"""One session while it runs: its journal, its results so far, and the run of what is left.

Guarantees
    * What has a record that stands is not run again; what is recorded is durable before it is told.
    * A session that was recorded for something else is refused before anything starts.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import Any

import anyio

from corral.agents.llm.throttle import held_back
from corral.attempt import CLOSE_PATIENCE, RunIdentity, TrialDriver
from corral.collector import Collector
from corral.connection import Connection
from corral.crew import Crew
from corral.episode import Episode, Unreachable
from corral.errors import AgentError, ConfigError, ErrorRecord, FailureKind, JournalError, ProtocolError
from corral.header import Header, check_same, new_session_id
from corral.journal import FILE_NAME, Journal, Place
from corral.plan import Plan
from corral.records import Record, from_record
from corral.report.progress import Progress
from corral.report.result import BenchmarkResult
from corral.report.shelf import Shelf, ShelvingJournal, light_trial
from corral.scheduler import Job, Scheduler
from corral.settings import RunSettings
from corral.tasks import task_output
from corral.threads import call_blocking
from corral.types import TaskTrialResult, TrialKey

_log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds between two looks at the pool for the progress display."""


@dataclass(frozen=True)
class _Pending:
    """What is left to do."""

    jobs: list[Job]
    recorded: dict[TrialKey, bool]
    """Trials with a record, and whether they succeeded."""


class Session:
    """One session while it runs: its journal, its results so far, and the run of what is left."""

    def __init__(
        self, checkpoint_dir: Path, settings: RunSettings, plan: Plan, connection: Connection, crew: Crew
    ) -> None:
        self.session_id = settings.session_id or new_session_id(datetime.now().astimezone(), SystemRandom())
        self.seed = (
            settings.seed if settings.seed is not None else secrets.randbits(53)
        )  # a number that every reader of JSON keeps exactly
        self.results: dict[TrialKey, TaskTrialResult] = {}
        self._directory = checkpoint_dir / self.session_id
        self._shelf = Shelf(self._directory / FILE_NAME) if settings.states == "disk" else None
        """Where what was recorded is found again, if it is not kept in memory."""
        self._outputs: dict[TrialKey, dict[str, Any]] = {}
        """What dependents get of a trial, where its state is not kept."""
        self._settings = settings
        self._plan = plan
        self._connection = connection
        self._crew = crew
        self._collector: Collector
        self.journal_path: Path | None = None
        self.model: str | None = None
        self._journal: Journal
        self._recorded_header: Header | None = None
        self._has_run = False
        self._run_id = f"run_{secrets.token_hex(8)}"

    # ---- the journal ----

    @asynccontextmanager
    async def opened(self, display: Progress) -> AsyncIterator[None]:
        """Create or resume the session's journal, and close it."""
        async with AsyncExitStack() as stack:
            journal = await call_blocking(self._find)
            if journal is not None:
                stack.callback(journal.close)
            model = self.model = await self._label()
            if journal is None or self._recorded_header is None:
                journal = await call_blocking(Journal.create, self._directory, self._header(model))
                stack.callback(journal.close)
            else:
                most = max((key.trial_index + 1 for key in self.results), default=0)
                check_same(self._recorded_header, *self._identity_parts(model), recorded_trials=most)
            self._journal, self.journal_path = journal, journal.path

            def recorded(result: TaskTrialResult) -> None:
                self._keep(result)
                display.recorded(result)

            shelving = journal if self._shelf is None else ShelvingJournal(journal, self._shelf)
            collector = Collector(shelving, recorded, recorded=list(self.results))
            self._collector = await stack.enter_async_context(collector)
            yield

    async def conclude(self, result: BenchmarkResult) -> None:
        """Write down what no trial's record tells, so that the journal holds the whole report.

        A run that found everything recorded has nothing to tell: the word of the one before stands.
        """
        if not self._has_run:
            return
        try:
            await call_blocking(lambda: self._journal.append_run(result.closing_record()))
        except JournalError as error:  # every trial is on the disk: the result is worth more than this line
            _log.warning("the session's journal has no closing line: %s", error)

    def _find(self) -> Journal | None:
        """The recorded session, if there is one: its seed and its results are this run's from now on."""
        if not Journal.exists(self._directory):
            return None
        if not self._settings.resume:
            raise ConfigError(
                f"session {self.session_id!r} has results in {self._directory} already, and resume is off: "
                "resume it, or start a new session under another id"
            )
        journal, self._recorded_header, _ = Journal.open_existing(self._directory, self._recall)
        seed = self._recorded_header.plan.get("seed")
        if seed is None:
            journal.close()
            raise JournalError(
                f"{journal.path}, line 1 cannot be used: its plan has no seed. The file was left as it is"
            )
        self.seed = seed
        return journal

    def _recall(self, record: Record, place: Place) -> None:
        result = from_record(record)
        if self._shelf is not None:
            self._shelf.places[result.key] = place
        self._keep(result)

    def _keep(self, result: TaskTrialResult) -> None:
        """In memory: all of it, or what the run itself still needs."""
        if self._shelf is not None:
            if result.task_id in self._plan.needed:
                self._outputs[result.key] = task_output(result.state)
            result = light_trial(result)
        self.results[result.key] = result

    def whole(self, trial: TaskTrialResult) -> TaskTrialResult:
        """A trial with all that was recorded of it."""
        return trial if self._shelf is None else self._shelf.whole(trial)

    async def _label(self) -> str | None:
        """The model's name: the crew's word, else that of the first agent that is needed, or would be.

        Where that agent cannot be made: the recorded one, for there is nothing that speaks against it.
        """
        if self._crew.label is not None or self._crew.is_shared:
            return self._crew.label
        key = next((key for key in self._plan.trials() if not self._is_settled(key)), next(self._plan.trials()))
        try:
            return await self._crew.prepare(self.identity.context(key))
        except AgentError:
            recorded: str | None = self._recorded_header.fingerprint.get("model") if self._recorded_header else None
            return recorded

    def _is_settled(self, key: TrialKey) -> bool:
        """Whether a trial has a record that stands."""
        result = self.results.get(key)
        return result is not None and (result.graded or not self._settings.retry_errors)

    def _identity_parts(self, model: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """What must be the same when the session is resumed: the plan, and what it is run with."""
        plan = {
            "task_ids": list(self._plan.tasks),
            "trials_per_task": self._plan.trials_per_task,
            "seed": self._settings.seed,
        }
        fingerprint = {
            "model": model,
            "environments": self._connection.fingerprint,
            "tasks": {task_id: info.digest for task_id, info in self._plan.tasks.items()},
        }
        return plan, fingerprint

    def _header(self, model: str | None) -> Header:
        plan, fingerprint = self._identity_parts(model)
        return Header.new(self.session_id, {**plan, "seed": self.seed}, fingerprint, datetime.now().astimezone())

    @property
    def identity(self) -> RunIdentity:
        """What all trials of this run have in common."""
        return RunIdentity(self.session_id, self._run_id, self.seed)

    # ---- the run ----

    async def run(self, display: Progress) -> None:
        """Run what has no record yet."""
        pending, earlier = await self._pending(), frozenset(self.results)
        self._has_run = any(job.key not in pending.recorded for job in pending.jobs)
        if not self._has_run:
            self._hint_at_errors()
        display.planned(self._plan.size, len(pending.recorded))
        driver = TrialDriver(self._connection, self._settings, self._crew, self.identity, display, self._outputs_of)

        async def run_trial(job: Job, configured: Any) -> TaskTrialResult:
            lost = self._lost_output(job, earlier)
            return _not_run(job, *lost) if lost else await driver.run(job, configured)

        scheduler = Scheduler(
            self._settings.limits,
            slots=self._grow_pool(pending.jobs),
            run_trial=run_trial,
            record=self._record,
            skip_trial=self._skip,
            close_episode=self._close_episode,
            share_out=self._connection.pool.share_out if self._connection.pool else None,
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell, display, scheduler, driver)
                await scheduler.run(pending.jobs, pending.recorded)
                tasks.cancel_scope.cancel()
        finally:
            display.finished()

    def _hint_at_errors(self) -> None:
        """Nothing is left to run: whoever started this again because of trials that failed has to ask for them."""
        if lost := sum(not result.graded for result in self.results.values()):
            _log.warning(
                "session %r has a record of every trial, and nothing was run; %d of them %s not graded: "
                "retry_errors=True (--retry-errors) runs %s again",
                self.session_id, lost, *(("was", "that one") if lost == 1 else ("were", "these")),
            )  # fmt: skip

    def _outputs_of(self, job: Job) -> dict[str, Any]:
        """From the records, so that a dependent gets the same after a resume."""
        parents = [TrialKey(parent, job.key.trial_index) for parent in job.info.parents]
        return {key.task_id: self._output(key) for key in parents if key in self.results}

    def _output(self, key: TrialKey) -> dict[str, Any]:
        return task_output(self.results[key].state) if self._shelf is None else self._outputs[key]

    async def _pending(self) -> _Pending:
        jobs: list[Job] = []
        now = time.monotonic()
        for episode in self._plan.episodes():
            for task_id in episode.tasks:
                key = TrialKey(task_id, episode.trial_index)
                jobs.append(Job(key, self._plan.tasks[task_id], episode, len(jobs), planned_at=now))
        if self._settings.limits.per_model:
            for job in jobs:
                if not self._is_settled(job.key):
                    with suppress(AgentError):  # its trial will tell
                        job.model = await self._crew.prepare(self.identity.context(job.key))
        settled = {key: result.success for key, result in self.results.items() if self._is_settled(key)}
        return _Pending(jobs, settled)

    def _grow_pool(self, jobs: list[Job]) -> int | None:
        pool = self._connection.pool
        if pool is None or self._settings.worker_pool is None:
            # A server hands out its slots itself, to other runs too; more trials than it has would only wait there.
            most = self._connection.remote_slots or self._settings.limits.global_trials
            return most if self._connection.has_remote_pool else None
        to_run = Counter(
            job.key.task_id for job in jobs if job.info.mode == "process" and not self._is_settled(job.key)
        )
        limits = self._settings.limits
        most = min(limits.global_trials, sum(min(limits.per_task, number) for number in to_run.values()))
        wanted = self._settings.worker_pool.size or min(limits.global_trials, to_run.total())
        if most < min(wanted, to_run.total()):
            _log.warning(
                "at most %d of %d workers will be busy at a time: max_concurrency is %d, max_concurrency_per_task %d",
                most, wanted, limits.global_trials, limits.per_task,
            )  # fmt: skip
        pool.resize(max(1, wanted))
        pool.share_out(pool.size)
        return pool.size

    async def _record(self, job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
        return await self._collector.record(result, replaces=job.key in self.results, hurry=hurry)

    async def _skip(self, job: Job, lost: Unreachable) -> None:
        why = "did not succeed"
        if lost.failed != lost.broken_by:
            why = f"was not run either, since {lost.failed!r} did not succeed"
        await self._record(job, _not_run(job, lost.broken_by, why), True)

    def _lost_output(self, job: Job, earlier: AbstractSet[TrialKey]) -> tuple[str, str] | None:
        """A parent whose output an earlier run left, if the router cannot be given it, and why it is lost."""
        if self._connection.takes_outputs:
            return None
        why = "was left by an earlier run and cannot be restored: the router's create_trial takes no outputs"
        lost = (parent for parent in job.info.parents if TrialKey(parent, job.key.trial_index) in earlier)
        return next(((parent, why) for parent in lost), None)

    async def _close_episode(self, episode: Episode) -> None:
        """Close an episode. A router that cannot costs a warning: all of its trials have their records."""
        problem = f"did not end within {CLOSE_PATIENCE:g} s"
        try:
            with anyio.move_on_after(CLOSE_PATIENCE, shield=True):
                with suppress(LookupError):  # none of its trials could be opened
                    await self._connection.close_episode(episode.episode_id)
                problem = ""
        except ProtocolError:
            raise
        except Exception as error:
            problem = f"failed: {ErrorRecord.of(error)}"
        if problem:
            _log.warning("closing the episode %s %s", episode.episode_id, problem)

    async def _tell(self, display: Progress, scheduler: Scheduler, driver: TrialDriver) -> None:
        """Keep the display informed of what no trial tells."""
        tick = getattr(display, "tick", None)
        while True:
            if self._connection.pool is not None:
                display.pool(self._connection.pool.statistics())
            display.waiting({**scheduler.waits(), **held_back()})
            driver.tell_phases()
            if tick is not None:
                tick()
            await anyio.sleep(TICK)


def _not_run(job: Job, parent: str, why: str) -> TaskTrialResult:
    """The record of a trial that cannot have the output of ``parent``."""
    message = f"not run: it needs the output of task {parent!r}, which {why}"
    state = {"task_id": job.key.task_id, "unreachable": True, "missing_dependency": parent}
    return TaskTrialResult.not_graded(job.key, FailureKind.NOT_RUN, message, state=state)
