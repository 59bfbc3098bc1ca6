"""The driver of the planner, with trials that are nothing but events."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import pytest

from corral.episode import Episode, Links, Unreachable
from corral.planner import CONFIGURE, GATE, GLOBAL, SLOT, Planner, model_resource, task_resource
from corral.scheduler import Job, Scheduler
from corral.types import ConcurrencyConfig, TaskInfo, TaskTrialResult, TrialKey
from tests.support.results import told

pytestmark = pytest.mark.anyio


class Stage:
    """Plays trials: each yields to the others a few times, and says what runs beside it."""

    def __init__(self, *, failing: tuple[str, ...] = ()) -> None:
        self.failing = failing
        self.running: list[str] = []
        self.crowds: list[tuple[str, ...]] = []
        self.log: list[str] = []
        self.closed: list[str] = []
        self.skipped: dict[str, str] = {}
        self.configuring = self.most_configuring = 0

    async def run_trial(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        name = str(job.key)
        self.log.append(name)
        self.running.append(name)
        self.configuring += job.info.configures
        self.most_configuring = max(self.most_configuring, self.configuring)
        for _ in range(3):
            self.crowds.append(tuple(sorted(self.running)))
            await anyio.lowlevel.checkpoint()
        self.configuring -= job.info.configures
        configured()
        for _ in range(10):
            self.crowds.append(tuple(sorted(self.running)))
            await anyio.lowlevel.checkpoint()
        self.running.remove(name)
        return TaskTrialResult(*job.key, score=float(job.key.task_id not in self.failing))

    async def skip(self, job: Job, lost: Unreachable) -> None:
        self.skipped[str(job.key)] = lost.broken_by

    async def close_episode(self, episode: Episode) -> None:
        assert not {f"{task}#{episode.trial_index}" for task in episode.tasks} & set(self.running)
        self.closed.append(episode.episode_id)

    @property
    def most(self) -> int:
        return max(map(len, self.crowds))


def jobs(tasks: Mapping[str, TaskInfo], *groups: str, rounds: int = 1, model: str | None = None) -> list[Job]:
    """``groups``: the tasks that are linked, one text each."""
    made: list[Job] = []
    for index in range(rounds):
        for group in groups or tuple(tasks):
            episode = Episode(f"{group}#{index}", index, Links({task: tasks[task].parents for task in group}))
            made += [Job(TrialKey(task, index), tasks[task], episode, len(made), model) for task in group]
    return made


async def play(
    stage: Stage,
    todo: list[Job],
    limits: ConcurrencyConfig,
    *,
    slots: int | None = None,
    recorded: Mapping[TrialKey, bool] | None = None,
) -> Scheduler:
    scheduler = Scheduler(
        limits,
        slots=slots,
        run_trial=stage.run_trial,
        record=told,
        skip_trial=stage.skip,
        close_episode=stage.close_episode,
    )
    with anyio.fail_after(10):
        await scheduler.run(todo, recorded or {})
    return scheduler


def infos(modes: str = "", **parents: str) -> dict[str, TaskInfo]:
    names: Any = {"t": "thread", "p": "process", "s": "serial"}
    if modes:
        return {f"{i}": TaskInfo(f"{i}", names[mode]) for i, mode in enumerate(modes)}
    return {task: TaskInfo(task, "process", tuple(needed)) for task, needed in parents.items()}


@pytest.mark.parametrize(
    ("modes", "slots", "most"),
    [("tttttt", None, 4), ("pppp", None, 1), ("ssss", None, 1), ("ssss", 3, 1), ("pppppp", 2, 2), ("ppptt", None, 3)],
)
async def test_what_runs_at_once(modes: str, slots: int | None, most: int) -> None:
    stage = Stage()
    await play(stage, jobs(infos(modes), rounds=3), ConcurrencyConfig(4), slots=slots)
    assert stage.most == most
    assert len(stage.log) == len(modes) * 3


async def test_beside_a_serial_trial_nothing_runs() -> None:
    stage = Stage()
    await play(stage, jobs(infos("tpst"), rounds=3), ConcurrencyConfig(8, per_task=3), slots=2)
    assert {crowd for crowd in stage.crowds if any("2#" in name for name in crowd)} == {("2#0",), ("2#1",), ("2#2",)}
    assert stage.most > 2


async def test_limits_per_task_model_and_of_configuring() -> None:
    stage = Stage()
    await play(stage, jobs(infos("t"), rounds=9), ConcurrencyConfig(8, per_task=3))
    assert stage.most == 3
    stage = Stage()
    await play(stage, jobs(infos("tttttt"), model="m"), ConcurrencyConfig(8, per_model={"m": 2, "n": 1}))
    assert stage.most == 2
    stage = Stage()
    tasks = {f"{i}": TaskInfo(f"{i}", configures=True) for i in range(8)}
    await play(stage, jobs(tasks), ConcurrencyConfig(8, configure_apps=3))
    assert (stage.most_configuring, stage.most) == (3, 8)


async def test_in_the_order_of_the_plan() -> None:
    stage = Stage()
    await play(stage, jobs(infos("tt"), rounds=2), ConcurrencyConfig(1))
    assert stage.log == ["0#0", "1#0", "0#1", "1#1"]


@pytest.mark.parametrize("slots", [None, 1, 2])
async def test_chains_in_order_and_closed_once(slots: int | None) -> None:
    stage = Stage()
    tasks = infos(t="", l="t", r="t", e="lr")
    await play(stage, jobs(tasks, "tlre", rounds=3), ConcurrencyConfig(8, per_task=8), slots=slots)
    assert sorted(stage.closed) == ["tlre#0", "tlre#1", "tlre#2"]
    for index in range(3):
        order = [entry[0] for entry in stage.log if entry.endswith(str(index))]
        assert (order[0], sorted(order[1:3]), order[3]) == ("t", ["l", "r"], "e")


async def test_an_episode_on_a_pool_uses_one_slot() -> None:
    stage = Stage()
    tasks = infos(t="", l="t", r="t")
    await play(stage, jobs(tasks, "tlr", rounds=4), ConcurrencyConfig(8, per_task=8), slots=2)
    assert stage.most == 2
    assert all(len({name[-1] for name in crowd}) == len(crowd) for crowd in stage.crowds)


async def test_a_broken_parent() -> None:
    stage = Stage(failing=("l",))
    tasks = infos(t="", l="t", r="t", e="lr", f="e")
    await play(stage, jobs(tasks, "tlref"), ConcurrencyConfig(8), slots=1)
    assert sorted(stage.log) == ["l#0", "r#0", "t#0"]
    assert stage.skipped == {"e#0": "l", "f#0": "e"}
    assert stage.closed == ["tlref#0"]


@pytest.mark.parametrize(
    ("recorded", "ran", "skipped"),
    [
        ({"t": True}, ["l", "r", "e"], {}),
        ({"t": True, "l": True}, ["r", "e"], {}),
        ({"t": True, "l": False}, ["r"], {"e#0": "l"}),
        ({"t": True, "l": False, "e": False}, ["r"], {}),
        ({"t": False}, [], {"l#0": "t", "r#0": "t", "e#0": "l"}),
        (dict.fromkeys("tlre", True), [], {}),
    ],
)
async def test_what_is_recorded_is_not_run(recorded: dict[str, bool], ran: list[str], skipped: dict[str, str]) -> None:
    stage = Stage()
    tasks = infos(t="", l="t", r="t", e="lr")
    known = {TrialKey(task, 0): success for task, success in recorded.items()}
    await play(stage, jobs(tasks, "tlre"), ConcurrencyConfig(1), slots=1, recorded=known)
    assert [entry[0] for entry in stage.log] == ran
    assert stage.skipped == skipped
    assert stage.closed == (["tlre#0"] if ran else [])


async def test_what_a_trial_raises_ends_the_run() -> None:
    class Broken(Stage):
        async def run_trial(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
            raise LookupError("a fault of the engine")

    with pytest.raises(BaseExceptionGroup) as group:
        await play(Broken(), jobs(infos("t")), ConcurrencyConfig(1))
    assert group.group_contains(LookupError)


async def test_when_all_is_over_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    planners: list[Planner] = []

    def planner(capacities: Mapping[str, int]) -> Planner:
        planners.append(Planner(capacities))
        return planners[-1]

    monkeypatch.setattr("corral.scheduler.Planner", planner)
    stage = Stage(failing=("l",))
    tasks = {**infos(t="", l="t", r="t", e="lr"), "s": TaskInfo("s", "serial"), "c": TaskInfo("c", configures=True)}
    limits = ConcurrencyConfig(2, configure_apps=1, per_model={"m": 1})
    scheduler = await play(stage, jobs(tasks, "tlre", "s", "c", rounds=3, model="m"), limits, slots=2)
    (used,) = planners
    names = (GLOBAL, SLOT, GATE, CONFIGURE, model_resource("m"), *map(task_resource, tasks))
    assert [used.in_use(name) for name in names] == [0] * len(names)
    assert (used.running, used.waiting, scheduler.waiting) == (0, 0, 0)


THREADS = {name: TaskInfo(name) for name in "abc"}


@pytest.mark.parametrize(
    ("tasks", "limits", "slots", "expected"),
    [
        (THREADS, ConcurrencyConfig(2, 2), None, {"max_concurrency (2)": 1}),
        ({"a": TaskInfo("a")}, ConcurrencyConfig(3, 1), None, {"max_concurrency_per_task (1)": 2}),
        (THREADS, ConcurrencyConfig(3, per_model={"m": 2}), None, {"per_model[m] (2)": 1}),
        ({name: TaskInfo(name, configures=True) for name in "abc"}, ConcurrencyConfig(3, configure_apps=1), None,
         {"configure_apps (1)": 2}),
        ({name: TaskInfo(name, "process") for name in "abc"}, ConcurrencyConfig(3), 2, {"a slot of the pool": 1}),
        ({name: TaskInfo(name, "process") for name in "abc"}, ConcurrencyConfig(3), None,
         {"the gate of serial trials": 2}),
    ],
)  # fmt: skip
async def test_what_is_waited_for_is_named_with_its_limit(
    tasks: Mapping[str, TaskInfo], limits: ConcurrencyConfig, slots: int | None, expected: dict[str, int]
) -> None:
    """Looked at when the first of three trials has begun."""
    waits: list[dict[str, int]] = []

    async def run_trial(job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        waits.append(scheduler.waits())
        return await stage.run_trial(job, configured)

    stage = Stage()
    scheduler = Scheduler(
        limits, slots=slots, run_trial=run_trial, record=told, skip_trial=stage.skip,
        close_episode=stage.close_episode,
    )  # fmt: skip
    await scheduler.run(jobs(tasks, rounds=3 // len(tasks), model="m"), {})
    assert waits[0] == expected
    assert scheduler.waits() == {}


@pytest.mark.parametrize("at_once", [1, 2])
async def test_the_next_trial_runs_while_a_record_is_on_its_way(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.scheduler.LAG", math.inf)
    stage = Stage()
    written = anyio.Event()
    handed_over: list[str] = []
    hurries: list[bool] = []

    async def record(job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
        handed_over.append(str(job.key))
        hurries.append(hurry)
        await written.wait()
        return result

    scheduler = Scheduler(
        ConcurrencyConfig(at_once), slots=1, run_trial=stage.run_trial, record=record, skip_trial=stage.skip,
        close_episode=stage.close_episode,
    )  # fmt: skip
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run, jobs(infos("ppp")), {})
            while len(handed_over) < (3 if at_once > 1 else 1):
                await anyio.lowlevel.checkpoint()
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            # One trial at a time goes step by step: the next one may use the same agent.
            assert len(stage.log) == (3 if at_once > 1 else 1)
            written.set()
    assert handed_over == stage.log == ["0#0", "1#0", "2#0"]
    assert hurries == [at_once == 1, True, True]
    assert stage.most == 1


async def test_no_trial_begins_while_records_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still: what runs ends, and waits for it."""
    monkeypatch.setattr("corral.scheduler.LAG", -1.0)  # whatever is on its way has been so for too long
    stage = Stage()
    written = anyio.Event()

    async def record(job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
        await written.wait()
        return result

    scheduler = Scheduler(
        ConcurrencyConfig(2), slots=None, run_trial=stage.run_trial, record=record, skip_trial=stage.skip,
        close_episode=stage.close_episode,
    )  # fmt: skip
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run, jobs(infos("ttttttttt")), {})
            await anyio.wait_all_tasks_blocked()
            begun = len(stage.log)
            assert begun <= 4  # two that run, and for the first one that ends another one
            written.set()
    assert len(stage.log) == 9


async def test_a_dependent_waits_for_its_parents_record() -> None:
    stage = Stage()
    recorded: list[str] = []

    async def record(job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            assert "b#0" not in stage.log or recorded
        recorded.append(str(job.key))
        return result

    scheduler = Scheduler(
        ConcurrencyConfig(4), slots=2, run_trial=stage.run_trial, record=record, skip_trial=stage.skip,
        close_episode=stage.close_episode,
    )  # fmt: skip
    with anyio.fail_after(10):
        await scheduler.run(jobs(infos(a="", b="a"), "ab"), {})
    assert recorded == stage.log == ["a#0", "b#0"]
