"""Whole runs: what is refused before anything starts, which limits hold, and that results do not depend on them."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral import ConcurrencyConfig, CorralRunner, Environment, LocalRouter, TrialContext
from corral.agents import BaseAgent, ScriptedAgent
from corral.errors import ConfigError, TaskGraphError
from corral.pool import WorkerPoolConfig
from corral.report import stable_bytes
from corral.types import derive_seed
from tests.support.benches import Bench, Mode, bench, benches, by_task, dice, roll_and_read, runner, sole
from tests.support.meeting import Meeting


def answer(lab: Any, prompt: str) -> Any:
    return 1


# ---- refused before anything starts ----


def nothing_starts() -> dict[str, Environment]:
    pytest.fail("the environments were built")


def test_an_agent_or_a_factory_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"agent=.*agent_factory="):
        CorralRunner(nothing_starts)


def test_a_shared_agent_runs_one_trial_at_a_time(tmp_path: Path) -> None:
    shared = CorralRunner(nothing_starts, ScriptedAgent(answer), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=r"Concurrent benchmarking needs a fresh agent per trial.*agent_factory"):
        shared.bench(max_concurrency=2)
    with pytest.raises(ValueError, match="Concurrent benchmarking needs a fresh agent per trial"):
        shared.bench(concurrency=ConcurrencyConfig(2))


@pytest.mark.parametrize("interface", [None, 7, "http://here", ["a"], object()])
def test_interfaces_that_are_none(interface: Any) -> None:
    with pytest.raises(ConfigError, match="interface must be a router, a mapping"):
        CorralRunner(interface, ScriptedAgent(answer))


class SomeRouter:
    def get_available_tasks(self) -> list[str]:
        return ["a"]


@pytest.mark.parametrize("interface", [LocalRouter, SomeRouter, Bench, dict])
def test_a_class_instead_of_an_interface(interface: Any) -> None:
    with pytest.raises(ConfigError, match=f"not the class {interface.__name__}: call it first"):
        CorralRunner(interface, ScriptedAgent(answer))


def test_a_class_instead_of_an_agent() -> None:
    with pytest.raises(ConfigError, match="agent must be an object, not the class ScriptedAgent"):
        CorralRunner(nothing_starts, ScriptedAgent)
    with pytest.raises(ConfigError, match=r"agent must have run_agent or arun_agent.*'gpt'"):
        CorralRunner(nothing_starts, "gpt")


def test_a_class_of_agents_as_factory_is_told_what_a_factory_is(tmp_path: Path) -> None:
    factory: Any = BaseAgent
    with pytest.raises(ConfigError, match=r"model must be text, not TrialContext.*lambda context: MyAgent\(\)"):
        CorralRunner(benches(a="thread"), agent_factory=factory, checkpoint_dir=tmp_path).bench()
    assert not list(tmp_path.iterdir())


def test_a_pool_belongs_to_the_server_of_a_router(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"worker_pool needs an interface that runs in-process.*belongs to its server"):
        bench(SomeRouter(), answer, tmp_path, worker_pool=True)


@pytest.mark.parametrize("name", ["tool_timeout", "configure_timeout"])
def test_the_limits_of_a_server_are_not_silently_passed_over(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name} needs an interface that runs in-process.*its server's to set"):
        bench(SomeRouter(), answer, tmp_path, **{name: 1.0})


@pytest.mark.parametrize("limits", [{"max_concurrency_per_task": 2}, {"concurrency": ConcurrencyConfig(2, per_task=2)}])
def test_many_trials_of_a_task_need_trial_runtimes(limits: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs trial runtimes, and SomeRouter has no create_trial"):
        bench(SomeRouter(), answer, tmp_path, **limits)


def test_chains_at_once_need_trial_runtimes(tmp_path: Path) -> None:
    class Chained(SomeRouter):
        def get_available_tasks(self) -> list[str]:
            return ["a", "b"]

        def get_dependency_graph(self) -> dict[str, list[str]]:
            return {"a": [], "b": ["a"]}

    with pytest.raises(ValueError, match="chains of tasks concurrently needs trial runtimes"):
        bench(Chained(), answer, tmp_path, max_concurrency=2)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task_ids": ["a", "x"]}, "unknown task ids: 'x'; known: 'a', 'b'"),
        ({"task_ids": ["a", "a"]}, "task_ids names a task twice: 'a'"),
        ({"k_values": [2]}, "k = 2 needs at least 2 trials"),
        ({"max_concurrency": 0}, "max_concurrency must be a whole number"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"trial_timeout": float("nan")}, "trial_timeout must be a positive number"),
        ({"worker_pool": 0}, "worker pool size must be a whole number"),
        ({"progress": 3}, "progress"),
    ],
)
def test_arguments_refused_by_bench_leave_no_files(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        bench(benches(a="thread", b="thread"), answer, tmp_path, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("per_model", [{"m": 0}, {"m": True}, {"m": "2"}, {"m": float("nan")}, ["m"]])
def test_limits_per_model_are_counts(per_model: Any) -> None:
    with pytest.raises(ValueError, match="per_model"):
        ConcurrencyConfig(per_model=per_model)


def test_a_selection_without_a_parent(tmp_path: Path) -> None:
    def chain() -> dict[str, Environment]:
        envs: dict[str, Environment] = {"a": Bench("a"), "b": Bench("b")}
        envs["b"].parents = ("a",)
        return envs

    with pytest.raises(TaskGraphError, match=r"task_ids leaves out tasks .*'b' needs 'a'"):
        bench(chain, answer, tmp_path, task_ids=["b"])


@pytest.mark.anyio
async def test_bench_in_a_running_loop(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"bench\(\) was called in a running event loop: use `await runner.abench"):
        bench(nothing_starts, answer, tmp_path)


def test_bench_under_a_debugger(tmp_path: Path) -> None:
    """Its view of a frame's variables may be the frame's own."""

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return trace if frame.f_locals is not None and "bench" in frame.f_code.co_name else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        made = bench(benches(a="thread"), answer, tmp_path)
    finally:
        sys.settrace(before)
    assert made.coverage.graded == 1


# ---- agents ----


def test_a_factory_is_called_once_per_attempt_and_told_of_its_trial(tmp_path: Path) -> None:
    told: list[TrialContext] = []

    def hire(context: TrialContext) -> ScriptedAgent:
        told.append(context)
        return ScriptedAgent(answer)

    hiring = CorralRunner(benches(a="thread", b="thread"), agent_factory=hire, checkpoint_dir=tmp_path)
    hiring.bench(trials_per_task=2, max_concurrency=4, session_id="s", seed=5)
    expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert sorted((c.task_id, c.trial_index) for c in told) == expected
    assert {c.seed for c in told} == {derive_seed(5, *key) for key in expected}
    assert {c.session_id for c in told} == {"s"}
    assert len({c.benchmark_run_id for c in told}) == 1


def test_a_shared_agent_starts_every_trial_anew(tmp_path: Path) -> None:
    """Its budget, transcript and tokens are the trial's: the same as with an agent for each."""

    class Stepper(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            while self.iterations < 3:
                self.next_iteration()
                self.count_tokens({"input": 10})
                self.messages.append({"role": "user", "content": task_id})
            return 1

    options: dict[str, Any] = {"trials_per_task": 3, "seed": 1}
    shared = CorralRunner(
        benches(a="thread", b="thread"), Stepper(max_iterations=4), checkpoint_dir=tmp_path / "shared"
    ).bench(**options)
    fresh = CorralRunner(
        benches(a="thread", b="thread"), agent_factory=lambda c: Stepper(max_iterations=4), checkpoint_dir=tmp_path
    ).bench(**options)
    assert [trial.score for trial in shared.trials] == [1.0] * 6
    assert stable_bytes(shared) == stable_bytes(fresh)
    assert shared.total_token_usage() == {"input": 180}


def test_sync_and_async_policies_give_the_same(tmp_path: Path) -> None:
    async def later(lab: Any, prompt: str) -> Any:
        for sides in (6, 20, 100):
            await lab.call("roll", sides=sides)
        return await lab.call("read")

    def report(name: str, policy: Any) -> bytes:
        hiring = CorralRunner(
            dice, agent_factory=lambda c: ScriptedAgent(policy, model="m"), checkpoint_dir=tmp_path / name
        )
        return stable_bytes(hiring.bench(trials_per_task=2, max_concurrency=3, seed=7))

    assert report("sync", roll_and_read) == report("async", later)


@pytest.mark.anyio
@pytest.mark.parametrize("pool", [False, 1])
async def test_agents_and_tools_in_threads_may_run_event_loops_of_their_own(pool: Any, tmp_path: Path) -> None:
    own_loop = "import anyio, asyncio\nanyio.run(anyio.sleep, 0)\nasyncio.run(asyncio.sleep(0))\nresult = 1"

    def policy(lab: Any, prompt: str) -> Any:
        anyio.run(anyio.sleep, 0)
        asyncio.run(asyncio.sleep(0))
        return lab.call("python", code=own_loop)

    result = await runner(benches(a="process", b="thread"), policy, tmp_path).abench(worker_pool=pool)
    assert [trial.error_message for trial in result.trials] == [None, None]


# ---- limits, seen by those they limit ----


def meet(folder: Path, guests: int) -> Callable[[Any, str], Any]:
    def policy(lab: Any, prompt: str) -> Any:
        lab.call("meet", folder=str(folder), guests=guests)
        return 1

    return policy


def crowd(interface: Any, tmp_path: Path, guests: int, **options: Any) -> int:
    """The most trials that were in their tool at once; all had to succeed."""
    result = bench(interface, meet(tmp_path / "place", guests), tmp_path, **options)
    assert [trial.error_message for trial in result.trials if not trial.success] == []
    return Meeting(tmp_path / "place").most


def test_global_limit(tmp_path: Path) -> None:
    modes: dict[str, Mode] = dict.fromkeys("abcdefgh", "thread")
    tasks = benches(**modes)
    assert crowd(tasks, tmp_path, 3, trials_per_task=2, max_concurrency=3, max_concurrency_per_task=2) == 3


def test_thread_class_trials_overlap_freely(tmp_path: Path) -> None:
    limits = {"max_concurrency": 50, "max_concurrency_per_task": 50}
    assert crowd(benches(a="thread"), tmp_path, 50, trials_per_task=50, **limits) == 50


def test_limit_per_task(tmp_path: Path) -> None:
    assert (
        crowd(benches(a="thread"), tmp_path, 2, trials_per_task=8, max_concurrency=8, max_concurrency_per_task=2) == 2
    )


@pytest.mark.parametrize("mode", ["process", "serial"])
def test_without_a_pool_nothing_of_process_or_serial_class_overlaps(mode: Any, tmp_path: Path) -> None:
    tasks = benches(a=mode, b=mode)
    assert crowd(tasks, tmp_path, 1, trials_per_task=4, max_concurrency=8, max_concurrency_per_task=8) == 1


def test_process_and_serial_class_share_one_gate_without_a_pool(tmp_path: Path) -> None:
    tasks = benches(a="process", b="serial", c="process")
    assert crowd(tasks, tmp_path, 1, trials_per_task=3, max_concurrency=8, max_concurrency_per_task=8) == 1


def test_thread_class_trials_overlap_beside_a_process_class_one(tmp_path: Path) -> None:
    """All three of the thread-class task, and one of the process-class one, which needs no pool for that."""
    tasks = benches(p="process", t="thread")
    assert crowd(tasks, tmp_path, 4, trials_per_task=3, max_concurrency=8, max_concurrency_per_task=3) == 4


@pytest.mark.parametrize("pool", [False, 2])
def test_a_serial_trial_has_nothing_beside_it(pool: Any, tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def policy(lab: Any, prompt: str) -> Any:
        if "serial" in prompt:
            alone = Meeting(tmp_path / "place")
            alone.attend(1)
            (seen / str(len(list((tmp_path / "place" / "inside").iterdir())))).touch()
        else:
            lab.call("meet", folder=str(tmp_path / "place"), guests=2)
        return 1

    seen.mkdir()
    tasks = benches(serial="serial", p="process", t="thread")
    limits = {"max_concurrency": 4, "max_concurrency_per_task": 2, "worker_pool": pool}
    result = bench(tasks, policy, tmp_path, trials_per_task=4, **limits)
    assert result.coverage.complete
    assert [path.name for path in seen.iterdir()] == ["0"]
    assert Meeting(tmp_path / "place").most >= 2


def test_on_a_pool_trials_run_in_as_many_interpreters_at_once(tmp_path: Path) -> None:
    policy = meet(tmp_path / "place", 3)
    limits = {"max_concurrency": 9, "max_concurrency_per_task": 9, "worker_pool": 3}
    result = bench(benches(a="process"), policy, tmp_path, trials_per_task=9, **limits)
    assert Meeting(tmp_path / "place").most == 3
    assert result.average_score() == 1
    workers = [trial.worker for trial in result.trials]
    assert len({worker.slot for worker in workers if worker}) == 3
    assert len({worker.trial_pid for worker in workers if worker}) == 9


def test_two_trials_never_share_an_interpreter_at_once_though_it_is_reused(tmp_path: Path) -> None:
    code = """
import sys
assert not getattr(sys, "guest", None), "somebody is here"
sys.guest = True
env.meet(folder=FOLDER, guests=2)
del sys.guest
sys.visits = getattr(sys, "visits", 0) + 1
result = sys.visits
""".replace("FOLDER", repr(str(tmp_path / "place")))

    def policy(lab: Any, prompt: str) -> Any:
        return lab.call("python", code=code)

    limits = {"max_concurrency": 8, "max_concurrency_per_task": 8}
    pool = WorkerPoolConfig(size=2, reuse="worker")
    result = bench(benches(a="process", b="process"), policy, tmp_path, trials_per_task=5, worker_pool=pool, **limits)
    assert result.coverage.complete
    assert Meeting(tmp_path / "place").most == 2
    pids = {trial.worker.trial_pid for trial in result.trials if trial.worker}
    assert len(pids) == 2
    assert sum(trial.score == 1 for trial in result.trials) == 2


@pytest.mark.parametrize(("pool", "size"), [(True, 2), (WorkerPoolConfig(), 2), (3, 3)])
def test_a_pool_is_as_large_as_it_can_be_of_use_or_as_asked(pool: Any, size: int, tmp_path: Path) -> None:
    """Three trials at once, and two of them of process class."""
    result = bench(benches(a="process", b="process", c="thread"), answer, tmp_path, max_concurrency=3, worker_pool=pool)
    assert result.pool.size == size  # type: ignore[attr-defined]


def test_limits_per_model_bound_the_agents_of_that_model_only(tmp_path: Path) -> None:
    """``slow`` may run two at a time; the others are bounded by the global limit, which they reach together."""

    def hire(context: TrialContext) -> ScriptedAgent:
        model = "slow" if context.trial_index < 6 else "fast"
        folder, guests = (tmp_path / "slow", 2) if model == "slow" else (tmp_path / "fast", 6)
        return ScriptedAgent(meet(folder, guests), model=model)

    limits = ConcurrencyConfig(8, per_task=8, per_model={"slow": 2})
    hiring = CorralRunner(benches(a="thread"), agent_factory=hire, checkpoint_dir=tmp_path / "sessions")
    result = hiring.bench(trials_per_task=12, concurrency=limits)
    assert result.average_score() == 1
    assert (Meeting(tmp_path / "slow").most, Meeting(tmp_path / "fast").most) == (2, 6)


class Configured(Bench):
    folder = Path()

    def configure_additional_apps(self) -> str:
        Meeting(self.folder / "configure").attend(2)
        return "ready"


def test_configuring_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """Two configure at once, and eight work at once: the lease of configuring is given back before the agent works."""
    Configured.folder = tmp_path

    def build() -> dict[str, Environment]:
        return {"a": Configured("a")}

    limits = ConcurrencyConfig(8, per_task=8, configure_apps=2)
    assert crowd(build, tmp_path, 8, trials_per_task=8, concurrency=limits) == 8
    assert Meeting(tmp_path / "configure").most == 2


def test_background_jobs_of_one_trial_have_a_limit(tmp_path: Path) -> None:
    from corral import tool

    class Jobs(Bench):
        @tool(background=True)
        def work(self, folder: str, guests: int) -> str:
            """Work."""
            Meeting(Path(folder)).attend(guests)
            return "done"

    def policy(lab: Any, prompt: str) -> Any:
        jobs = [lab.call("work", folder=str(tmp_path / "place"), guests=3)["job_id"] for _ in range(7)]
        poll = next(name for name in lab.tools if "poll" in name)
        views = [lab.call(poll, job_id=job, wait_s=20) for job in jobs]
        return float(all(view.get("result") == "done" for view in views))

    limits = ConcurrencyConfig(tool_jobs_per_trial=3)
    assert sole(bench(lambda: {"a": Jobs("a")}, policy, tmp_path, concurrency=limits)).score == 1
    assert Meeting(tmp_path / "place").most == 3


@pytest.mark.parametrize(
    ("of_runner", "of_call", "scalar", "expected"),
    [(None, None, 3, 3), (4, None, 3, 4), (4, 2, 3, 2), (None, 2, 3, 2)],
)
def test_the_call_s_limits_come_before_the_runner_s_and_these_before_the_scalars(
    of_runner: int | None, of_call: int | None, scalar: int, expected: int, tmp_path: Path
) -> None:
    def limits(number: int | None) -> ConcurrencyConfig | None:
        return None if number is None else ConcurrencyConfig(number, per_task=number)

    own = runner(benches(a="thread"), meet(tmp_path / "place", expected), tmp_path, concurrency=limits(of_runner))
    result = own.bench(
        trials_per_task=8, concurrency=limits(of_call), max_concurrency=scalar, max_concurrency_per_task=scalar
    )
    assert result.average_score() == 1
    assert Meeting(tmp_path / "place").most == expected


def test_a_slow_trial_does_not_hold_back_the_others(tmp_path: Path) -> None:
    """The first trial ends only when all the others have: they must all pass through the one place beside it."""
    others, done = threading.Event(), []

    def policy(lab: Any, prompt: str) -> Any:
        if prompt == "task slow":
            return float(others.wait(20))
        done.append(prompt)
        if len(done) == 20:
            others.set()
        return 1

    modes: dict[str, Mode] = {f"t{i}": "thread" for i in range(20)}
    tasks = benches(slow="thread", **modes)
    assert bench(tasks, policy, tmp_path, max_concurrency=2).average_score() == 1


# ---- the same results at any concurrency ----

VARIANTS: list[dict[str, Any]] = [
    {"max_concurrency": 4, "max_concurrency_per_task": 4},
    {"max_concurrency": 16, "max_concurrency_per_task": 3},
    {"max_concurrency": 1, "worker_pool": 1},
    {"max_concurrency": 4, "max_concurrency_per_task": 3, "worker_pool": 1},
    {"max_concurrency": 16, "max_concurrency_per_task": 16, "worker_pool": 3},
    {"max_concurrency": 4, "max_concurrency_per_task": 4, "worker_pool": WorkerPoolConfig(size=2, reuse="worker")},
    {"max_concurrency": 4, "max_concurrency_per_task": 4, "worker_pool": WorkerPoolConfig(size=2, fresh="spawn")},
]


@pytest.fixture(scope="module")
def serial_report(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three trials of a thread-, a process- and a serial-class task, one at a time, without a pool."""
    result = bench(dice, roll_and_read, tmp_path_factory.mktemp("serial"), trials_per_task=3, seed=11)
    assert len({trial.score for trial in result.trials}) > 1
    assert len({str(trial.state["submitted_answer"]) for trial in result.trials}) == 9
    return stable_bytes(result)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_results_do_not_depend_on_concurrency(options: dict[str, Any], serial_report: bytes, tmp_path: Path) -> None:
    assert stable_bytes(bench(dice, roll_and_read, tmp_path, trials_per_task=3, seed=11, **options)) == serial_report


def test_nor_on_the_interface(serial_report: bytes, tmp_path: Path) -> None:
    with LocalRouter(dice) as router:
        interfaces: list[Any] = [dice(), router]
        for number, interface in enumerate(interfaces):
            result = bench(interface, roll_and_read, tmp_path / str(number), trials_per_task=3, seed=11)
            assert stable_bytes(result) == serial_report


@pytest.mark.anyio
async def test_nor_on_the_event_loop(serial_report: bytes, tmp_path: Path) -> None:
    hiring = runner(dice, roll_and_read, tmp_path)
    result = await hiring.abench(
        trials_per_task=3, seed=11, max_concurrency=4, max_concurrency_per_task=4, worker_pool=2
    )
    assert stable_bytes(result) == serial_report


def test_another_seed_gives_other_results(serial_report: bytes, tmp_path: Path) -> None:
    assert stable_bytes(bench(dice, roll_and_read, tmp_path, trials_per_task=3, seed=12)) != serial_report


# ---- chains ----


def diamond(mode: Any) -> Callable[[], dict[str, Environment]]:
    from tests.support.chains import build_diamond

    return build_diamond(mode)


CHAIN_VARIANTS: list[tuple[Any, dict[str, Any]]] = [
    ("thread", {"max_concurrency": 1}),
    ("thread", {"max_concurrency": 4, "max_concurrency_per_task": 4}),
    ("process", {"max_concurrency": 4, "max_concurrency_per_task": 4}),
    ("process", {"max_concurrency": 4, "max_concurrency_per_task": 4, "worker_pool": 2}),
    ("process", {"max_concurrency": 1, "worker_pool": 1}),
    ("serial", {"max_concurrency": 4, "worker_pool": 2}),
]


@pytest.mark.parametrize(("mode", "options"), CHAIN_VARIANTS, ids=str)
def test_outputs_reach_dependents(mode: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """top gives its index; left adds 1 and right doubles; end adds both up."""
    from tests.support.chains import solve

    result = bench(diamond(mode), solve, tmp_path, trials_per_task=3, **options)
    answers = {task: [t.state["submitted_answer"]["value"] for t in trials] for task, trials in by_task(result).items()}
    assert answers == {"top": [10, 10, 10], "left": [11, 11, 11], "right": [20, 20, 20], "end": [31, 31, 31]}
    assert result.average_score() == 1
    assert list(result.task_results) == ["top", "left", "right", "end"]


def test_an_episode_keeps_its_process(tmp_path: Path) -> None:
    from tests.support.chains import solve

    options = {"max_concurrency": 8, "max_concurrency_per_task": 4, "worker_pool": 2}
    result = bench(diamond("process"), solve, tmp_path, trials_per_task=4, **options)
    pids = [
        {task[index].worker.trial_pid for task in by_task(result).values()}  # type: ignore[union-attr]
        for index in range(4)
    ]
    assert [len(each) for each in pids] == [1, 1, 1, 1]
    assert len(set.union(*pids)) == 4


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 4}, {"max_concurrency": 4, "worker_pool": 2}], ids=str)
def test_what_a_broken_parent_cuts_off_is_recorded_and_not_run(options: dict[str, Any], tmp_path: Path) -> None:
    from tests.support.chains import solve

    def broken(lab: Any, prompt: str) -> Any:
        assert "sum" not in prompt, "the end was run"
        return {"value": -1} if "add 1" in prompt else solve(lab, prompt)

    result = bench(diamond("process"), broken, tmp_path, trials_per_task=2, **options)
    assert {task: r.scores for task, r in result.task_results.items()} == {
        "top": [1.0, 1.0], "left": [0.0, 0.0], "right": [1.0, 1.0], "end": [0.0, 0.0],
    }  # fmt: skip
    for trial in by_task(result)["end"]:
        assert (trial.failure, trial.graded, trial.attempts) == ("not_run", False, ())
        assert trial.state == {"task_id": "end", "unreachable": True, "missing_dependency": "left"}
        assert trial.error_message is not None
        assert "'left'" in trial.error_message
    assert result.coverage.not_graded == {"not_run": 2}


def test_two_runs_at_once_in_one_process(tmp_path: Path) -> None:
    async def both() -> list[float]:
        scores = []

        async def one(name: str) -> None:
            own = runner(benches(a="process", b="thread"), answer, tmp_path / name)
            result = await own.abench(trials_per_task=2, max_concurrency=2, worker_pool=1)
            scores.append(result.average_score())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "left")
            tasks.start_soon(one, "right")
        return scores

    assert anyio.run(both) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("argument", "value", "says"),
    [
        ("checkpoint_dir", 3, "checkpoint_dir must be a path, not 3"),
        ("checkpoint_dir", b"here", "checkpoint_dir must be a path, not b'here'"),
        ("checkpoint_dir", "a\0b", "checkpoint_dir must be a path, not 'a\\x00b'"),
        ("enable_surrender", "no", "enable_surrender must be True or False, not 'no'"),
        ("metrics", 3, "metrics must be a list of objects with compute(result), not 3"),
        ("metrics", "mean", "metrics must be objects with a name and compute(result), not 'm'"),
        ("metrics", [Environment], "metrics must be objects with a name and compute(result), not <class "),
    ],
)
def test_arguments_of_a_runner_that_cannot_be_used(argument: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(says)):
        CorralRunner(benches(a="thread"), ScriptedAgent(answer), **{argument: value})


@pytest.mark.local
@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, ["at most 1 of 2 workers will be busy at a time: max_concurrency is 1, max_concurrency_per_task 1"]),
        ({"max_concurrency": 2}, []),
        ({"max_concurrency": 2, "task_ids": ["a"], "trials_per_task": 3},
         ["at most 1 of 2 workers will be busy at a time: max_concurrency is 2, max_concurrency_per_task 1"]),
        ({"task_ids": ["a"]}, []),
    ],
)  # fmt: skip
def test_workers_that_limits_leave_idle_are_told_of(
    limits: dict[str, Any], says: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not those for which there are no trials."""
    bench(benches(a="process", b="process"), lambda lab, prompt: 1, tmp_path, worker_pool=2, **limits)
    assert [record.message for record in caplog.records if record.name == "corral.session"] == says
