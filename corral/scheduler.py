"""The driver of the planner: admits trials, runs them, and lets the next ones follow.

Guarantees
    * A trial is started only when the planner has taken everything it needs, in one step.
    * Tasks of one episode that need a slot use the episode's own, one after the other; it is held until the episode is
      over. Whoever holds a slot waits only for what others release without needing one.
    * A dependent starts when its parents have succeeded; what a broken parent cuts off is skipped, not run.
Assumption: ``run_trial`` gives a result whatever happens to the trial; what it raises ends the run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from corral.episode import Episode, Unreachable
from corral.planner import CONFIGURE, GATE, GLOBAL, SLOT, Planner, Request, model_resource, task_resource
from corral.types import ConcurrencyConfig, TaskInfo, TaskTrialResult, TrialKey


@dataclass(eq=False)
class Job:
    """One trial to run."""

    key: TrialKey
    info: TaskInfo
    episode: Episode
    order: int
    model: str | None = None
    planned_at: float = 0.0


@dataclass(eq=False)
class _Chain:
    """What the driver keeps of an episode that is under way."""

    episode: Episode
    waiting: deque[Job] = field(default_factory=deque)
    """Jobs that need the episode's slot, behind the one that has it."""
    busy: bool = False
    slot_holder: TrialKey | None = None


_LIMITS = {
    GLOBAL: "max_concurrency", GATE: "the gate of serial trials", SLOT: "a slot of the pool",
    CONFIGURE: "configure_apps", "task": "max_concurrency_per_task",
}  # fmt: skip
"""The planner's resources in the words of those who set them."""

RunTrial = Callable[[Job, Callable[[], None]], Awaitable[TaskTrialResult]]
SkipTrial = Callable[[Job, Unreachable], Awaitable[None]]
CloseEpisode = Callable[[Episode], Awaitable[None]]


