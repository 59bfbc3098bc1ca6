"""Chains whose workers, trial processes or supervisor die, or that are stopped: records, outputs, slots."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from corral import BenchmarkResult, CorralRunner, FailureKind, TaskTrialResult
from corral.agents import ScriptedAgent
from corral.pool import WorkerPool, WorkerPoolConfig
from corral.pool.supervisor import PoolStatistics
from corral.report import stable_bytes
from corral.report.progress import Silent
from corral.routers import AsyncLocalRouter
from corral.service import TrialService
from corral.source import EnvironmentSource
from tests.support.benches import Mode, bench, by_task
from tests.support.graphs import CHAIN, DIAMOND, Graph, builder, doom, executions, solve
from tests.support.meeting import Meeting
from tests.support.routers import WithTrials
from tests.support.scripts import python

ONCE = Counter({f"{task}#0": 1 for task in CHAIN})


class Watcher(Silent):
    """Calls a function with each record, at the moment at which it is durable and before its dependents start."""

    def __init__(self, seen: Callable[[TaskTrialResult], object]) -> None:
        self._seen = seen

    def recorded(self, result: TaskTrialResult) -> None:
        self._seen(result)


def chain(
    folder: Path, mode: Mapping[str, Mode] | Mode = "process", graph: Graph = CHAIN, **more: Any
) -> BenchmarkResult:
    options = {"worker_pool": 1, "session_id": "s", "seed": 3}
    return bench(builder(graph, mode, folder), solve, folder, **options | more)


def records(result: BenchmarkResult) -> dict[str, str]:
    """Of each task: "good", or how it failed and for whom."""
    return {
        trial.task_id: "good"
        if trial.success
        else f"{trial.failure} {trial.state.get('missing_dependency', '')}".strip()
        for trial in result.trials
    }


def restarts(result: BenchmarkResult) -> int:
    """Workers that had to be replaced."""
    assert isinstance(result.pool, PoolStatistics)
    return result.pool.restarts


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed")
    return stable_bytes(chain(folder, worker_pool=False))


# ---- one death ----


@pytest.mark.parametrize("whom", ["trial", "worker"])
@pytest.mark.parametrize("task", CHAIN)
def test_a_death_in_a_node_costs_one_attempt_of_that_node(
    task: str, whom: str, undisturbed: bytes, tmp_path: Path
) -> None:
    doom(tmp_path, task, f"once {whom}")
    result = chain(tmp_path)
    assert stable_bytes(result) == undisturbed
    assert executions(tmp_path) == ONCE + Counter([f"{task}#0"])
    assert {trial.task_id: len(trial.attempts) for trial in result.trials} == {**dict.fromkeys(CHAIN, 1), task: 2}
    (lost,) = [attempt for trial in result.trials for attempt in trial.attempts if attempt.failure]
    assert (lost.failure, lost.phase) == (FailureKind.WORKER_DIED, "tool work")
    places = [trial.worker for trial in result.trials]
    assert len({place.trial_pid for place in places if place}) == (1 if task == "a" else 2)
    assert restarts(result) == (whom == "worker")


def end(pid: int) -> None:
    """Kill it, and return when it is dead: then what dies with it has its signal too."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.0005)


@pytest.mark.parametrize("whom", ["trial", "worker"])
@pytest.mark.parametrize("task", CHAIN)
def test_a_death_between_two_nodes_costs_nobody_anything(
    task: str, whom: str, undisturbed: bytes, tmp_path: Path
) -> None:
    """Right after the record of ``task``; no retry is left for anyone."""

    def kill(result: TaskTrialResult) -> None:
        if result.task_id == task:
            assert result.worker is not None
            end((result.worker.trial_pid or 0) if whom == "trial" else result.worker.pid)

    result = chain(tmp_path, retries=0, progress=Watcher(kill))
    assert stable_bytes(result) == undisturbed
    assert executions(tmp_path) == ONCE
    assert [len(trial.attempts) for trial in result.trials] == [1] * 5
    assert len({trial.worker.trial_pid for trial in result.trials if trial.worker}) == (1 if task == "e" else 2)


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("phase", ["c", "setup of c"], ids=["in a tool", "while it is set up"])
def test_a_node_that_always_dies_ends_after_its_retries_and_its_cone_is_not_run(
    phase: str, retries: int, tmp_path: Path
) -> None:
    """Ten independent tasks share the one slot with the chain, and are graded."""
    doom(tmp_path, phase, "exit")
    graph = {**CHAIN, **{f"i{n}": () for n in range(10)}}
    result = chain(tmp_path, graph=graph, retries=retries)
    independent = {f"i{n}": "good" for n in range(10)}
    assert records(result) == {
        "a": "good", "b": "good", "c": "worker_died", "d": "not_run c", "e": "not_run d", **independent,
    }  # fmt: skip
    expected = Counter({f"{task}#0": 1 for task in [*independent, "a", "b"]})
    assert executions(tmp_path) == expected + Counter(["c#0"] * (retries + 1 if phase == "c" else 0))
    trials = {task: trials[0] for task, trials in by_task(result).items()}
    assert [attempt.exit_status for attempt in trials["c"].attempts] == [1] * (retries + 1)
    assert trials["d"].error_message == "not run: it needs the output of task 'c', which did not succeed"
    assert trials["e"].error_message == (
        "not run: it needs the output of task 'd', which was not run either, since 'c' did not succeed"
    )
    assert restarts(result) == 0


