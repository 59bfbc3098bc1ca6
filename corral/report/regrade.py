"""Scores the stored answers of a session again, with a changed scorer and without running agents.

Each trial gets a fresh environment, its seed, its parents' outputs, and the recorded tool calls in ``env.state``; then
its answer is submitted as its agent did. What a scorer would read beyond that (files of the workspace, a live
simulation) is gone, and such a scorer's error makes the trial not graded.

Guarantees
    * Answers are scored as a run scores them: process-class tasks on the slots of a pool, each in fresh process state,
      within the trial's limit. A scorer that crashes or hangs costs its own trial's new score, and leaves evidence.
    * The new scores are a session of their own; the old one stays as it is. There is a whole new session or none.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from corral.agents.base import AgentRunResult
from corral.attempt import RunIdentity, TrialDriver
from corral.collector import Collector
from corral.connection import Connection, connect
from corral.crew import Crew
from corral.environment import Environment
from corral.episode import Episode, Links
from corral.errors import ConfigError, ProtocolError
from corral.header import Header
from corral.journal import Journal
from corral.pool.config import available_cpus
from corral.records import known_fields
from corral.report.progress import Progress, choose
from corral.report.result import BenchmarkResult
from corral.report.sessions import open_session
from corral.routers import AsyncLocalRouter
from corral.scheduler import Job, Scheduler
from corral.settings import RunSettings, check_settings
from corral.tasks import task_output
from corral.threads import call_blocking
from corral.types import Attempt, TaskTrialResult, ToolCall, TrialContext, TrialKey
from corral.unwrap import unwrapped

BuildEnvironments = Callable[[], Mapping[str, Environment]]


def regrade(
    result: BenchmarkResult,
    build_envs: BuildEnvironments,
    directory: str | os.PathLike[str],
    *,
    worker_pool: Any = True,
    trial_timeout: float | None = None,
    progress: Any = False,
) -> BenchmarkResult:
    """Score ``result`` again and record it as a session in ``directory``, whose name is its id.

    ``worker_pool``: as of ``bench``; with True as many slots as there are processors. ``trial_timeout``: seconds that
    scoring an answer may take; None for what the session was run with. Raises ConfigError where ``directory`` holds a
    session already or the environments lack a task of the result, EnvStartError where they cannot be built, and
    RuntimeError in a running event loop: await ``aregrade`` there.
    """
    again = partial(
        aregrade, result, build_envs, directory,
        worker_pool=worker_pool, trial_timeout=trial_timeout, progress=progress,
    )  # fmt: skip
    return anyio.run(again)


async def aregrade(
    result: BenchmarkResult,
    build_envs: BuildEnvironments,
    directory: str | os.PathLike[str],
    *,
    worker_pool: Any = True,
    trial_timeout: float | None = None,
    progress: Any = False,
) -> BenchmarkResult:
    """See ``regrade``."""
    settings = _settings(result, worker_pool, trial_timeout)
    display = choose(progress)
    with unwrapped():
        async with connect(build_envs, settings) as connection:
            _check(result, connection)
            with _new_session(result, Path(directory)) as journal:
                await _Regrading(result, connection, settings, display).run(journal)
                _conclude(result, journal, Path(directory))
    return open_session(directory)


def _settings(result: BenchmarkResult, worker_pool: Any, trial_timeout: float | None) -> RunSettings:
    limit = result.settings.get("trial_timeout") if trial_timeout is None else trial_timeout
    settings = check_settings(
        task_ids=None, trials_per_task=1, k_values=None, max_concurrency=1, max_concurrency_per_task=1,
        concurrency=None, worker_pool=worker_pool, session_id=None, run_name=None, resume=False, retry_errors=False,
        retries=1, seed=None, trial_timeout=limit, tool_timeout=None, configure_timeout=None, tool_verbosity=None,
        verbose=False, progress=None,
    )  # fmt: skip
    pool = settings.worker_pool
    if pool is None:
        return settings
    size = pool.size or available_cpus()
    limits = replace(settings.limits, global_trials=size, per_task=size)
    return replace(settings, worker_pool=replace(pool, size=size), limits=limits)


def _check(result: BenchmarkResult, connection: Connection) -> None:
    if lacking := [task_id for task_id in result.task_results if task_id not in connection.catalogue]:
        raise ConfigError(f"the environments have no task {', '.join(map(repr, lacking))}, which the session has")


@contextmanager
def _new_session(result: BenchmarkResult, folder: Path) -> Iterator[Journal]:
    """The journal of the new session. What was begun of it goes if it does not come to its end."""
    plan = {
        "task_ids": list(result.task_results),
        "trials_per_task": result.trials_per_task,
        "seed": result.seed,
    }
    fingerprint = {"model": result.model, "regraded_from": result.session_id}
    existed = folder.exists()
    journal = Journal.create(folder, Header.new(folder.name, plan, fingerprint, datetime.now().astimezone()))
    try:
        yield journal
    except BaseException:
        journal.close()
        if existed:
            journal.path.unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    journal.close()


def _conclude(result: BenchmarkResult, journal: Journal, folder: Path) -> None:
    again = replace(
        open_session(folder),
        k_values=result.k_values,
        run_name=result.run_name,
        wall_seconds=result.wall_seconds,
        settings={**result.settings, "regraded_from": result.session_id},
    )
    journal.append_run(again.closing_record())


class _Regrading:
    """The recorded trials on their way to their new scores."""

    def __init__(
        self, result: BenchmarkResult, connection: Connection, settings: RunSettings, display: Progress
    ) -> None:
        self._result = result
        self._known = {trial.key: trial for trial in result.trials}
        self._open: dict[TrialKey, TaskTrialResult] = {}
        """Those that are being scored, with all that was recorded of them."""
        self._outputs: dict[TrialKey, dict[str, Any]] = {}
        self._connection = connection
        self._settings = settings
        self._display = display
        connection.router = _Replaying(connection.router, self._open)
        crew = Crew(None, self._agent, enable_surrender=False)
        identity = RunIdentity(result.session_id, "regrade", result.seed or 0)
        self._driver = TrialDriver(connection, settings, crew, identity, display, lambda job: self._outputs[job.key])

    def _agent(self, context: TrialContext) -> _Replay:
        key = TrialKey(context.task_id, context.trial_index)
        return _Replay(self._open[key].state["submitted_answer"])

    async def run(self, journal: Journal) -> None:
        """Score them all, each as soon as there is room for it."""
        self._display.planned(len(self._known), 0)
        try:
            async with Collector(journal, self._display.recorded) as collector:

                async def record(job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
                    return await collector.record(result, hurry=hurry)

                scheduler = Scheduler(
                    self._settings.limits,
                    slots=self._grow_pool(),
                    run_trial=self._again,
                    record=record,
                    skip_trial=_never,
                    close_episode=_never,
                )
                await scheduler.run(self._jobs(), {})
        finally:
            self._display.finished()

    def _grow_pool(self) -> int | None:
        pool = self._connection.pool
        if pool is None or self._settings.worker_pool is None:
            return None
        on_slots = sum(self._connection.catalogue[key.task_id].mode == "process" for key in self._known)
        pool.resize(max(1, min(self._settings.worker_pool.workers, on_slots)))
        return pool.size

    def _jobs(self) -> Iterator[Job]:
        now = time.monotonic()
        for order, key in enumerate(self._known):
            # Parents' outputs are recorded: every trial is an episode of its own, and needs nothing set up outside.
            info = replace(self._connection.catalogue[key.task_id], configures=False)
            episode = Episode(f"{key}", key.trial_index, Links({key.task_id: ()}))
            yield Job(key, info, episode, order, planned_at=now)

    async def _again(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        trial = await call_blocking(self._result.whole, self._known[job.key])
        if trial.state.get("submitted_answer") is None or trial.surrendered:
            return trial
        self._open[job.key] = trial
        self._outputs[job.key] = await call_blocking(self._outputs_of, job)
        try:
            return _rescored(trial, await self._driver.run(job, configured))
        finally:
            del self._open[job.key], self._outputs[job.key]

    def _outputs_of(self, job: Job) -> dict[str, Any]:
        parents = [TrialKey(parent, job.key.trial_index) for parent in job.info.parents]
        return {
            key.task_id: task_output(self._result.whole(self._known[key]).state)
            for key in parents
            if key in self._known
        }


def _rescored(trial: TaskTrialResult, given: TaskTrialResult) -> TaskTrialResult:
    """``trial`` with what its scoring gave now. Its transcript and times stay."""
    recorded = trial.attempts[-1] if trial.attempts else Attempt(1)
    if given.graded and given.failure is None:
        last = replace(recorded, failure=None, message=None, phase=None, traceback="")
        state = given.state
    else:
        times = {name: getattr(recorded, name) for name in ("number", "started_at", "opened", "seconds")}
        last = replace(given.attempts[-1], **times)
        state = trial.state
    return replace(
        trial,
        score=given.score,
        state=state,
        failure=given.failure,
        error_message=given.error_message,
        graded=given.graded,
        attempts=(*trial.attempts[:-1], last),
    )


class _Replay:
    """An agent that has its answer already."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def arun_agent(self, interface: Any, task_id: str) -> AgentRunResult:
        """Give the answer."""
        return AgentRunResult(self._answer, "success")


class _Replaying:
    """The service's router, whose trials open with the tool calls that were recorded of them."""

    def __init__(self, router: AsyncLocalRouter, trials: Mapping[TrialKey, TaskTrialResult]) -> None:
        self._router = router
        self._trials = trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._router, name)

    async def create_trial(self, task_id: str, *place: Any, **wanted: Any) -> dict[str, Any]:
        """Open a trial, by the arguments of ``Connection.open_trial``."""
        _, _, index, *_ = place
        calls = self._trials[TrialKey(task_id, index)].state.get("tool_calls") or ()
        made = tuple(ToolCall(**known_fields(ToolCall, call)) for call in calls)
        trial = await self._router.service.create_trial(task_id, trial_index=index, tool_calls=made, **wanted)
        return {"trial_runtime_id": trial.runtime_id, "workspace": trial.workspace, "worker": trial.worker}


async def _never(*args: Any) -> None:
    raise ProtocolError(f"a trial that is scored again has nothing to be skipped or closed: {args}")
