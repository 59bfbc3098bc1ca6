"""Chains of tasks: order, overlap, where they run, limits; the scheduler against an oracle, and real runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral import BenchmarkResult, CorralRunner, InputRef, TaskDefinition, build_environments
from corral.agents import ScriptedAgent
from corral.episode import Episode, Unreachable
from corral.errors import ConfigError, TaskGraphError
from corral.plan import make_plan
from corral.planner import Planner
from corral.report import stable_bytes
from corral.scheduler import Job, Scheduler
from corral.types import ConcurrencyConfig, TaskInfo, TaskTrialResult, TrialKey
from tests.support.benches import Mode, bench, by_task
from tests.support.graphs import CHAIN, DIAMOND, FAN, TWO_CHAINS, Graph, builder, executions, invite, solve
from tests.support.meeting import Meeting
from tests.support.results import told

MODES: tuple[Mode, ...] = ("thread", "process", "serial")


# ---- the scheduler against an oracle ----


SETTLING = 40
"""Turns of the event loop after which nothing moves that nobody moves: a step of the scheduler takes some six."""


@dataclass
class World:
    """Trials that run until the test ends them, and an oracle that knows what may run beside what."""

    limits: ConcurrencyConfig
    slots: int | None
    bad: set[TrialKey]
    dice: random.Random
    running: dict[TrialKey, Job] = field(default_factory=dict)
    doors: dict[TrialKey, anyio.Event] = field(default_factory=dict)
    ended: dict[TrialKey, str] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    most: int = 0

    async def run_trial(self, job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        assert self.may_start(job), f"{job.key} was started beside {list(self.running)}"
        assert job.key not in self.ended
        if self.is_pinned(job):
            self.pinned.add(job.episode.episode_id)
        self.running[job.key] = job
        self.most = max(self.most, len(self.running))
        self.doors[job.key] = anyio.Event()
        await self.doors[job.key].wait()
        del self.running[job.key]
        self.ended[job.key] = "bad" if job.key in self.bad else "good"
        return TaskTrialResult(*job.key, score=float(job.key not in self.bad))

    async def skip(self, job: Job, lost: Unreachable) -> None:
        assert job.key not in self.ended
        self.ended[job.key] = f"cut off by {lost.broken_by}"

    async def close_episode(self, episode: Episode) -> None:
        assert all(TrialKey(task, episode.trial_index) in self.ended for task in episode.tasks)
        self.pinned.discard(episode.episode_id)
        self.closed.append(episode.episode_id)

    def is_pinned(self, job: Job) -> bool:
        return self.slots is not None and job.info.mode == "process" and job.episode.is_chain

    def may_start(self, job: Job) -> bool:
        """Whether the graph and every limit allow it, by looking at all that runs."""
        beside = list(self.running.values())
        on_slot = [other for other in beside if self.slots is not None and other.info.mode == "process"]
        gated = [other for other in beside if other.info.mode == "serial" or (not self.slots and self._process(other))]
        if any(self.ended.get(TrialKey(p, job.key.trial_index)) != "good" for p in job.info.parents):
            return False
        if len(beside) >= self.limits.global_trials or any(other.info.mode == "serial" for other in beside):
            return False
        if sum(other.key.task_id == job.key.task_id for other in beside) >= self.limits.per_task:
            return False
        most = (self.limits.per_model or {}).get(str(job.model), 10**9)
        if sum(other.model == job.model for other in beside) >= most:
            return False
        if job.info.mode == "serial":
            return not beside
        if not self._process(job):
            return True
        if self.slots is None:
            return not gated
        if job.episode.is_chain and any(other.episode is job.episode for other in on_slot):
            return False
        alone = sum(not other.episode.is_chain for other in on_slot)
        return job.episode.episode_id in self.pinned or len(self.pinned) + alone < self.slots

    @staticmethod
    def _process(job: Job) -> bool:
        return job.info.mode == "process"

    async def play(self, jobs: list[Job]) -> None:
        """End one trial after another, in a random order. Whenever nothing moves, nothing more may be able to start."""
        scheduler = Scheduler(
            self.limits, slots=self.slots, run_trial=self.run_trial, record=told, skip_trial=self.skip,
            close_episode=self.close_episode,
        )  # fmt: skip
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run, jobs, {})
            while len(self.ended) < len(jobs):
                for _ in range(SETTLING):
                    await anyio.lowlevel.checkpoint()
                idle = [job for job in jobs if job.key not in self.ended and job.key not in self.running]
                startable = [str(job.key) for job in idle if self.may_start(job)]
                assert startable == [], f"{startable} could run beside {list(self.running)}"
                if len(self.ended) < len(jobs):
                    assert self.running, f"deadlock: {[str(job.key) for job in idle]} of {self.ended}"
                    self.doors[self.dice.choice(list(self.running))].set()


def random_jobs(dice: random.Random, models: list[str | None]) -> list[Job]:
    names = [f"t{i}" for i in range(dice.randint(1, 9))]
    share = dice.choice([0.0, 0.3, 0.7])
    tasks = {}
    for i, name in enumerate(names):
        parents = tuple(dice.sample(names[:i], dice.randint(0, min(i, 3)))) if dice.random() < share else ()
        tasks[name] = TaskInfo(name, dice.choice([*MODES, "process", "process"]), parents)
    jobs: list[Job] = []
    for episode in make_plan(tasks, None, dice.randint(1, 4)).episodes():
        for task_id in episode.tasks:
            key = TrialKey(task_id, episode.trial_index)
            jobs.append(Job(key, tasks[task_id], episode, len(jobs), dice.choice(models)))
    return jobs


@pytest.mark.anyio
@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 100, 25)], ids=str)
async def test_on_any_graph_and_under_any_limits_all_that_can_run_runs_and_nothing_else(seeds: range) -> None:
    """So no limit is passed, the overlap is always the largest that graph and limits allow, and nothing deadlocks."""
    for seed in seeds:
        dice = random.Random(seed)
        per_model = dice.choice([None, {"m": 1}, {"m": 1, "n": 2}])
        limits = ConcurrencyConfig(dice.choice([1, 2, 3, 8]), dice.choice([1, 1, 2, 8]), per_model=per_model)
        jobs = random_jobs(dice, ["m", "n", None] if per_model else [None])
        bad = {job.key for job in jobs if dice.random() < dice.choice([0.0, 0.3])}
        world = World(limits, dice.choice([None, 1, 1, 2, 4]), bad, dice)
        with anyio.fail_after(20):
            await world.play(jobs)
        assert world.ended.keys() == {job.key for job in jobs}
        assert world.pinned == set()
        begun = {job.episode.episode_id for job in jobs if job.episode.is_chain}
        assert sorted(world.closed) == sorted(begun)


@pytest.mark.anyio
async def test_one_that_waits_for_a_limit_does_not_keep_its_episode_s_slot_idle() -> None:
    """Of each round, ``l`` and ``r`` share a slot. While ``l`` of one round runs, the other round runs its ``r``."""
    tasks = {"l": TaskInfo("l", "process"), "r": TaskInfo("r", "process"), "e": TaskInfo("e", "thread", ("l", "r"))}
    jobs: list[Job] = []
    for episode in make_plan(tasks, None, 2).episodes():
        for task_id in episode.tasks:
            key = TrialKey(task_id, episode.trial_index)
            jobs.append(Job(key, tasks[task_id], episode, len(jobs)))
    world = World(ConcurrencyConfig(8, per_task=1), 2, set(), random.Random(0))
    await world.play(jobs)
    assert world.most == 2


@pytest.mark.anyio
async def test_two_that_end_at_once_end_their_episode_once() -> None:
    """While what ``a`` cuts off is being recorded, ``c`` ends, and with it the episode."""
    tasks = {"t": TaskInfo("t"), "a": TaskInfo("a", parents=("t",)), "b": TaskInfo("b", parents=("a",)),
             "c": TaskInfo("c", parents=("t",))}  # fmt: skip
    recording, c_may_end = anyio.Event(), anyio.Event()
    closed: list[str] = []

    async def run_trial(job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        if job.key.task_id == "c":
            await recording.wait()
        return TaskTrialResult(*job.key, score=float(job.key.task_id != "a"))

    async def skip(job: Job, lost: Unreachable) -> None:
        recording.set()
        await c_may_end.wait()

    async def close_episode(episode: Episode) -> None:
        closed.append(episode.episode_id)
        c_may_end.set()

    (episode,) = make_plan(tasks, None, 1).episodes()
    jobs = [Job(TrialKey(task, 0), tasks[task], episode, order) for order, task in enumerate(episode.tasks)]
    scheduler = Scheduler(
        ConcurrencyConfig(4), slots=None, run_trial=run_trial, record=told, skip_trial=skip, close_episode=close_episode
    )
    with anyio.fail_after(10):
        await scheduler.run(jobs, {})
    assert closed == ["t#0"]


@pytest.mark.anyio
@pytest.mark.parametrize("shape", ["chain", "fan", "rounds"])
@pytest.mark.parametrize("mode", ["thread", "process"])
async def test_the_scheduler_is_linear(shape: str, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner looks at as many requests for each of 5,000 trials as for each of 500."""
    looks: dict[int, int] = {}
    planners: list[Planner] = []

    def planner(capacities: Mapping[str, int]) -> Planner:
        planners.append(Planner(capacities))
        return planners[-1]

    async def at_once(job: Job, configured: Callable[[], None]) -> TaskTrialResult:
        return TaskTrialResult(*job.key, score=1.0)

    async def nothing(*_: Any) -> None:
        return

    monkeypatch.setattr("corral.scheduler.Planner", planner)
    for size in (500, 5000):
        width, rounds = (2, size // 2) if shape == "rounds" else (size, 1)
        parents = [() if i == 0 else (f"{i - 1 if shape == 'chain' else 0}",) for i in range(width)]
        tasks = {f"{i}": TaskInfo(f"{i}", mode, parents[i]) for i in range(width)}
        places = [(episode, task) for episode in make_plan(tasks, None, rounds).episodes() for task in tasks]
        jobs = [
            Job(TrialKey(task, episode.trial_index), tasks[task], episode, order)
            for order, (episode, task) in enumerate(places)
        ]
        scheduler = Scheduler(
            ConcurrencyConfig(4), slots=2, run_trial=at_once, record=told, skip_trial=nothing, close_episode=nothing
        )
        await scheduler.run(jobs, {})
        looks[size] = planners[-1].evaluations
    assert looks[5000] / 5000 == pytest.approx(looks[500] / 500, rel=0.05)


# ---- graphs that are none ----


def task(name: str, *parents: str) -> TaskDefinition:
    inputs = {parent: InputRef(parent) for parent in parents}
    return TaskDefinition(name, name, [], lambda answer: 1.0, "anything", input_map=inputs)


@pytest.mark.parametrize(
    ("tasks", "says"),
    [
        ([task("a", "c"), task("b", "a"), task("c", "b")], "a -> b -> c -> a"),
        ([task("a", "a")], "a -> a"),
        ([task("a"), task("a")], "two tasks have the id 'a'"),
        ([task("a"), task("b", "nobody")], "'b' needs 'nobody'"),
    ],
    ids=["cycle", "itself", "one id twice", "unknown parent"],
)
def test_what_is_no_graph_is_refused_before_anything_starts(
    tasks: list[TaskDefinition], says: str, tmp_path: Path
) -> None:
    ran: list[str] = []
    with pytest.raises(TaskGraphError, match=says) as error:
        bench(lambda: build_environments(tasks), lambda lab, prompt: ran.append(prompt), tmp_path)
    assert isinstance(error.value, ConfigError)
    assert ran == []
    assert not (tmp_path / "sessions").exists()


def test_a_selection_must_hold_what_it_needs_and_its_order_is_the_graph_s(tmp_path: Path) -> None:
    envs = builder(CHAIN, "thread", tmp_path)
    with pytest.raises(ConfigError, match=r"leaves out .*: 'c' needs 'b'$"):
        bench(envs, solve, tmp_path, task_ids=["c"])
    with pytest.raises(ConfigError, match=r"unknown task ids: 'z'"):
        bench(envs, solve, tmp_path, task_ids=["a", "z"])
    assert not executions(tmp_path)
    result = bench(envs, solve, tmp_path, task_ids=["c", "b", "a"])
    assert list(result.task_results) == ["a", "b", "c"]
    assert (tmp_path / "executions").read_text().split() == ["a#0", "b#0", "c#0"]
    assert result.average_score() == 1


@pytest.mark.slow
def test_five_thousand_tasks(tmp_path: Path) -> None:
    """Half of them a chain, half a fan, of the same root."""
    graph: Graph = {
        "root": (), **{f"c{i}": (f"c{i - 1}" if i else "root",) for i in range(2500)},
        **{f"f{i}": ("root",) for i in range(2500)},
    }  # fmt: skip

    def one(lab: Any, prompt: str) -> Any:
        return {"value": 1}

    result = bench(builder(graph, "thread", tmp_path), one, tmp_path, max_concurrency=8)
    assert result.average_score() == 1
    assert result.coverage.complete


# ---- real runs: reports, overlap, pids ----

ALL: Graph = {**DIAMOND, **FAN, **TWO_CHAINS}
MIXED: dict[str, Mode] = {name: MODES[i % 2] for i, name in enumerate(ALL)} | {"leaf3": "serial", "x": "serial"}
POOLS = (False, 1, 2, 4)
ROUNDS = 3


def run(
    graph: Graph, modes: Mapping[str, Mode] | Mode, folder: Path, *, at_once: int, pool: Any, **more: Any
) -> BenchmarkResult:
    options = {"max_concurrency": at_once, "max_concurrency_per_task": at_once, "worker_pool": pool, "seed": 5}
    result = bench(
        builder(graph, modes, folder),
        solve,
        folder,
        **{"trials_per_task": ROUNDS, "session_id": "s", **options, **more},
    )
    assert [trial.error_message for trial in result.trials if trial.error_message] == []
    return result


@pytest.fixture(scope="session")
def serial_reports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    made: dict[str, bytes] = {}

    def report(kind: str) -> bytes:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = stable_bytes(run(ALL, modes_of(kind), folder, at_once=1, pool=False))
        return made[kind]

    return report


def modes_of(kind: str) -> dict[str, Mode]:
    kinds: dict[str, Mode] = {"thread": "thread", "process": "process"}
    return MIXED if kind == "mixed" else dict.fromkeys(ALL, kinds[kind])


FEW = [("mixed", 1, 1), ("mixed", 2, 2), ("mixed", 8, False), ("process", 8, 4), ("thread", 8, False)]
EVERY = [
    *((kind, n, pool) for kind in ("process", "mixed") for n in (1, 2, 8) for pool in POOLS),
    *(("thread", n, False) for n in (1, 2, 8)),
]


@pytest.mark.parametrize(
    ("kind", "at_once", "pool"),
    [*FEW, *(pytest.param(*each, marks=pytest.mark.slow) for each in EVERY if each not in FEW)],
)
def test_reports_are_equal_and_episodes_stay_where_they_are(
    kind: str, at_once: int, pool: Any, serial_reports: Callable[[str], bytes], tmp_path: Path
) -> None:
    """Diamond, fan, two chains and independent tasks in one benchmark, three rounds."""
    result = run(ALL, modes_of(kind), tmp_path, at_once=at_once, pool=pool)
    assert stable_bytes(result) == serial_reports(kind)
    assert executions(tmp_path) == {f"{name}#{i}": 1 for name in ALL for i in range(ROUNDS)}
    if at_once == 1:
        planned = [f"{name}#{i}" for i in range(ROUNDS) for name in result.task_results]
        assert (tmp_path / "executions").read_text().split() == planned
    for group in ("top left right end", "root leaf1 leaf2 leaf3", "a1 a2 a3", "b1 b2"):
        assert all(len(each) <= 1 for each in pids(result, group.split()))


def pids(result: BenchmarkResult, tasks: list[str]) -> list[set[tuple[int, int | None]]]:
    """Of each round: the pids of worker and trial process of those of ``tasks`` that ran on a worker."""
    trials = by_task(result)
    workers = [[trials[task][index].worker for task in tasks] for index in range(ROUNDS)]
    return [{(worker.pid, worker.trial_pid) for worker in each if worker is not None} for each in workers]


Overlap = tuple[str, Graph, Mapping[str, Mode] | Mode, tuple[str, ...], Callable[[int], int]]

SIDES = ("left", "right")
LEAVES = ("leaf1", "leaf2", "leaf3")
ROOTS = ("a1", "b1", "x", "y")
_LISTED: list[Overlap] = [
    ("threads of a diamond", DIAMOND, "thread", SIDES, lambda slots: 2 * ROUNDS),
    ("processes of a diamond", DIAMOND, "process", SIDES, lambda slots: min(ROUNDS, slots)),
    ("a diamond of both", DIAMOND, {"top": "thread", "left": "thread", "right": "process", "end": "process"},
     SIDES, lambda slots: ROUNDS + min(ROUNDS, slots)),
    ("threads of a fan", FAN, "thread", LEAVES, lambda slots: 3 * ROUNDS),
    ("processes of a fan", FAN, "process", LEAVES, lambda slots: min(ROUNDS, slots)),
    ("serial leaves", FAN, {"root": "process", **dict.fromkeys(LEAVES, "serial")}, LEAVES, lambda slots: 1),
    ("threads of chains", TWO_CHAINS, "thread", ROOTS, lambda slots: 4 * ROUNDS),
    ("processes of chains", TWO_CHAINS, "process", ROOTS, lambda slots: min(4 * ROUNDS, slots)),
]  # fmt: skip
OVERLAPS = {overlap[0]: overlap for overlap in _LISTED}
"""What runs at once at most: with so many slots (1 without a pool), but for the global limit."""

FEW_OVERLAPS = [
    ("processes of a diamond", 8, 2), ("a diamond of both", 8, 1), ("a diamond of both", 8, 2),
    ("threads of a fan", 8, False), ("processes of a fan", 8, False), ("serial leaves", 8, 1),
    ("processes of chains", 2, 4),
]  # fmt: skip
EVERY_OVERLAP = [
    (name, n, pool)
    for name in OVERLAPS
    for n in (2, 8)
    for pool in (POOLS if not name.startswith("threads") else (False,))
]


@pytest.mark.parametrize(
    ("name", "at_once", "pool"),
    [
        *FEW_OVERLAPS,
        *(pytest.param(*each, marks=pytest.mark.slow) for each in EVERY_OVERLAP if each not in FEW_OVERLAPS),
    ],
)
def test_as_much_runs_at_once_as_graph_and_limits_allow(name: str, at_once: int, pool: Any, tmp_path: Path) -> None:
    """The trials wait in their tools until so many are there, and look whether more come."""
    _, graph, modes, guests, most = OVERLAPS[name]
    expected = min(at_once, most(pool or 1))
    invite(tmp_path, expected, *guests)
    result = run(graph, modes, tmp_path, at_once=at_once, pool=pool)
    assert Meeting(tmp_path / "place").most == expected
    if pool and modes == "process" and graph is not TWO_CHAINS:
        each = pids(result, list(graph))
        assert [len(pair) for pair in each] == [1] * ROUNDS
        together = set[tuple[int, int | None]].union(*each)
        assert len({trial for _, trial in together}) == ROUNDS
        assert expected <= len({worker for worker, _ in together}) <= pool


@pytest.mark.parametrize("pool", [False, 1])
def test_limits_per_model_and_task_hold_for_each_node(pool: Any, tmp_path: Path) -> None:
    """An agent calls a second one on the same model, of which one trial at a time is allowed: it ends all the same."""

    def two_agents(lab: Any, prompt: str) -> Any:
        second = ScriptedAgent(solve, model="m")
        return second.policy(lab, prompt)

    limits = ConcurrencyConfig(8, per_task=2, per_model={"m": 1})
    invite(tmp_path, 1, *CHAIN)
    hiring = CorralRunner(
        builder(CHAIN, "process", tmp_path),
        agent_factory=lambda context: ScriptedAgent(two_agents, model="m"),
        checkpoint_dir=tmp_path / "sessions",
    )
    result = hiring.bench(trials_per_task=3, concurrency=limits, worker_pool=pool)
    assert result.average_score() == 1
    assert Meeting(tmp_path / "place").most == 1
    assert set(executions(tmp_path).values()) == {1}


def test_a_waiting_node_holds_no_more_than_its_episode_s_slot(tmp_path: Path) -> None:
    """Three episodes want the one slot and two trials may run: the second of the two is always a thread's."""
    graph: Graph = {**DIAMOND, "alone": ()}
    modes: dict[str, Mode] = {**dict.fromkeys(DIAMOND, "process"), "alone": "thread"}
    invite(tmp_path, 2, "top", "alone")
    run(graph, modes, tmp_path, at_once=2, pool=1, max_concurrency_per_task=1)
    assert Meeting(tmp_path / "place").most == 2


def test_rounds_do_not_see_each_other(tmp_path: Path) -> None:
    """The numbers differ from round to round, and each round's answers follow from its own."""
    result = run(DIAMOND, "process", tmp_path, at_once=8, pool=2)
    answers = {task: [t.state["submitted_answer"]["value"] for t in trials] for task, trials in by_task(result).items()}
    assert len(set(answers["end"])) == ROUNDS
    for index in range(ROUNDS):
        left, right = answers["left"][index], answers["right"][index]
        assert left % (2 * answers["top"][index] + 1) == right % (2 * answers["top"][index] + 1) == 0
        assert answers["end"][index] % (2 * (left + right) + 1) == 0