def test_two_chains_whose_first_members_kill_themselves_on_one_slot(tmp_path: Path) -> None:
    graph: Graph = {"a1": (), "a2": ("a1",), "b1": (), "b2": ("b1",)}
    for first in ("a1", "b1"):
        doom(tmp_path, first, "trial")
    result = chain(tmp_path, graph=graph, max_concurrency=2)
    assert records(result) == {"a1": "worker_died", "a2": "not_run a1", "b1": "worker_died", "b2": "not_run b1"}


def test_deaths_in_chains_of_both_classes_at_once(tmp_path: Path) -> None:
    """Two rounds of a diamond on two slots: one of its processes dies in each, its threads go on."""
    modes: dict[str, Mode] = {"top": "process", "left": "thread", "right": "process", "end": "process"}
    limits = {"max_concurrency": 8, "max_concurrency_per_task": 8, "trials_per_task": 2}
    quiet = chain(made(tmp_path / "quiet"), modes, DIAMOND, **limits | {"worker_pool": 2})
    doom(tmp_path, "right", "once worker")
    result = chain(tmp_path, modes, DIAMOND, **limits | {"worker_pool": 2})
    assert stable_bytes(result) == stable_bytes(quiet)
    assert executions(tmp_path)["right#0"] + executions(tmp_path)["right#1"] == 3
    assert sum(executions(tmp_path).values()) == 9


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


# ---- the supervisor dies, and the session goes on ----

KILLED_RUN = """
import json, os, signal, sys
from pathlib import Path
from tests.support.graphs import CHAIN, builder, doom
from tests.test_chain_faults import Watcher, chain

def main():
    folder, modes, options, where = Path.cwd(), *map(json.loads, sys.argv[1:])
    if where.get("in"):
        doom(folder, where["in"], f"once {os.getpid()}")
    def recorded(result):
        if result.task_id == where.get("after"):
            os.kill(os.getpid(), signal.SIGKILL)
    result = chain(folder, modes, progress=Watcher(recorded), **options)
    result.generate_report(folder / "report.json")

if __name__ == "__main__":
    main()
"""

BOTH: dict[str, Mode] = {"a": "process", "b": "thread", "c": "process", "d": "process", "e": "thread"}
VARIANTS: dict[str, tuple[Mapping[str, Mode] | Mode, dict[str, Any]]] = {
    "pool": ("process", {"worker_pool": 1}),
    "no pool": ("process", {"worker_pool": False}),
    "both classes": (BOTH, {"worker_pool": 2, "max_concurrency": 2}),
}
POSITIONS = [{where: task} for task in CHAIN for where in ("in", "after")]
FEW = [("pool", {"in": "c"}), ("both classes", {"after": "c"})]


