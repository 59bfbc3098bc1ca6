"""TrialService: opens trials and episodes, decides where each runs, and keeps its deadlines.

Purpose
    The one thing behind the local router and the environment server. It knows environments and the pool; it knows
    neither agents nor results files.
Guarantees
    * Placement: "thread" runs in-process; "process" on a leased slot. Without a pool "process", and "serial" always,
      run one at a time.
    * A trial that is opened is closed exactly once, and its slot or gate is given back, however it ended.
    * Closing an episode ends what is open of it and turns back what is being opened, and only then gives back its slot.
    * A call that passes its limit is ended from outside, the trial with it; the limit starts when the call starts.
    * Calls of one trial, and of one episode on a slot, run one after the other, however many an agent makes at once.
    * Closing a trial ends the call that is still under way; nobody gets its late answer.
    * A task of an episode gets the outputs of its parents.
    * A call in this process that was given up keeps what must run alone waiting, for at most ``lingering.LINGER``
      seconds; a trial that begins beside it then says so in its warnings.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

from corral.door import Door
from corral.errors import (
    ConfigError,
    ConfigureTimeout,
    EnvStartError,
    ErrorRecord,
    FailureKind,
    MemoryExceeded,
    NotFound,
    SerializationError,
    ToolTimeout,
    TrialError,
    WorkerDied,
)
from corral.hosts import InProcessHost
from corral.lean import dataclass
from corral.lingering import Lingering
from corral.open_trial import OpenEpisode, OpenTrial
from corral.pool.messages import Closed, Done
from corral.pool.supervisor import WorkerPool
from corral.source import EnvironmentSource
from corral.tasks import task_output
from corral.types import (
    Action,
    TaskInfo,
    TaskTrialResult,
    ToolCall,
    ToolResponse,
    TrialKey,
    TrialSpec,
    check_count,
)

__all__ = ["OpenTrial", "ServiceLimits", "TrialService"]

_ACTS = frozenset({Action.EXECUTE, Action.SUBMIT, Action.SURRENDER, Action.CONFIGURE})


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Time limits, in seconds, of single calls into an environment; None for no limit."""

    tool_timeout: float | None = None
    configure_timeout: float | None = None
    close_timeout: float = 10.0
    setup_timeout: float | None = None
    """Of building a trial's environment and of its ``setup_fn``."""


@dataclass(frozen=True, slots=True)
class _Order:
    """What is to be opened of a task."""

    trial_index: int
    seed: int
    outputs: Mapping[str, Any]
    tool_jobs: int
    tool_calls: tuple[ToolCall, ...]

    def spec(self, runtime_id: str, info: TaskInfo, outputs: Mapping[str, Any]) -> TrialSpec:
        """The trial as its runtime is told of it. ``outputs``: those of its episode, which count for less."""
        stores = (outputs, self.outputs)
        needed = {parent: store[parent] for parent in info.parents for store in stores if parent in store}
        return TrialSpec(runtime_id, info.task_id, self.trial_index, self.seed, needed, self.tool_jobs, self.tool_calls)


def _within(seconds: float | None) -> AbstractContextManager[object]:
    """``fail_after``; nothing at all where there is no limit."""
    return _UNLIMITED if seconds is None else anyio.fail_after(seconds)


_UNLIMITED: AbstractContextManager[object] = nullcontext()


