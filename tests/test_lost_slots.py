"""Slots that are given up while trials are under way: fewer are shared out, and nobody waits for what will not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from corral import CorralRunner
from corral.agents import ScriptedAgent
from corral.episode import Episode, Links, Unreachable
from corral.errors import EnvStartError
from corral.pool import WorkerPoolConfig
from corral.pool.lifecycle import WorkerEvent
from corral.pool.slots import Slot, Slots
from corral.scheduler import Job, Scheduler
from corral.types import ConcurrencyConfig, TaskInfo, TaskTrialResult, TrialKey
from tests.support.benches import benches
from tests.support.results import told


class Play:
    """Trials on the slots of a pool, as the service places them. ``holds``: what a task waits for once it is placed."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.placed: dict[str, Slot] = {}
        self.asked: list[str] = []
        self.began: dict[str, anyio.Event] = {}
        self.holds: dict[str, str] = {}
        self.ended: list[str] = []

    def event(self, name: str) -> anyio.Event:
        return self.began.setdefault(name, anyio.Event())

    async def run_trial(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        task, episode = job.key.task_id, job.episode.episode_id
        self.asked.append(task)
        self.event(task).set()
        if job.info.mode == "process" and episode not in self.placed:
            self.placed[episode] = await self.slots.take()
        configured()
        if task in self.holds:
            await self.event(self.holds[task]).wait()
        if job.info.mode == "process" and not job.episode.is_chain:
            self.slots.give_back(self.placed.pop(episode))
        self.ended.append(task)
        return TaskTrialResult(*job.key, score=1.0)

    async def close_episode(self, episode: Episode) -> None:
        if episode.episode_id in self.placed:
            self.slots.give_back(self.placed.pop(episode.episode_id))

    async def skip(self, job: Job, lost: Unreachable) -> None:
        raise AssertionError(f"{job.key} was skipped: {lost}")

    def share_out(self, slots: int) -> None:
        self.slots.shared_out = slots


def give_up(slots: Slots, slot: Slot) -> None:
    """Its workers failed too often in a row."""
    if slot.worker is None and slot.state.value != "absent":
        slot.advance(WorkerEvent.DIED)
    slot.error = EnvStartError("no licence")
    slot.advance(WorkerEvent.GIVE_UP)
    slots.hand_out()


def ready(count: int) -> Slots:
    slots = Slots()
    for _ in range(count):
        slot = slots.add()
        slot.advance(WorkerEvent.START)
        slot.advance(WorkerEvent.LOADED)
    slots.shared_out = count
    return slots


def jobs(*chains: str, modes: str = "", models: str = "") -> list[Job]:
    """A chain of tasks for each text, one behind the other. ``modes``: which are threads; ``models``: who has one."""
    made: list[Job] = []
    for chain in chains:
        parents = {task: tuple(chain[number - 1 : number]) for number, task in enumerate(chain)}
        episode = Episode(chain, 0, Links(parents))
        for task in chain:
            info = TaskInfo(task, "thread" if task in modes else "process", parents[task])
            made.append(Job(TrialKey(task, 0), info, episode, len(made), "m" if task in models else None))
    return made


async def run(play: Play, todo: list[Job], limits: ConcurrencyConfig) -> None:
    scheduler = Scheduler(
        limits, slots=len(play.slots.all), run_trial=play.run_trial, record=told, skip_trial=play.skip,
        close_episode=play.close_episode, share_out=play.share_out,
    )  # fmt: skip
    with anyio.fail_after(10):
        await scheduler.run(todo, {})
    assert not any(slot.leased for slot in play.slots.all)


@pytest.mark.anyio
async def test_trials_that_wait_for_a_lost_slot_do_not_hold_what_its_neighbour_needs() -> None:
    """Two trials at once; the chain ``ab`` has the only slot that is left. ``q`` and ``s`` come before ``b``, and each
    takes one of the two: for slots that will never be ready. ``b`` needs one of the two to end, and with it the slot.
    """
    play = Play(ready(3))
    for lost in play.slots.all[1:]:
        give_up(play.slots, lost)
    play.holds = {"p": "a", "a": "q"}  # a has the slot before q comes; b comes after it
    todo = jobs("pq", "rs", "ab", modes="pr", models="pr")
    await run(play, todo, ConcurrencyConfig(global_trials=2, per_model={"m": 1}))
    assert sorted(play.ended) == list("abpqrs")
    assert play.asked.count("q") == 2, "it was sent away once, and then had its turn"


@pytest.mark.anyio
async def test_a_slot_that_is_lost_later_sends_away_who_waits_for_it() -> None:
    """The three wait for workers that are being replaced; two of these come never again."""
    play = Play(ready(3))
    for slot in play.slots.all:
        slot.advance(WorkerEvent.DIED)

    async def lose() -> None:
        while len(play.asked) < 3:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        for slot in play.slots.all[1:]:
            give_up(play.slots, slot)
        play.slots.all[0].advance(WorkerEvent.START)
        play.slots.all[0].advance(WorkerEvent.LOADED)
        play.slots.hand_out()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        await run(play, jobs("ab", "cd", "e", "f"), ConcurrencyConfig(global_trials=3))
    order = "".join(play.ended)
    assert sorted(order) == list("abcdef")
    assert "ab" in order, "a chain keeps the one slot that is left until it has ended"
    assert "cd" in order


@pytest.mark.anyio
async def test_who_shares_nothing_out_may_wait_for_a_slot_as_long_as_one_is_left() -> None:
    slots = ready(2)
    slots.shared_out = None
    slot = await slots.take()
    give_up(slots, slots.all[1])
    with anyio.move_on_after(0.01) as waited:
        await slots.take()
    assert waited.cancelled_caught
    slots.give_back(slot)
    assert await slots.take() is slot


def test_a_run_goes_on_with_the_slots_that_are_left(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real workers: the first one loads, all further ones do not. Nobody is charged."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "loaded"

    def build() -> Any:
        if mark.exists():
            raise ConnectionError("one licence only")
        mark.touch()
        return benches(a="process", b="process", c="process")()

    result = CorralRunner(build, agent_factory=lambda _: ScriptedAgent(lambda lab, prompt: 1)).bench(
        trials_per_task=4,
        max_concurrency=3,
        max_concurrency_per_task=3,
        worker_pool=WorkerPoolConfig(size=3),
        retries=0,
    )
    assert result.coverage.graded == result.coverage.planned == 12
    assert {len(trial.attempts) for trial in result.trials} == {1}
    assert {trial.worker.slot for trial in result.trials if trial.worker} == {0}