@pytest.mark.parametrize(
    ("variant", "where"),
    [
        *FEW,
        *(
            pytest.param(variant, where, marks=pytest.mark.slow)
            for variant in VARIANTS
            for where in POSITIONS
            if (variant, where) not in FEW
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join([*value.keys(), *value.values()]),
)
def test_a_killed_supervisor_s_chain_is_finished_from_its_records(
    variant: str, where: dict[str, str], undisturbed: bytes, tmp_path: Path
) -> None:
    modes, options = VARIANTS[variant]
    (tmp_path / "run.py").write_text(KILLED_RUN)
    arguments = ("run.py", json.dumps(modes), json.dumps(options))
    killed = python(*arguments, json.dumps(where), folder=tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    names = list(CHAIN)
    ((how, task),) = where.items()
    done = names[: names.index(task) + (how == "after")]
    assert recorded(tmp_path) == done
    again = python(*arguments, "{}", folder=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert recorded(tmp_path) == names
    assert executions(tmp_path) == ONCE + Counter([f"{task}#0"] if how == "in" else [])
    resumed = json.loads((tmp_path / "report.json").read_text())
    if variant == "both classes":  # trials of the thread class are the same, but their class is told
        fresh = chain(made(tmp_path / "fresh"), modes, worker_pool=False)
        assert stable_bytes(resumed) == stable_bytes(fresh)
    else:
        assert stable_bytes(resumed) == undisturbed


def recorded(folder: Path) -> list[str]:
    lines = (folder / "sessions" / "s" / "journal.jsonl").read_bytes().splitlines()
    return [record["task_id"] for record in map(json.loads, lines) if record["type"] == "trial"]


def test_of_three_rounds_only_what_is_missing_is_run(tmp_path: Path) -> None:
    """The supervisor is stopped after ``a`` and ``b`` of the second round: ``c`` runs with what they left."""
    graph: Graph = {"a": (), "b": ("a",), "c": ("b",)}
    count = 0

    class Stop(BaseException):
        pass

    def stop(result: TaskTrialResult) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise Stop

    with pytest.raises(Stop):
        chain(tmp_path, graph=graph, trials_per_task=3, progress=Watcher(stop))
    assert recorded(tmp_path) == ["a", "b", "c", "a", "b"]
    result = chain(tmp_path, graph=graph, trials_per_task=3)
    assert executions(tmp_path) == {f"{task}#{i}": 1 for task in graph for i in range(3)}
    whole = chain(made(tmp_path / "whole"), graph=graph, trials_per_task=3)
    assert stable_bytes(result) == stable_bytes(whole)


def test_a_cone_that_was_being_recorded_is_recorded_whole(tmp_path: Path) -> None:
    """The run stops after the first record of a cone: the next run says the same of the rest."""
    doom(tmp_path, "b", "exit")

    class Stop(BaseException):
        pass

    def stop(result: TaskTrialResult) -> None:
        if result.failure == FailureKind.NOT_RUN:
            raise Stop

    with pytest.raises(BaseException) as raised:  # noqa: PT011
        chain(tmp_path, progress=Watcher(stop))
    assert isinstance(raised.value, Stop | BaseExceptionGroup)
    first = chain(tmp_path)
    fresh = made(tmp_path / "fresh")
    doom(fresh, "b", "exit")
    assert stable_bytes(first) == stable_bytes(chain(fresh))
    assert executions(tmp_path) == {"a#0": 1, "b#0": 2}


# ---- what cannot be restored ----


class ChainRouter(WithTrials):
    """Somebody else's router with a chain: it takes no outputs, and keeps those of its own episodes."""

    def __init__(self, *tasks: str) -> None:
        super().__init__(*tasks)
        self.fails_to_close = False
        self.wrong = ""

    def get_dependency_graph(self) -> dict[str, list[str]]:
        return {task: self.tasks[i - 1 : i] for i, task in enumerate(self.tasks)}

    def close_episode(self, episode_id: str) -> None:
        self.log.append(("close episode", episode_id))
        if self.fails_to_close:
            raise ConnectionError("gone")

    def for_trial(self, trial_runtime_id: str, task_id: str, **options: Any) -> Any:
        return self

    def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        return TaskTrialResult(task_id, 0, float(task_id != self.wrong), state={"submitted_answer": answer})


def by_router(router: Any, folder: Path, policy: Any = lambda lab, prompt: 3, **options: Any) -> BenchmarkResult:
    return bench(router, policy, folder, session_id="s", **options)


def test_outputs_that_a_router_cannot_be_given_again_end_the_chain_and_it_says_why(tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(result: TaskTrialResult) -> None:
        if result.task_id == "b":
            raise Stop

    router = ChainRouter("a", "b", "c", "d")
    with pytest.raises(Stop):
        by_router(router, tmp_path, progress=Watcher(stop))
    assert router.log.count(("close episode", "a#0")) == 1
    router.log.clear()
    result = by_router(router, tmp_path)
    assert records(result) == {"a": "good", "b": "good", "c": "not_run b", "d": "not_run c"}
    assert [trial.error_message for trial in result.trials if not trial.success] == [
        "not run: it needs the output of task 'b', which was left by an earlier run and cannot be restored: the "
        "router's create_trial takes no outputs",
        "not run: it needs the output of task 'c', which did not succeed",
    ]
    assert [entry for entry in router.log if entry[0] == "create"] == []


def test_an_output_without_what_a_dependent_needs_ends_the_chain_and_it_says_why(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        return {"amount": 1} if prompt.startswith("a") else solve(lab, prompt)

    result = bench(builder(CHAIN, "process", tmp_path), policy, tmp_path, worker_pool=1)
    assert records(result) == {"a": "good", "b": "env_start", "c": "not_run b", "d": "not_run c", "e": "not_run d"}
    message = by_task(result)["b"][0].error_message or ""
    assert "the inputs of task 'b' failed" in message
    assert "'amount'" in message


# ---- stopped runs give back what their episodes hold ----


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["cancel", "error"])
async def test_a_stopped_run_gives_back_its_episode_s_slot(how: str, tmp_path: Path) -> None:
    """The pool is not the run's own, as with a server: after the run all of its slots are free."""
    build = builder(CHAIN, "process", tmp_path)
    source = EnvironmentSource(build)
    between = anyio.Event()

    class Stop(Exception):
        pass

    async def policy(lab: Any, prompt: str) -> Any:
        if prompt.startswith("c"):
            between.set()
            if how == "cancel":
                await anyio.sleep_forever()
        return {"value": await lab.call("work")}

    def recorded(result: TaskTrialResult) -> None:
        if how == "error" and result.task_id == "c":
            raise Stop

    async with WorkerPool(build, WorkerPoolConfig(size=1)) as pool:
        service = TrialService(source, pool.catalogue, pool=pool, work_root=tmp_path)
        hiring = CorralRunner(
            AsyncLocalRouter(service),
            agent_factory=lambda context: ScriptedAgent(policy),
            checkpoint_dir=tmp_path / "s",
        )
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    await between.wait()
                    assert pool.statistics().leased == 1
                    if how == "cancel":
                        scope.cancel()

                tasks.start_soon(stop)
                if how == "error":
                    with pytest.raises(Stop):
                        await hiring.abench(progress=Watcher(recorded))
                else:
                    await hiring.abench()
        assert scope.cancelled_caught == (how == "cancel")
        assert pool.statistics().leased == 0


@pytest.mark.parametrize("wrong", ["", "a", "b"])
def test_an_episode_is_closed_once_and_after_its_last_trial(wrong: str, tmp_path: Path) -> None:
    router = ChainRouter("a", "b", "c")
    router.wrong = wrong
    by_router(router, tmp_path, trials_per_task=2)
    for index in range(2):
        mine = [entry for entry in router.log if entry[-1].endswith(f"#{index}") or entry[1].endswith(f"_{index}")]
        assert mine[-1] == ("close episode", f"a#{index}")
        assert [entry[0] for entry in mine].count("close episode") == 1
    assert len([entry for entry in router.log if entry[0] == "close"]) == 2 * (("abc".index(wrong) + 1) if wrong else 3)


def test_an_episode_that_cannot_be_closed_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    router = ChainRouter("a", "b")
    router.fails_to_close = True
    assert by_router(router, tmp_path).average_score() == 1
    assert "closing the episode a#0 failed: ConnectionError: gone" in caplog.text


def test_a_run_without_anything_left_opens_and_closes_nothing(tmp_path: Path) -> None:
    router = ChainRouter("a", "b")
    by_router(router, tmp_path)
    router.log.clear()
    assert by_router(router, tmp_path).average_score() == 1
    assert router.log == []


# ---- what is wrong is told ----


def test_several_broken_parents_are_told_alike_however_they_end(tmp_path: Path) -> None:
    """``left`` and ``right`` both fail, in either order; ``end`` names the first of the plan."""
    reports = []
    for first, second in (("left", "right"), ("right", "left")):
        folder = made(tmp_path / first)
        place = folder / "place"

        def policy(lab: Any, prompt: str, first: str = first, second: str = second, place: Path = place) -> Any:
            if prompt.startswith(second):
                Meeting(place).attend(1)
                while not (place / "first").exists():
                    lab.call("work")
            return {"value": 0 if prompt.startswith((first, second)) else 1}

        def tell(result: TaskTrialResult, first: str = first, place: Path = place) -> None:
            if result.task_id == first:
                place.mkdir(exist_ok=True)
                (place / "first").touch()

        result = bench(
            builder(DIAMOND, "thread", folder), policy, folder, max_concurrency=4, progress=Watcher(tell), seed=1
        )
        assert result.task_results["end"].trials[0].state["missing_dependency"] == "left"
        reports.append(result.task_results["end"].trials[0].state)
    assert reports[0] == reports[1]