class TrialService:
    """Opens, drives and closes trials. All methods but the constructor must run in the event loop of its pool."""

    def __init__(
        self,
        source: EnvironmentSource,
        catalogue: Mapping[str, TaskInfo],
        *,
        pool: WorkerPool | None = None,
        limits: ServiceLimits | None = None,
        work_root: Path,
        waits: bool = True,
    ) -> None:
        """``waits``: whether a trial that must run alone waits for the one before; else it is refused."""
        self.catalogue = dict(catalogue)
        self.pool = pool
        self._source = source
        self._limits = limits or ServiceLimits()
        self._work_root = work_root
        self.opening: dict[TrialKey, OpenTrial] = {}
        """Trials that have their place and are being set up there."""
        self._trials: dict[str, OpenTrial] = {}
        self._episodes: dict[str, OpenEpisode] = {}
        self._shared: dict[str, str] = {}
        self._sharing: dict[str, anyio.Lock] = {}
        self._waits = waits
        self._gate = anyio.Semaphore(1)
        self._gate_holder: str | None = None
        self._lingering = Lingering()

    # ---- opening and closing ----

    async def create_trial(
        self,
        task_id: str,
        *,
        episode_id: str | None = None,
        trial_index: int = 0,
        tool_jobs_per_trial: int = 4,
        seed: int = 0,
        outputs: Mapping[str, Any] | None = None,
        tool_calls: tuple[ToolCall, ...] = (),
    ) -> OpenTrial:
        """Open a trial runtime, waiting for a slot or the gate if need be.

        ``outputs`` are its parents', where they are not of this episode here. ``tool_calls`` were made before, of a
        trial that is only to be scored again. Raises NotFound for an unknown task, or if the episode is closed
        meanwhile, EnvStartError if the environment cannot be set up.
        """
        info = self._info(task_id)
        check_count(tool_jobs_per_trial, "tool_jobs_per_trial")
        order = _Order(trial_index, seed, outputs or {}, tool_jobs_per_trial, tool_calls)
        if episode_id is None:
            return await self._open(info, order)
        episode = self._episode(episode_id)
        with episode.door.entering():
            trial = await self._open(info, order, episode_id, episode)
            episode.open_trials.add(trial.runtime_id)
        return trial

    def _episode(self, episode_id: str) -> OpenEpisode:
        if (episode := self._episodes.get(episode_id)) is None:
            door = Door(partial(NotFound, "episode", episode_id))
            episode = self._episodes[episode_id] = OpenEpisode(door)
        return episode

    async def _open(
        self, info: TaskInfo, order: _Order, episode_id: str | None = None, episode: OpenEpisode | None = None
    ) -> OpenTrial:
        trial = await self._placed(info, episode, order.trial_index, episode_id)
        key = TrialKey(info.task_id, order.trial_index)
        self.opening[key] = trial
        spec = order.spec(trial.runtime_id, info, episode.outputs if episode is not None else {})
        try:
            await self._open_within_limit(trial, spec)
        except BaseException as error:
            if isinstance(error, TrialError):
                error.phase, error.worker = trial.phase, trial.host.worker
            await self._let_go(trial)
            if isinstance(error, TrialError):
                error.output = error.output or trial.host.last_output()
                error.closed = Closed(trial.warnings).completed(trial.end_of_process())
            raise
        finally:
            self.opening.pop(key, None)
        self._trials[trial.runtime_id] = trial
        return trial

    async def _placed(
        self, info: TaskInfo, episode: OpenEpisode | None, trial_index: int, episode_id: str | None
    ) -> OpenTrial:
        """A trial that has its place, and is yet to be opened there."""
        trial = partial(OpenTrial, f"tr_{secrets.token_hex(8)}", info.task_id, trial_index, episode_id=episode_id)
        gated = info.mode == "serial" or (info.mode == "process" and self.pool is None)
        warnings = await (self._pass_gate(info.task_id) if gated else self._lingering.wait(gated=False))
        if info.mode == "process" and self.pool is not None:
            if episode is None:
                return trial(await self.pool.acquire(), warnings=warnings)
            async with episode.placing:  # two at once must not lease two slots
                episode.host = episode.host or await self.pool.acquire()
            return trial(episode.host, turn=episode.turn, warnings=warnings)
        host = InProcessHost(self._source, self._work_root, seed_globals=gated)
        return trial(host, gated=gated, warnings=warnings)

    async def _pass_gate(self, task_id: str) -> tuple[str, ...]:
        """Wait until the trial may run alone, and have the gate. What its record is to tell, if it does not."""
        if not self._waits and self._gate_holder is not None:
            raise ConfigError(
                f"a trial of {task_id!r} must run alone here, and one of {self._gate_holder!r} is open: close it first"
            )
        await self._gate.acquire()
        self._gate_holder = task_id
        try:
            return await self._lingering.wait(gated=True)
        except BaseException:
            self._open_gate()
            raise

    async def _open_within_limit(self, trial: OpenTrial, spec: TrialSpec) -> None:
        seconds = self._limits.setup_timeout
        await trial.take_turn()
        try:
            await trial.host.prepare(spec.task_id)  # a process has start_timeout to start
            with _within(seconds):
                trial.workspace = (await trial.host.open(spec)).workspace
        except TimeoutError:
            await trial.host.kill()
            error = EnvStartError(f"the set-up of {spec.task_id!r} did not end within {seconds:g} s")
            error.output = trial.host.last_output()
            raise error from None
        finally:
            trial.turn.release()
        trial.worker = trial.host.worker

    async def _let_go(self, trial: OpenTrial) -> None:
        """Give back what the trial held. An episode's lease stays with the episode."""
        if isinstance(trial.host, InProcessHost):
            self._leave(trial, trial.host)
        elif trial.episode_id is None and self.pool is not None:
            await self.pool.release(trial.host)  # type: ignore[arg-type]

    def _leave(self, trial: OpenTrial, host: InProcessHost) -> None:
        if (mode := self._info(trial.task_id).mode) != "thread":
            self._lingering.note(host, TrialKey(trial.task_id, trial.trial_index), mode)
        if trial.gated:
            trial.gated = False
            self._open_gate()

    def _open_gate(self) -> None:
        self._gate_holder = None
        self._gate.release()

    async def close_trial(self, runtime_id: str) -> Closed:
        """Close a trial and give back what it held. What its ``close`` did wrong comes back as warnings."""
        trial = self.find(runtime_id)
        del self._trials[runtime_id]
        if trial.episode_id is not None:
            self._episodes[trial.episode_id].open_trials.discard(runtime_id)
        closed = Closed()
        try:
            closed = await self._close_within_limit(trial)
        finally:
            await self._let_go(trial)
        return replace(closed, warnings=trial.warnings + closed.warnings).completed(trial.end_of_process())

    async def _close_within_limit(self, trial: OpenTrial) -> Closed:
        seconds = self._limits.close_timeout
        trial.end_calls()
        with anyio.CancelScope(shield=True) as limit:
            return await self._close(trial, limit, seconds)
        await trial.host.kill()
        warning = f"close did not end within {seconds:g} s; its process was killed"
        return Closed((warning,), output=trial.host.last_output())

    async def _close(self, trial: OpenTrial, limit: anyio.CancelScope, seconds: float) -> Closed:
        await trial.take_turn()
        goes_on = trial.host.end_of_process() is None
        limit.deadline = anyio.current_time() + seconds
        try:
            return await trial.host.close_trial(trial.runtime_id, last=trial.episode_id is None)
        except (TrialError, NotFound) as error:  # its process is gone
            trial.output = trial.host.last_output()
            is_news = goes_on and isinstance(error, WorkerDied | MemoryExceeded)
            return Closed((str(error),) if is_news else (), output=trial.output)
        finally:
            trial.turn.release()

    async def close_episode(self, episode_id: str) -> None:
        """Close what is open of an episode, or is being opened, and give back its slot. NotFound for a second time.

        It keeps its name until then, so that no trial can come by its slot, or begin another one of that name.
        """
        episode = self._episodes.get(episode_id)
        if episode is None or episode.door.is_shut:
            raise NotFound("episode", episode_id)
        episode.door.shut()
        with anyio.CancelScope(shield=True):
            try:
                await episode.door.emptied()
                await self._close_trials(episode)
                if episode.host is not None and self.pool is not None:
                    await self.pool.release(episode.host)  # type: ignore[arg-type]
            finally:
                del self._episodes[episode_id]

    async def _close_trials(self, episode: OpenEpisode) -> None:
        while episode.open_trials:
            trial = self._trials.pop(episode.open_trials.pop())
            await self._close_within_limit(trial)
            await self._let_go(trial)

    async def aclose(self) -> None:
        """Close every trial and episode."""
        for episode_id in list(self._episodes):
            with suppress(NotFound):  # it is being closed
                await self.close_episode(episode_id)
        for runtime_id in list(self._trials):
            await self.close_trial(runtime_id)

    # ---- driving ----

    def find(self, runtime_id: str) -> OpenTrial:
        """An open trial; NotFound if there is none of that id."""
        try:
            return self._trials[runtime_id]
        except KeyError:
            raise NotFound("trial", runtime_id) from None

    def _info(self, task_id: str) -> TaskInfo:
        try:
            return self.catalogue[task_id]
        except KeyError:
            raise NotFound("task", task_id, list(self.catalogue)) from None

    async def perform(self, runtime_id: str, action: Action, *arguments: Any) -> Any:
        """Ask something of an open trial, within the limit of that kind of call.

        A trial that was broken once stays broken: whatever is asked of it later raises the same error, so an agent that
        swallows it cannot end in a score.
        """
        trial = self.find(runtime_id)
        await checkpoint_if_cancelled()
        await trial.take_turn()
        try:
            return await self._perform(trial, action, arguments)
        finally:
            trial.turn.release()

    async def _perform(self, trial: OpenTrial, action: Action, arguments: tuple[Any, ...]) -> Any:
        if trial.fault is not None:
            raise trial.fault
        trial.phase = f"tool {arguments[0]}" if action is Action.EXECUTE else action.value
        try:
            given = trial.checked(action, arguments)
        except SerializationError as error:
            return ToolResponse(False, error=str(ErrorRecord.of(error)))
        what = f"{trial.phase} of {trial.task_id}#{trial.trial_index}"
        try:
            asked = trial.host.ask(trial.runtime_id, action, arguments, what)
            value = asked.value if isinstance(asked, Done) else await self._answer_within_limit(trial, action, asked)
        except TrialError as error:
            error.phase = trial.phase
            if action is not Action.SUBMIT or error.kind is not FailureKind.SUBMISSION:
                trial.fault = error
            raise
        if action is Action.EXECUTE:
            trial.called(arguments[0], given, value)
        elif isinstance(value, TaskTrialResult):
            self._ended(trial, value)
        return value

    def _ended(self, trial: OpenTrial, result: TaskTrialResult) -> None:
        trial.result = result
        if trial.episode_id in self._episodes:
            self._episodes[trial.episode_id].outputs[trial.task_id] = task_output(result.state)

    async def _answer_within_limit(self, trial: OpenTrial, action: Action, answer: Awaitable[Any]) -> Any:
        seconds = self._limit_of(action)
        if seconds is None:
            return await trial.wait(answer)
        try:
            with anyio.fail_after(seconds):
                return await trial.wait(answer)
        except TimeoutError:
            await trial.host.kill()
            raise self._too_slow(action, trial, seconds) from None

    def _limit_of(self, action: Action) -> float | None:
        if action is Action.EXECUTE:
            return self._limits.tool_timeout
        return self._limits.configure_timeout if action is Action.CONFIGURE else None

    def _too_slow(self, action: Action, trial: OpenTrial, seconds: float) -> TrialError:
        kind = ToolTimeout if action is Action.EXECUTE else ConfigureTimeout
        error = kind.of_call(trial.phase, seconds)
        error.output = trial.host.last_output()
        return error

    # ---- the shared, serial surface of a task ----

    async def _shared_trial(self, task_id: str) -> str:
        if task_id not in self._shared or self._shared[task_id] not in self._trials:
            trial = await self.create_trial(task_id)
            if trial.gated:  # only calls pass the gate here: a trial that stays open would keep it for good
                trial.gated = False
                self._open_gate()
            self._shared[task_id] = trial.runtime_id
        return self._shared[task_id]

    async def perform_shared(self, task_id: str, action: Action, *arguments: Any) -> Any:
        """Ask something of the task's shared trial. Acting on one that has ended, or broke, begins a new one."""
        async with self._sharing.setdefault(self._info(task_id).task_id, anyio.Lock()):
            runtime_id = await self._shared_trial(task_id)
            trial = self.find(runtime_id)
            if trial.fault is not None or (action in _ACTS and trial.result is not None):
                await self.close_trial(runtime_id)
                runtime_id = await self._shared_trial(task_id)
            return await self.perform(runtime_id, action, *arguments)

    def shared_trial(self, task_id: str) -> OpenTrial | None:
        """The task's shared trial, if one is open."""
        return self._trials.get(self._shared.get(task_id, ""))

    async def close_shared(self, task_id: str) -> None:
        """Close the task's shared trial, if one is open."""
        async with self._sharing.setdefault(self._info(task_id).task_id, anyio.Lock()):
            if (trial := self.shared_trial(task_id)) is not None:
                await self.close_trial(trial.runtime_id)

    def check_episode_support(self) -> None:
        """ConfigError if a task of the catalogue needs outputs of one that is not in it."""
        for info in self.catalogue.values():
            if missing := [parent for parent in info.parents if parent not in self.catalogue]:
                raise ConfigError(f"task {info.task_id!r} needs the outputs of unknown tasks: {', '.join(missing)}")
