"""What a trial's process printed: in its record, its trial's own and bounded, whatever became of the trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral import CorralRouter, CorralRunner, Environment, InputRef, TaskDefinition, build_environments
from corral.agents import ScriptedAgent
from corral.errors import EnvStartError, FailureKind, WorkerDied
from corral.pool import WorkerPoolConfig
from corral.pool.printed import OUTPUT_TAIL
from corral.report import BenchmarkResult, open_session, stable_bytes
from corral.types import Attempt
from tests.support.benches import bench, benches, code, sole
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.serving import serving

SPEAK = """
import ctypes, os, subprocess, sys
libc = ctypes.CDLL(None)
me = env.state.trial_id
print(f"python {me}")
print(f"error {me}", file=sys.stderr)
libc.printf(f"c {me}\\n".encode())
os.write(1, f"descriptor {me}\\n".encode())
subprocess.run(["echo", f"child {me}"])
libc.printf(f"c without an end {me}|".encode())
sys.stdout.write(f"python without an end {me}|")
"""
"""By every way that there is, the last two without an end of line: they wait in buffers."""

WAYS = ("python", "error", "c", "descriptor", "child", "c without an end", "python without an end")


def last(result: BenchmarkResult) -> dict[str, Attempt]:
    return {trial.trial_id: trial.attempts[-1] for trial in result.trials}


def check_own(outputs: dict[str, str]) -> None:
    """Each has all that its trial printed, and nothing of another's."""
    for trial_id, text in outputs.items():
        assert [way for way in WAYS if f"{way} {trial_id}" not in text] == [], trial_id
        assert [other for other in outputs if other != trial_id and other in text] == [], trial_id


# ---- trials that end well ----


@pytest.mark.parametrize("fresh", ["fork", "spawn"])
@pytest.mark.parametrize("reuse", ["trial", "worker"])
def test_a_graded_trial_keeps_what_it_printed_and_nothing_of_the_others(fresh: Any, reuse: Any, tmp_path: Path) -> None:
    config = WorkerPoolConfig(size=2, fresh=fresh, reuse=reuse, log_dir=tmp_path / "logs")
    limits = {"trials_per_task": 3, "max_concurrency": 4, "max_concurrency_per_task": 3, "worker_pool": config}
    result = bench(benches(a="process", b="process"), code(SPEAK), tmp_path, **limits)
    assert result.coverage.complete
    check_own({trial_id: attempt.output for trial_id, attempt in last(result).items()})
    journal = open_session(tmp_path / "sessions" / result.session_id)
    assert [trial.attempts[-1].output for trial in journal.trials] == [""] * 6  # transcripts stay on the disk
    check_own({trial.trial_id: trial.attempts[-1].output for trial in journal.whole_trials})


def speak(text: str) -> str:
    """Print a text."""
    print(text)
    return text


def graded(answer: Any = None) -> float:
    return 1.0


def build_chain() -> dict[str, Environment]:
    names = ("first", "second", "third")
    parents: dict[str, Any] = {name: {"x": InputRef(names[place])} for place, name in enumerate(names[1:])}

    def task(name: str) -> TaskDefinition:
        def set_up(env: Environment) -> None:
            print(f"set-up of {env.state.trial_id}")

        def score(answer: str) -> float:
            print(f"scoring of {name}")
            return 1.0

        given = {"input_map": parents[name]} if name in parents else {}
        return TaskDefinition(name, f"task {name}", [speak], score, "text", setup_fn=set_up, **given)

    return build_environments([task(name) for name in names], concurrency="process")


