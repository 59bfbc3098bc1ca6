"""The front's own guarantees: whatever becomes of a client while an episode's trial is opened, no slot is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from corral import Environment
from corral.bodies import NewTrial
from corral.errors import NotFound
from corral.front import Front
from corral.service import TrialService
from corral.types import Action
from tests.support.benches import Bench, benches
from tests.support.services import service

pytestmark = pytest.mark.anyio

ALONE = NewTrial.model_validate({})
EPISODE = NewTrial.model_validate({"episode_id": "e", "benchmark_run_id": "r"})
TASKS = benches(a="process", b="process")


class Apart(Bench):
    """CHILD SIDE: its process is a new interpreter, which builds the environments."""

    fresh = "spawn"


@dataclass
class Held:
    """CHILD SIDE: a builder that waits, while there is a file "hold", and says so."""

    folder: Path

    def __call__(self) -> dict[str, Environment]:
        while (self.folder / "hold").exists():
            (self.folder / "held").touch()
            time.sleep(0.01)
        return {"a": Bench("a", "process"), "b": Apart("b", "process")}


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not condition():
            await anyio.sleep(0.01)


async def assert_slot_is_free(made: TrialService, front: Front) -> None:
    """Nobody has the only slot, and it serves one trial."""
    assert made.pool is not None
    assert (made.pool.statistics().leased, front.open_trials, front.waiting) == (0, 0, 0)
    with anyio.fail_after(20):
        trial = await front.open("a", ALONE)
        response = await front.ask(trial.runtime_id, Action.EXECUTE, "python", {"code": "result = 1"})
    assert response.result == 1
    await front.close(trial.runtime_id)


async def refused(front: Front, seen: list[str]) -> None:
    with pytest.raises(NotFound) as refusal:
        await front.open("b", EPISODE)
    seen.append(str(refusal.value))


async def test_an_episode_that_is_closed_while_its_first_trial_waits_for_a_slot(tmp_path: Path) -> None:
    async with service(TASKS, tmp_path, size=1) as made:
        front, seen = Front(made, idle_timeout=60), list[str]()
        holder = await front.open("a", ALONE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused, front, seen)
            await until(lambda: front.waiting == 1)
            await front.close_episode("e")
            assert front.waiting == 0
        assert seen == ["no episode 'e' is open here"]
        with pytest.raises(NotFound):
            await front.close_episode("e")
        await front.close(holder.runtime_id)
        await assert_slot_is_free(made, front)


@pytest.mark.parametrize("by", ["its client", "its client's absence"])
async def test_an_episode_that_ends_while_the_process_of_its_first_trial_is_made(by: str, tmp_path: Path) -> None:
    """Its slot goes to whoever waits, and is his alone."""
    async with service(Held(tmp_path), tmp_path, size=1) as made:
        front, seen, opened = Front(made, idle_timeout=60), list[str](), list[str]()
        hold, held = tmp_path / "hold", tmp_path / "held"
        hold.touch()

        async def next_one() -> None:
            opened.append((await front.open("a", ALONE)).runtime_id)

        async with anyio.create_task_group() as tasks:
            if by == "its client":
                tasks.start_soon(refused, front, seen)
            else:
                client = anyio.CancelScope()
                tasks.start_soon(cancelled_opening, front, client)
            await until(lambda: held.exists() and bool(made.opening))
            tasks.start_soon(next_one)
            await until(lambda: front.waiting == 1)
            assert opened == []
            if by == "its client":
                await front.close_episode("e")
            else:
                client.cancel()
            await until(lambda: bool(opened))
            hold.unlink()
        assert seen == (["no episode 'e' is open here"] if by == "its client" else [])
        assert made.pool is not None
        assert (len(opened), front.open_trials, made.pool.statistics().leased) == (1, 1, 1)
        with pytest.raises(NotFound):
            await front.close_episode("e")
        await front.close(opened[0])
        await assert_slot_is_free(made, front)


async def cancelled_opening(front: Front, client: anyio.CancelScope) -> None:
    with client:
        await front.open("b", EPISODE)
        pytest.fail("its client has gone")


async def test_a_trial_that_no_client_came_for_takes_its_episode_along(tmp_path: Path) -> None:
    async with service(TASKS, tmp_path, size=1) as made:
        front = Front(made, idle_timeout=60)
        lost = await front.open("a", EPISODE)
        await front.forsake(lost.runtime_id)
        with pytest.raises(NotFound):
            await front.close_episode("e")
        await assert_slot_is_free(made, front)


async def test_and_leaves_one_in_which_something_was_done(tmp_path: Path) -> None:
    """Its client may have lost one answer only; what its other trials gave is kept for it."""
    async with service(TASKS, tmp_path, size=1) as made:
        front = Front(made, idle_timeout=60)
        done = await front.open("a", EPISODE)
        await front.close(done.runtime_id)
        lost = await front.open("b", EPISODE)
        await front.forsake(lost.runtime_id)
        assert made.pool is not None
        assert made.pool.statistics().leased == 1
        await front.close_episode("e")
        await assert_slot_is_free(made, front)


async def test_an_idle_episode_without_trials_is_closed_and_one_that_is_opened_is_not(tmp_path: Path) -> None:
    async with service(TASKS, tmp_path, size=1) as made, anyio.create_task_group() as tasks:
        front = Front(made, idle_timeout=0)
        holder = await front.open("a", ALONE)
        tasks.start_soon(front.open, "b", EPISODE)
        await until(lambda: front.waiting == 1)
        await front.look_around(tasks)  # closes the holder, whose slot the episode gets
        await until(lambda: front.open_trials == 1 and front.waiting == 0)
        with pytest.raises(NotFound):
            front.find(holder.runtime_id)
        for _ in range(2):  # the trial first, and then the episode
            await front.look_around(tasks)
            await until(lambda: front.open_trials == 0)
        assert made.pool is not None
        pool = made.pool
        await until(lambda: pool.statistics().leased == 0)
