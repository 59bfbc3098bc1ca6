"""CorralRunner: composes a run. The one place that opens its task group.

interface ── Connection ─┐
arguments ── RunSettings ┼─> Plan ─> Scheduler ─> TrialDriver ─> Collector ─> Journal ─> BenchmarkResult
agent     ── Crew ───────┘
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from os import PathLike
from pathlib import Path
from random import SystemRandom
from typing import Any, Literal

import anyio

from corral.connection import connect, source_of
from corral.crew import AgentFactory, Crew
from corral.errors import ConfigError
from corral.header import new_session_id
from corral.plan import make_plan
from corral.pool.entry import refuse_in_worker
from corral.report.metrics import check_metrics
from corral.report.progress import Progress, choose
from corral.report.result import BenchmarkResult
from corral.session import Session
from corral.settings import RunSettings, check_settings
from corral.types import ConcurrencyConfig, check_flag, check_path
from corral.unwrap import unwrapped

_log = logging.getLogger(__name__)


class CorralRunner:
    """Runs benchmarks of an agent against environments.

    ``interface`` is a router (of an environment server, or a LocalRouter), a mapping ``{task_id: Environment}``, or a
    function without arguments that returns such a mapping. Give ``agent_factory``, called once per attempt with a
    TrialContext, or, for runs of one trial at a time, one ``agent``; an agent beside a factory only labels the run.
    """

    def __init__(
        self,
        interface: Any,
        agent: Any = None,
        *,
        agent_factory: AgentFactory | None = None,
        checkpoint_dir: str | PathLike[str] = "./benchmark_checkpoints",
        concurrency: ConcurrencyConfig | None = None,
        enable_surrender: bool = False,
        metrics: Iterable[Any] | None = None,
    ) -> None:
        source_of(interface)  # refused here already if it is no interface at all
        self._interface = interface
        self._crew = Crew(agent, agent_factory, enable_surrender=check_flag(enable_surrender, "enable_surrender"))
        self._checkpoint_dir = Path(check_path(checkpoint_dir, "checkpoint_dir"))
        self._concurrency = concurrency
        self._metrics = check_metrics(metrics)

    def bench(
        self,
        task_ids: Iterable[str] | None = None,
        trials_per_task: int = 1,
        k_values: Iterable[int] | None = None,
        *,
        max_concurrency: int = 1,
        max_concurrency_per_task: int = 1,
        concurrency: ConcurrencyConfig | None = None,
        worker_pool: Any = False,
        session_id: str | None = None,
        run_name: str | None = None,
        resume: bool = True,
        retry_errors: bool = False,
        retries: int = 1,
        seed: int | None = None,
        trial_timeout: float | None = None,
        tool_timeout: float | None = None,
        configure_timeout: float | None = None,
        setup_timeout: float | None = None,
        close_timeout: float = 10.0,
        tool_verbosity: str | None = None,
        verbose: bool = False,
        progress: Any = None,
        states: Literal["memory", "disk"] = "memory",
    ) -> BenchmarkResult:
        """Run the benchmark in an event loop of its own. See ``abench`` for the arguments.

        Raises RuntimeError inside a running event loop: await ``abench`` there.
        """
        arguments = dict(locals())  # a copy: a debugger that looks at the frame adds to the original
        del arguments["self"]
        refuse_in_worker("a run was")
        if _in_event_loop():
            raise RuntimeError("bench() was called in a running event loop: use `await runner.abench(...)` there")
        if session_id is None:  # drawn here already, to be told if the run is stopped
            arguments["session_id"] = session_id = new_session_id(datetime.now().astimezone(), SystemRandom())
        try:
            return anyio.run(partial(self.abench, **arguments))
        except KeyboardInterrupt:
            _log.warning(
                "session %r was stopped; what was finished is kept: the same call with session_id=%r goes on",
                session_id,
                session_id,
            )
            raise

    async def abench(
        self,
        task_ids: Iterable[str] | None = None,
        trials_per_task: int = 1,
        k_values: Iterable[int] | None = None,
        *,
        max_concurrency: int = 1,
        max_concurrency_per_task: int = 1,
        concurrency: ConcurrencyConfig | None = None,
        worker_pool: Any = False,
        session_id: str | None = None,
        run_name: str | None = None,
        resume: bool = True,
        retry_errors: bool = False,
        retries: int = 1,
        seed: int | None = None,
        trial_timeout: float | None = None,
        tool_timeout: float | None = None,
        configure_timeout: float | None = None,
        setup_timeout: float | None = None,
        close_timeout: float = 10.0,
        tool_verbosity: str | None = None,
        verbose: bool = False,
        progress: Any = None,
        states: Literal["memory", "disk"] = "memory",
    ) -> BenchmarkResult:
        """Run ``trials_per_task`` trials of every task (or of ``task_ids``) and return the result.

        Args:
            task_ids: the tasks to run; None for all.
            trials_per_task: trials of each task.
            k_values: the k for which the report gives pass@k and pass^k; at most ``trials_per_task``.
            max_concurrency: trials at once.
            max_concurrency_per_task: trials of one task at once.
            concurrency: all limits in one; takes the place of the runner's own and of the two above.
            worker_pool: False, True (a size that fits), a number of workers, or a WorkerPoolConfig.
            session_id: names the session; with ``resume`` a recorded one goes on where it stopped.
            run_name: a label for the report.
            resume: False refuses a session that already has results.
            retry_errors: run the recorded trials that were not graded again.
            retries: further attempts of a trial after a failure of the machinery.
            seed: the session's seed; drawn when None. A resumed session keeps its own.
            trial_timeout: seconds that a trial may take once its environment is open.
            tool_timeout: seconds that one tool call may take.
            configure_timeout: seconds that ``configure_additional_apps`` may take.
            setup_timeout: seconds that building a trial's environment may take; ``trial_timeout`` when None.
            close_timeout: seconds that closing it may take; then its process is killed, and a warning recorded.
            tool_verbosity: how much tool descriptions say: "minimal", "brief" or "full".
            verbose: show progress even where the output is no terminal.
            progress: True, False, a function called with each recorded trial, or a Progress.
            states: "disk" leaves the states, messages and outputs of recorded trials in the session's journal, for
                runs of very many or very talkative trials: ``result.whole_trials`` reads them from there.

        Raises:
            ConfigError: (a ValueError) for arguments that cannot be used; nothing was started.
            EnvStartError: the environments could not be loaded at all.
            JournalError: the session's files cannot be read or written.
        """
        refuse_in_worker("a run was")
        limits = concurrency if concurrency is not None else self._concurrency
        settings = check_settings(
            task_ids=task_ids, trials_per_task=trials_per_task, k_values=k_values, max_concurrency=max_concurrency,
            max_concurrency_per_task=max_concurrency_per_task, concurrency=limits, worker_pool=worker_pool,
            session_id=session_id, run_name=run_name, resume=resume, retry_errors=retry_errors, retries=retries,
            seed=seed, trial_timeout=trial_timeout, tool_timeout=tool_timeout, configure_timeout=configure_timeout,
            setup_timeout=setup_timeout, close_timeout=close_timeout, tool_verbosity=tool_verbosity, verbose=verbose,
            progress=progress, states=states,
        )  # fmt: skip
        if settings.limits.global_trials > 1 and self._crew.is_shared:
            raise ConfigError(
                "Concurrent benchmarking needs a fresh agent per trial: give CorralRunner an agent_factory, such as "
                "agent_factory=lambda context: MyAgent(...), instead of one shared agent"
            )
        display = choose(settings.progress)
        with unwrapped():
            return await self._bench(settings, display)

    async def _bench(self, settings: RunSettings, display: Progress) -> BenchmarkResult:
        began = time.monotonic()
        async with connect(self._interface, settings) as connection:
            plan = make_plan(connection.catalogue, settings.task_ids, settings.trials_per_task)
            connection.check(plan, settings.limits)
            session = Session(self._checkpoint_dir, settings, plan, connection, self._crew)
            async with session.opened(display):
                await session.run(display)
                result = BenchmarkResult.collect(
                    session.session_id,
                    plan.tasks,
                    session.results.values(),
                    trials_per_task=settings.trials_per_task,
                    k_values=settings.k_values,
                    run_name=settings.run_name,
                    model=session.model,
                    seed=session.seed,
                    pool=connection.pool.statistics() if connection.pool else None,
                    wall_seconds=time.monotonic() - began,
                    settings=settings.described(),
                    journal=session.journal_path,
                    metrics=self._metrics,
                    whole=session.whole,
                )
                await session.conclude(result)
            return result


def _in_event_loop() -> bool:
    """Whether the caller runs inside an event loop of asyncio or trio."""
    try:
        anyio.get_current_task()
    except (RuntimeError, LookupError):
        pass
    else:
        return True
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
