"""The service's own guarantees: placement, one call at a time, limits, and what is closed gives back what it held."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral.errors import ConfigError, EnvStartError, NotFound, TrialError, WorkerDied
from corral.service import ServiceLimits, TrialService
from corral.types import Action
from tests.support.benches import Bench, Mode, benches
from tests.support.chains import build_diamond
from tests.support.services import service

pytestmark = pytest.mark.anyio


async def python(made: TrialService, runtime_id: str, code: str) -> Any:
    response = await made.perform(runtime_id, Action.EXECUTE, "python", {"code": code})
    assert response.success, response.error
    return response.result


async def test_where_trials_run(tmp_path: Path) -> None:
    import os

    where = "import os; result = os.getpid()"
    async with service(benches(t="thread", p="process", s="serial"), tmp_path, size=1) as made:
        pids = {}
        for task in "tps":
            trial = await made.create_trial(task)
            pids[task] = await python(made, trial.runtime_id, where)
            assert (trial.worker is not None) == (task == "p")
            if trial.worker:
                assert trial.worker.trial_pid == pids[task]
            await made.close_trial(trial.runtime_id)
    assert pids["t"] == pids["s"] == os.getpid() != pids["p"]


@pytest.mark.parametrize("modes", ["ps", "sp", "pp"])
async def test_those_that_run_alone_wait_for_each_other(modes: str, tmp_path: Path) -> None:
    names: dict[str, Mode] = {"p": "process", "s": "serial"}
    tasks: dict[str, Mode] = {f"{i}": names[letter] for i, letter in enumerate(modes)}
    async with service(benches(**tasks), tmp_path) as made:
        first = await made.create_trial("0")
        with anyio.move_on_after(0.05) as scope:
            await made.create_trial("1")
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            opened = anyio.Event()

            async def second() -> None:
                await made.create_trial("1")
                opened.set()

            group.start_soon(second)
            await made.close_trial(first.runtime_id)
            with anyio.fail_after(10):
                await opened.wait()


async def test_a_gate_is_given_back_by_a_trial_that_could_not_be_opened(tmp_path: Path) -> None:
    class Broken(Bench):
        def __init__(self, task_id: str) -> None:
            super().__init__(task_id, "serial")
            self.handle = __import__("threading").Lock()
            if self.seed:
                raise LookupError("no data")

    async with service(lambda: {"a": Broken("a")}, tmp_path) as made:
        for _ in range(2):
            with pytest.raises(EnvStartError, match="no data") as failure:
                await made.create_trial("a", seed=1)
            assert failure.value.phase == "set-up"
        with anyio.fail_after(10):
            await made.create_trial("a")


@pytest.mark.parametrize("size", [0, 1])
async def test_calls_of_one_trial_run_one_after_the_other(size: int, tmp_path: Path) -> None:
    code = "env.inside = getattr(env, 'inside', 0) + 1; result = env.inside; env.inside -= 1"
    async with service(benches(a="process"), tmp_path, size=size) as made:
        trial = await made.create_trial("a")
        seen: list[int] = []

        async def call() -> None:
            seen.append(await python(made, trial.runtime_id, code))

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(call)
        assert seen == [1] * 10


@pytest.mark.parametrize("size", [0, 1])
async def test_closing_ends_the_call_under_way_and_those_that_wait(size: int, tmp_path: Path) -> None:
    async with service(benches(a="process"), tmp_path, size=size) as made:
        trial = await made.create_trial("a")
        ended: list[str] = []

        async def call(name: str) -> None:
            try:
                await python(made, trial.runtime_id, "import threading; threading.Event().wait(50)")
            except NotFound:
                ended.append(name)

        async with anyio.create_task_group() as group:
            group.start_soon(call, "under way")
            await anyio.wait_all_tasks_blocked()
            group.start_soon(call, "waiting")
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(8):
                await made.close_trial(trial.runtime_id)
        assert sorted(ended) == ["under way", "waiting"]
        with anyio.fail_after(10):
            again = await made.create_trial("a")
            assert await python(made, again.runtime_id, "result = 1") == 1


@pytest.mark.parametrize("size", [0, 1])
async def test_a_call_by_who_is_cancelled_already_harms_nothing(size: int, tmp_path: Path) -> None:
    """It is not made at all, however fast its answer would have been."""
    count = "env.count = getattr(env, 'count', 0) + 1; result = env.count"
    async with service(benches(a="process"), tmp_path, size=size) as made:
        trial = await made.create_trial("a")
        for number in range(1, 5):
            assert await python(made, trial.runtime_id, count) == number
        with anyio.CancelScope() as scope:
            scope.cancel()
            await python(made, trial.runtime_id, count)
        assert scope.cancelled_caught
        assert await python(made, trial.runtime_id, count) == 5


async def test_tasks_of_an_episode_share_one_slot_even_when_opened_at_once(tmp_path: Path) -> None:
    async with service(build_diamond("process"), tmp_path, size=2) as made:
        trials = []

        async def open_one(task: str) -> None:
            trials.append(await made.create_trial(task, episode_id="e", outputs={"top": {"answer": {"value": 1}}}))

        async with anyio.create_task_group() as group:
            for task in ("left", "right", "top"):
                group.start_soon(open_one, task)
        assert made.pool is not None
        assert made.pool.statistics().leased == 1
        assert len({trial.worker.trial_pid for trial in trials if trial.worker}) == 1
        await made.close_episode("e")
        assert made.pool.statistics().leased == 0
        for trial in trials:
            with pytest.raises(NotFound):
                made.find(trial.runtime_id)


async def test_closing_an_episode_turns_back_what_waits_to_be_opened_in_it(tmp_path: Path) -> None:
    async with service(benches(a="process", b="process"), tmp_path, size=1) as made:
        holder = await made.create_trial("a")
        refused: list[str] = []

        async def late() -> None:
            with pytest.raises(NotFound) as refusal:
                await made.create_trial("b", episode_id="e")
            refused.append(str(refusal.value))

        async with anyio.create_task_group() as group:
            group.start_soon(late)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                await made.close_episode("e")
        assert refused == ["no episode 'e' is open here"]
        with pytest.raises(NotFound):
            await made.close_episode("e")
        await made.close_trial(holder.runtime_id)
        assert made.pool is not None
        assert made.pool.statistics().leased == 0
        with anyio.fail_after(10):  # and another one may have the name now
            again = await made.create_trial("b", episode_id="e")
        assert await python(made, again.runtime_id, "result = 1") == 1


async def test_an_episode_takes_no_trial_while_it_is_closed(tmp_path: Path) -> None:
    """One that came in then would have a slot that goes to somebody else in the next moment."""
    async with service(benches(a="process", b="process"), tmp_path, size=1) as made:
        open_ones = [await made.create_trial(task, episode_id="e") for task in "ab"]
        async with anyio.create_task_group() as group:
            group.start_soon(made.close_episode, "e")
            await anyio.lowlevel.checkpoint()
            with pytest.raises(NotFound, match="no episode 'e' is open here"):
                await made.create_trial("a", episode_id="e")
            for trial in open_ones:  # closed by name in the same moment, each is closed once
                with suppress(NotFound):
                    await made.close_trial(trial.runtime_id)
        assert made.pool is not None
        assert made.pool.statistics().leased == 0


async def test_a_trial_that_broke_stays_broken(tmp_path: Path) -> None:
    async with service(benches(a="process"), tmp_path, size=1) as made:
        trial = await made.create_trial("a")
        with pytest.raises(WorkerDied) as death:
            await python(made, trial.runtime_id, "import os; os._exit(7)")
        for action, arguments in ((Action.SUBMIT, (1,)), (Action.PROMPT, ()), (Action.STATUS, ())):
            with pytest.raises(WorkerDied) as again:
                await made.perform(trial.runtime_id, action, *arguments)
            assert again.value is death.value
        assert (death.value.exit_status, death.value.phase) == (7, "tool python")
        closed = await made.close_trial(trial.runtime_id)
        assert closed.warnings == ()
        assert closed.peak_rss > 0


async def test_an_answer_that_is_no_data_can_be_followed_by_one_that_is(tmp_path: Path) -> None:
    async with service(benches(a="thread"), tmp_path) as made:
        trial = await made.create_trial("a")
        with pytest.raises(TrialError, match="the answer to a#0 cannot be accepted"):
            await made.perform(trial.runtime_id, Action.SUBMIT, object())
        assert (await made.perform(trial.runtime_id, Action.SUBMIT, 1)).score == 1


async def test_limits_on_calls_do_not_count_the_wait_for_another_call(tmp_path: Path) -> None:
    """Four calls of 0.3 s under a limit of 0.8 s, asked for at once."""
    async with service(benches(a="process"), tmp_path, size=1, limits=ServiceLimits(tool_timeout=0.8)) as made:
        trial = await made.create_trial("a")
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(python, made, trial.runtime_id, "import time; time.sleep(0.3)")
        assert trial.fault is None


@pytest.mark.parametrize("jobs", [0, -1, True, 1.5])
async def test_background_jobs_are_counted(jobs: Any, tmp_path: Path) -> None:
    async with service(benches(a="thread"), tmp_path) as made:
        with pytest.raises(ConfigError, match="tool_jobs_per_trial must be"):
            await made.create_trial("a", tool_jobs_per_trial=jobs)
