"""The driver of the planner: admits trials, runs them, and lets the next ones follow.

Guarantees
    * A trial is started only when the planner has taken everything it needs, in one step.
    * A trial that is over gives back what it held, and the next one runs while its record is on the way to the disk; a
      dependent, and whatever else follows from its result, waits for the record. Runs of one trial at a time go step
      by step: the next one may use the same agent. So do all while a record takes longer than LAG: results that are
      not on the disk are lost with the supervisor, and take its memory.
    * Tasks of one episode that need a slot use the episode's own, one after the other; it is held until the episode is
      over. Whoever holds a slot waits only for what others release without needing one.
    * The order of those that share a slot is the planner's: one that waits for a limit holds back none of the others.
    * A dependent starts when its parents have succeeded; what a broken parent cuts off is skipped, not run.
    * A trial for which there is no slot after all (``NoSlot``) waits again, holding nothing, for one of those left.
    * An episode that was begun is closed once: after its last task, or when an error or a cancellation ends the run.
Assumption: ``run_trial`` gives a result whatever happens to the trial; what it raises ends the run.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup

from corral.episode import Episode, Unreachable
from corral.errors import NoSlot
from corral.planner import (
    CONFIGURE,
    GATE,
    GLOBAL,
    SLOT,
    Planner,
    Request,
    episode_resource,
    model_resource,
    task_resource,
)
from corral.types import ConcurrencyConfig, TaskInfo, TaskTrialResult, TrialKey


@dataclass(eq=False, slots=True)
class Job:
    """One trial to run."""

    key: TrialKey
    info: TaskInfo
    episode: Episode
    order: int
    model: str | None = None
    planned_at: float = 0.0


@dataclass(eq=False, slots=True)
class _Course:
    """What the driver keeps of an episode that is not over."""

    episode: Episode
    begun: bool = False
    """Whether one of its trials was started."""
    wants_slot: dict[TrialKey, Request] = field(default_factory=dict)
    """Requests that wait for a slot together with the rest; none once the episode has its own."""
    shares_slot: dict[TrialKey, Request] = field(default_factory=dict)
    """The same, as they would be without it, once it has."""
    slot_holder: TrialKey | None = None
    """The trial that took the slot, in whose name the planner has it."""


_LIMITS = {GLOBAL: "max_concurrency", CONFIGURE: "configure_apps", "task": "max_concurrency_per_task"}
_PLACES = {GATE: "the gate of serial trials", SLOT: "a slot of the pool", "episode": "the slot of its episode"}
"""The planner's resources in the words of those who set them."""

LAG = 1.0
"""Seconds that a record may be on its way while trials begin for which one is still to be made."""

RunTrial = Callable[[Job, Callable[[], None]], Awaitable[TaskTrialResult]]
Record = Callable[[Job, TaskTrialResult, bool], Awaitable[TaskTrialResult]]
"""Records a result; the last argument says whether something waits for the record."""
SkipTrial = Callable[[Job, Unreachable], Coroutine[Any, Any, None]]
CloseEpisode = Callable[[Episode], Awaitable[None]]