class Scheduler:
    """Runs episodes under the limits of a ConcurrencyConfig. ``slots`` is the pool's size; None without a pool."""

    def __init__(
        self,
        limits: ConcurrencyConfig,
        *,
        slots: int | None,
        run_trial: RunTrial,
        skip_trial: SkipTrial,
        close_episode: CloseEpisode,
    ) -> None:
        self._limits = limits
        self._has_pool = slots is not None
        self._run_trial = run_trial
        self._skip_trial = skip_trial
        self._close_episode = close_episode
        self._planner = Planner(_capacities(limits, slots))
        self._jobs: dict[TrialKey, Job] = {}
        self._chains: dict[str, _Chain] = {}

    @property
    def waiting(self) -> int:
        """Trials that could start but for a limit."""
        return self._planner.waiting

    def waits(self) -> dict[str, int]:
        """How many trials wait for what, by the name of the limit; without those that wait for parents."""
        counts: Counter[str] = Counter()
        for resource, number in self._planner.blocked().items():
            kind, _, name = resource.partition(":")
            counts[f"per_model[{name}]" if kind == "model" else _LIMITS.get(kind, kind)] += number
        return dict(counts)

    async def run(self, jobs: Iterable[Job], recorded: Mapping[TrialKey, bool]) -> None:
        """Run every job whose trial is not ``recorded`` (with whether it succeeded) already."""
        episodes: dict[str, Episode] = {}
        for job in jobs:
            self._jobs[job.key] = job
            episodes.setdefault(job.episode.episode_id, job.episode)
            self._planner.resize(task_resource(job.key.task_id), self._limits.per_task)
        async with anyio.create_task_group() as tasks:
            for episode in episodes.values():
                self._chains[episode.episode_id] = _Chain(episode)
                await self._offer(episode, episode.ready(), recorded, tasks)
            self._admit(tasks)

    async def _offer(
        self, episode: Episode, ready: Iterable[str], recorded: Mapping[TrialKey, bool], tasks: TaskGroup
    ) -> None:
        """Put ready tasks before the planner; those with a record have ended already."""
        todo = deque(ready)
        while todo:
            key = TrialKey(todo.popleft(), episode.trial_index)
            if key in recorded:
                more, lost = episode.ended(key.task_id, succeeded=recorded[key])
                todo.extend(more)
                await self._skip(episode, [item for item in lost if self._key(episode, item) not in recorded])
            else:
                self._enqueue(self._jobs[key])
        if episode.is_over:
            await self._end(episode)

    def _enqueue(self, job: Job) -> None:
        chain = self._chains[job.episode.episode_id]
        if not self._uses_slot(job):
            self._planner.add(Request(job.key, self._demands(job), job.order))
        elif chain.busy:
            chain.waiting.append(job)
        else:
            chain.busy = True
            needs = self._demands(job)
            if chain.slot_holder is None:
                needs[SLOT] = 1
            self._planner.add(Request(job.key, needs, job.order))

    def _uses_slot(self, job: Job) -> bool:
        return self._has_pool and job.info.mode == "process"

    def _demands(self, job: Job) -> dict[str, int]:
        needs = {GLOBAL: 1, task_resource(job.key.task_id): 1}
        if job.info.mode == "serial":  # nothing runs beside it
            needs[GLOBAL] = self._limits.global_trials
        if job.info.mode == "serial" or (job.info.mode == "process" and not self._has_pool):
            needs[GATE] = 1
        if job.model in (self._limits.per_model or {}):
            needs[model_resource(str(job.model))] = 1
        if job.info.configures and self._limits.configure_apps is not None:
            needs[CONFIGURE] = 1
        return needs

    def _admit(self, tasks: TaskGroup) -> None:
        for request in self._planner.admit():
            tasks.start_soon(self._run, self._jobs[request.key], request, tasks)  # type: ignore[index]

    async def _run(self, job: Job, request: Request, tasks: TaskGroup) -> None:
        held = set(request.demands)

        def configured() -> None:
            if CONFIGURE in held:
                held.discard(CONFIGURE)
                self._planner.release(job.key, [CONFIGURE])
                self._admit(tasks)

        result = await self._run_trial(job, configured)
        del self._jobs[job.key]
        self._give_back(job, held)
        ready, lost = job.episode.ended(job.key.task_id, succeeded=result.success)
        for task_id in ready:
            self._enqueue(self._jobs[TrialKey(task_id, job.key.trial_index)])
        self._admit(tasks)
        await self._skip(job.episode, lost)
        if job.episode.is_over:
            await self._end(job.episode)
            self._admit(tasks)

    def _give_back(self, job: Job, held: set[str]) -> None:
        chain = self._chains[job.episode.episode_id]
        keeps_slot = SLOT in held and job.episode.is_chain
        if keeps_slot:
            chain.slot_holder = job.key
            held.discard(SLOT)
        self._planner.release(job.key, held if keeps_slot else None)
        if self._uses_slot(job):
            chain.busy = False
            if chain.waiting:
                self._enqueue(chain.waiting.popleft())

    async def _skip(self, episode: Episode, lost: Iterable[Unreachable]) -> None:
        for item in lost:
            await self._skip_trial(self._jobs.pop(self._key(episode, item)), item)

    @staticmethod
    def _key(episode: Episode, item: Unreachable) -> TrialKey:
        return TrialKey(item.task_id, episode.trial_index)

    async def _end(self, episode: Episode) -> None:
        chain = self._chains.pop(episode.episode_id)
        if episode.is_chain:
            await self._close_episode(episode)
        if chain.slot_holder is not None:
            self._planner.release(chain.slot_holder)


def _capacities(limits: ConcurrencyConfig, slots: int | None) -> dict[str, int]:
    capacities = {GLOBAL: limits.global_trials, GATE: 1}
    if slots is not None:
        capacities[SLOT] = slots
    if limits.configure_apps is not None:
        capacities[CONFIGURE] = limits.configure_apps
    for model, limit in (limits.per_model or {}).items():
        capacities[model_resource(model)] = limit
    return capacities