def test_tasks_of_an_episode_share_a_process_and_not_their_output(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> str:
        lab.call("speak", text="words")
        return "done"

    result = bench(build_chain, policy, tmp_path, trials_per_task=2, max_concurrency=2, worker_pool=2)
    assert result.coverage.complete
    pids = {trial.worker.trial_pid for trial in result.trials if trial.worker is not None and trial.trial_index == 0}
    assert len(pids) == 1
    for trial_id, attempt in last(result).items():
        name = trial_id.partition("#")[0]
        assert attempt.output.splitlines() == [
            f"set-up of {trial_id}", "words", f"scoring of {name}"
        ]  # fmt: skip


def test_the_end_of_it_is_kept(tmp_path: Path) -> None:
    lines = "import sys\nsys.stdout.write('x' * 1_000_000)\nprint('the end')"
    trial = sole(bench(benches(a="process"), code(lines), tmp_path, worker_pool=1))
    output = trial.attempts[0].output
    assert output.endswith("xthe end\n")
    assert len(output) == OUTPUT_TAIL


def test_a_trial_that_prints_nothing_and_one_in_the_supervisor_have_none(tmp_path: Path) -> None:
    quiet = sole(bench(benches(a="process"), code("result = 1"), tmp_path / "quiet", worker_pool=1))
    inside = sole(bench(benches(a="thread"), code("print('seen by the user')"), tmp_path / "inside"))
    assert (quiet.attempts[0].output, inside.attempts[0].output) == ("", "")


def test_reports_of_equal_runs_stay_equal_whatever_was_printed(tmp_path: Path) -> None:
    lines = "import os\nprint('process', os.getpid())"
    build = benches(a="process", b="process")
    plans: dict[str, dict[str, Any]] = {
        "serial": {},
        "pool": {"max_concurrency": 4, "max_concurrency_per_task": 2, "worker_pool": 2},
        "reused": {"max_concurrency": 2, "worker_pool": WorkerPoolConfig(size=2, reuse="worker")},
    }
    results = [
        bench(build, code(lines), tmp_path / name, trials_per_task=2, seed=7, **plan) for name, plan in plans.items()
    ]
    assert [bool(attempt.output) for attempt in last(results[1]).values()] == [True] * 4
    assert len({stable_bytes(result) for result in results}) == 1


# ---- trials that fail ----


def test_a_scorer_that_raises_and_an_agent_that_does_show_what_was_printed(tmp_path: Path) -> None:
    def stumble(lab: Any, prompt: str) -> Any:
        lab.call("python", code="print('before the fall')")
        raise RuntimeError("no more ideas")

    agent = sole(bench(benches(a="process"), stumble, tmp_path / "agent", worker_pool=1))
    assert (agent.failure, agent.attempts[0].output) == (FailureKind.AGENT, "before the fall\n")
    lines = "print('weighed')\ndef fail(): raise ValueError('no scale')\nenv.score = fail"
    scorer = sole(bench(benches(a="process"), code(lines), tmp_path / "scorer", worker_pool=1))
    assert (scorer.failure, scorer.attempts[0].output) == (FailureKind.SCORING, "weighed\n")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_death_in_a_process_that_served_others_shows_its_own_output_only() -> None:
    async with pool(reuse="worker") as workers:
        await once(workers, "print('of the first trial')")
        with pytest.raises(WorkerDied) as died:
            await once(workers, "import ctypes, os\nprint('mine'); ctypes.CDLL(None).puts(b'C too'); os.abort()")
    assert died.value.output.startswith("mine\nC too\n")
    assert "first trial" not in died.value.output


def refuse(env: Environment) -> None:
    print(f"set-up of {env.state.trial_id}")
    if env.task_id == "b":
        raise RuntimeError("no chemistry today")


def build_refusing() -> dict[str, Environment]:
    tasks = [TaskDefinition(name, "", [], graded, "text", setup_fn=refuse) for name in "ab"]
    return build_environments(tasks, concurrency="process")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("reuse", ["trial", "worker"])
async def test_a_set_up_that_fails_shows_its_own_output_only(reuse: str) -> None:
    async with pool(build_refusing, reuse=reuse) as workers:
        async with workers.lease() as lease:
            await lease.close_trial(await opened(lease, "a"))
        async with workers.lease() as lease:
            with pytest.raises(EnvStartError) as refused:
                await opened(lease, "b")
    assert refused.value.output == "set-up of b#0\n"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_two_trials_open_in_one_process_none_has_the_others_output() -> None:
    async with pool() as workers, workers.lease() as lease:
        one, two = await opened(lease), await opened(lease)
        await python(lease, one, "print('early one')")
        await python(lease, two, "print('two')")
        await python(lease, one, "print('late one')")
        await respond(lease, two, "print('two again'); raise ValueError")
        outputs = [(await lease.close_trial(runtime_id)).output for runtime_id in (two, one)]
    assert outputs == ["two again\n", ""]


# ---- from a server ----


def test_a_server_hands_it_over(tmp_path: Path) -> None:
    with serving("tests.support.server_envs:processes", "--pool-size", "1") as server:
        with CorralRouter(server.url) as router:
            factory = lambda context: ScriptedAgent(code(SPEAK))  # noqa: E731
            result = CorralRunner(router, agent_factory=factory, checkpoint_dir=tmp_path).bench(["a"])
    check_own({trial_id: attempt.output for trial_id, attempt in last(result).items()})