class Scheduler:
    """Runs episodes under the limits of a ConcurrencyConfig. ``slots`` is the pool's size; None without a pool."""

    def __init__(
        self,
        limits: ConcurrencyConfig,
        *,
        slots: int | None,
        run_trial: RunTrial,
        record: Record,
        skip_trial: SkipTrial,
        close_episode: CloseEpisode,
        share_out: Callable[[int], None] | None = None,
    ) -> None:
        """``share_out`` is told how many slots are shared out, when that changes."""
        self._limits = limits
        self._has_pool = slots is not None
        self._run_trial = run_trial
        self._record = record
        self._skip_trial = skip_trial
        self._close_episode = close_episode
        self._share_out = share_out
        self._planner = Planner(_capacities(limits, slots))
        self._jobs: dict[TrialKey, Job] = {}
        self._courses: dict[str, _Course] = {}
        self._recorded: Mapping[TrialKey, bool] = {}
        self._recording: dict[TrialKey, float] = {}
        """Trials that gave back what they held, and since when their records are on the way, the oldest first."""
        self._rounds = 1
        """Of each task, at most."""
        self._demands_of: dict[tuple[str, str | None, tuple[str, ...]], Mapping[str, int]] = {}

    @property
    def waiting(self) -> int:
        """Trials that could start but for a limit."""
        return self._planner.waiting

    def waits(self) -> dict[str, int]:
        """How many trials wait for what: the limit's name and, where somebody set it, what it is.

        Without those that wait for parents.
        """
        counts: Counter[str] = Counter()
        for resource, number in self._planner.blocked().items():
            counts[self._named(resource)] += number
        return dict(counts)

    def _named(self, resource: str) -> str:
        kind, _, name = resource.partition(":")
        if kind in _PLACES:
            return _PLACES[kind]
        limit = f"per_model[{name}]" if kind == "model" else _LIMITS[kind]
        return f"{limit} ({self._planner.capacity(resource)})"

    async def run(self, jobs: Iterable[Job], recorded: Mapping[TrialKey, bool]) -> None:
        """Run every job whose trial is not ``recorded`` (with whether it succeeded) already."""
        self._recorded = recorded
        for job in jobs:
            self._jobs[job.key] = job
            if job.episode.episode_id not in self._courses:
                self._courses[job.episode.episode_id] = _Course(job.episode)
                if job.episode.is_chain:
                    self._planner.resize(episode_resource(job.episode.episode_id), 1)
            self._rounds = max(self._rounds, job.key.trial_index + 1)
        for task_id in {key.task_id for key in self._jobs}:
            self._planner.resize(task_resource(task_id), self._limits.per_task)
        try:
            async with anyio.create_task_group() as tasks:
                for course in list(self._courses.values()):
                    await self._offer(course.episode, course.episode.ready())
                self._admit(tasks)
        finally:
            await self._close_what_is_left()

    async def _offer(self, episode: Episode, ready: Iterable[str]) -> None:
        """Put ready tasks before the planner; those with a record have ended already."""
        todo = deque(ready)
        while todo:
            key = TrialKey(todo.popleft(), episode.trial_index)
            if key in self._recorded:
                more, lost = episode.ended(key.task_id, succeeded=self._recorded[key])
                todo.extend(more)
                await self._skip(episode, lost)
            else:
                self._enqueue(self._jobs[key])
        if episode.is_over:
            self._forget(episode)

    def _enqueue(self, job: Job) -> None:
        course = self._course_of(job)
        request = Request(job.key, self._demands(job), job.order)
        if self._uses_slot(job):
            with_slot = Request(job.key, self._demands(job, SLOT), job.order)
            if course.slot_holder is None:
                request = with_slot
            if job.episode.is_chain:
                (course.wants_slot if course.slot_holder is None else course.shares_slot)[job.key] = with_slot
        self._planner.add(request)

    def _course_of(self, job: Job) -> _Course:
        return self._courses[job.episode.episode_id]

    def _uses_slot(self, job: Job) -> bool:
        return self._has_pool and job.info.mode == "process"

    def _demands(self, job: Job, *more: str) -> Mapping[str, int]:
        """What a trial needs, and one of each of ``more``. All trials of a task without links share one mapping."""
        if job.episode.is_chain:
            return self._fresh_demands(job, more)
        kind = (job.key.task_id, job.model, more)
        if kind not in self._demands_of:
            self._demands_of[kind] = self._fresh_demands(job, more)
        return self._demands_of[kind]

    def _fresh_demands(self, job: Job, more: tuple[str, ...]) -> dict[str, int]:
        """In the order that the planner is quick with: what many trials share comes first."""
        serial = job.info.mode == "serial"
        needs = {GLOBAL: self._limits.global_trials if serial else 1}  # nothing runs beside a serial one
        if serial or (job.info.mode == "process" and not self._has_pool):
            needs[GATE] = 1
        needs |= dict.fromkeys(more, 1)
        if job.info.configures and self._limits.configure_apps is not None:
            needs[CONFIGURE] = 1
        if job.model in (self._limits.per_model or {}):
            needs[model_resource(str(job.model))] = 1
        own = [task_resource(job.key.task_id)]
        if self._uses_slot(job) and job.episode.is_chain:
            own.append(episode_resource(job.episode.episode_id))
            if job.episode.size > self._rounds:
                own.reverse()
        return needs | dict.fromkeys(own, 1)

    def _admit(self, tasks: TaskGroup) -> None:
        for key in self._planner.admit():
            job = self._jobs[key]  # type: ignore[index]
            course = self._course_of(job)
            course.begun = True
            if job.key in course.wants_slot:
                self._pin(course, job.key)
            tasks.start_soon(self._run, job, tasks)

    def _pin(self, course: _Course, holder: TrialKey) -> None:
        """The episode has its slot: its other trials need none of their own. They cannot start before this one ends."""
        course.slot_holder = holder
        del course.wants_slot[holder]
        for request in course.wants_slot.values():
            self._planner.withdraw(request.key)
            needs = {resource: amount for resource, amount in request.demands.items() if resource != SLOT}
            self._planner.add(Request(request.key, needs, request.order))
        course.shares_slot, course.wants_slot = course.wants_slot, {}

    def _unpin(self, course: _Course) -> None:
        """The episode has no slot after all: each of its trials that wait needs one again."""
        if course.slot_holder is not None:
            self._planner.release(course.slot_holder)
        course.slot_holder = None
        for key, request in course.shares_slot.items():
            if self._planner.withdraw(key):
                self._planner.add(request)
                course.wants_slot[key] = request
        course.shares_slot.clear()

    def _put_off(self, job: Job, left: int, tasks: TaskGroup) -> None:
        """Only so many slots are left, and none for this trial: it waits like one that was never started."""
        course, holder = self._course_of(job), self._course_of(job).slot_holder
        if holder != job.key:
            self._planner.release(job.key)
        if job.episode.is_chain:
            self._unpin(course)
        self._planner.resize(SLOT, left)
        if self._share_out is not None:
            self._share_out(left)
        self._enqueue(job)
        self._admit(tasks)

    async def _run(self, job: Job, tasks: TaskGroup) -> None:
        def configured() -> None:
            if CONFIGURE in self._planner.holds(job.key):
                self._planner.release(job.key, [CONFIGURE])
                self._admit(tasks)

        try:
            result = await self._run_trial(job, configured)
        except NoSlot as error:
            self._put_off(job, error.left, tasks)
            return
        if job.episode.is_chain or self._limits.global_trials == 1 or self._records_lag():
            await self._go_on(job, await self._record(job, result, True), tasks)
            return
        self._planner.release(job.key)
        self._admit(tasks)
        self._recording[job.key] = anyio.current_time()
        try:
            await self._record(job, result, not self._planner.waiting)
        finally:
            del self._recording[job.key]
        del self._jobs[job.key], self._courses[job.episode.episode_id]

    def _records_lag(self) -> bool:
        """Whether a record has been on its way for long: no trial is to begin now for which one is still to be made."""
        oldest = next(iter(self._recording.values()), math.inf)
        return anyio.current_time() - oldest > LAG

    async def _go_on(self, job: Job, result: TaskTrialResult, tasks: TaskGroup) -> None:
        """A trial has its record: what follows from it."""
        del self._jobs[job.key]
        ready, lost = job.episode.ended(job.key.task_id, succeeded=result.success)
        if is_last := job.episode.is_over:  # closing is part of it: its slot is free when the next trial is chosen
            await self._skip(job.episode, lost)
            await self._close(self._course_of(job))
        self._give_back(job)
        if is_last:
            self._forget(job.episode)
        for task_id in ready:
            self._enqueue(self._jobs[TrialKey(task_id, job.key.trial_index)])
        self._admit(tasks)
        if not is_last:
            await self._skip(job.episode, lost)

    def _give_back(self, job: Job) -> None:
        """What the trial held, but for the slot, which stays with its episode."""
        if self._course_of(job).slot_holder == job.key:
            self._planner.release(job.key, set(self._planner.holds(job.key)) - {SLOT})
        else:
            self._planner.release(job.key)

    async def _skip(self, episode: Episode, lost: Sequence[Unreachable]) -> None:
        """Record what is cut off, all at once: so many records share their way to the disk."""
        if not lost:
            return
        async with anyio.create_task_group() as tasks:
            for item in lost:
                key = TrialKey(item.task_id, episode.trial_index)
                if key not in self._recorded:
                    tasks.start_soon(self._skip_trial, self._jobs.pop(key), item)

    async def _close(self, course: _Course) -> None:
        if course.begun and course.episode.is_chain:
            await self._close_episode(course.episode)

    def _forget(self, episode: Episode) -> None:
        course = self._courses.pop(episode.episode_id)
        if course.slot_holder is not None:
            self._planner.release(course.slot_holder)

    async def _close_what_is_left(self) -> None:
        """The run was ended: what its episodes hold may be a server's, which would keep it for them."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for course in self._courses.values():
                    tasks.start_soon(self._close, course)
        self._courses.clear()


def _capacities(limits: ConcurrencyConfig, slots: int | None) -> dict[str, int]:
    capacities = {GLOBAL: limits.global_trials, GATE: 1}
    if slots is not None:
        capacities[SLOT] = slots
    if limits.configure_apps is not None:
        capacities[CONFIGURE] = limits.configure_apps
    for model, limit in (limits.per_model or {}).items():
        capacities[model_resource(model)] = limit
    return capacities
