"""What a trial leaves behind in a process that serves others after it is said in its record."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corral import BenchmarkResult
from corral.pool import WorkerPoolConfig
from corral.pool.traces import Traces
from corral.report import stable_bytes
from tests.support import leaky
from tests.support.benches import bench, benches
from tests.support.pool_driving import once, opened, pool, python
from tests.support.pool_waiting import eventually

LEFT = [
    ("entry", "module globals tests.support.leaky.table"),
    ("same size", "module globals tests.support.leaky.table"),
    ("attribute", "module globals tests.support.leaky.engine"),
    ("class", "module globals tests.support.leaky.Leaky"),
    ("dice", "module globals tests.support.leaky.dice"),
    ("numbers", "module globals tests.support.leaky.numbers"),
    ("variable", "environment variables CORRAL_TEST_LEFT"),
    ("handler", "signal handlers SIGALRM"),
    ("directory", "the current directory /"),
    ("thread", "threads leaky helper"),
    ("descriptor", "open descriptors "),
]


def run(folder: Path, wanted: list[str], reuse: Any, *, call: str = "leave") -> BenchmarkResult:
    """One trial after the other; each leaves the next of what is wanted."""
    left = iter(wanted)

    def policy(lab: Any, prompt: str) -> Any:
        return lab.call("leave", what=next(left)) if call == "leave" else lab.call(call)

    config = WorkerPoolConfig(size=1, reuse=reuse)
    return bench(leaky.build, policy, folder, worker_pool=config, trials_per_task=len(wanted), seed=1)


def test_each_thing_left_is_named_by_the_trial_that_left_it(tmp_path: Path) -> None:
    kinds = [kind for kind, _ in LEFT]
    result = run(tmp_path, [*kinds, "nothing"], "worker")
    *trials, clean = result.trials
    for trial, (kind, says) in zip(trials, LEFT, strict=True):
        (warning,) = trial.warnings
        assert warning.startswith("left behind in its process, which later trials share: "), kind
        assert says in warning, kind
        assert "; " not in warning, kind
        assert trial.graded
    assert clean.warnings == ()
    assert len({trial.worker.trial_pid for trial in result.trials if trial.worker}) == 1


def test_a_fresh_process_has_nothing_to_say_and_the_reports_are_equal(tmp_path: Path) -> None:
    kinds = [kind for kind, _ in LEFT]
    fresh = run(tmp_path / "fresh", kinds, "trial")
    assert [trial.warnings for trial in fresh.trials] == [()] * len(kinds)
    assert stable_bytes(fresh) == stable_bytes(run(tmp_path / "reused", kinds, "worker"))


def test_global_generators_are_given_anew_and_are_no_trace(tmp_path: Path) -> None:
    drawn = [run(tmp_path / reuse, ["drawn"] * 3, reuse, call="draw") for reuse in ("trial", "worker")]
    first, second = ([trial.state["submitted_answer"] for trial in result.trials] for result in drawn)
    assert first == second
    assert len({tuple(pair) for pair in first}) == 3
    assert [trial.warnings for trial in drawn[1].trials] == [()] * 3


def test_what_each_kind_of_process_shows_the_next_trial(tmp_path: Path) -> None:
    """A process of its own shows nothing; a reused one all but the directory, which is each trial's own."""

    def look(reuse: Any) -> Any:
        steps = iter(["variable", "directory", "entry", None])

        def policy(lab: Any, prompt: str) -> Any:
            step = next(steps)
            return lab.call("leave", what=step) if step else lab.call("look")

        config = WorkerPoolConfig(size=1, reuse=reuse)
        trials = bench(leaky.build, policy, tmp_path / reuse, worker_pool=config, trials_per_task=4).trials
        return list(trials)[-1].state["submitted_answer"]

    assert look("trial") == [None, True, ["one"]]
    assert look("worker") == ["x", True, ["one", "two"]]


def test_a_look_calls_no_code_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    class Touchy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(leaky, "kept", [Touchy(), list(range(1_000_000)), {n: [n] for n in range(100_000)}])
    traces = Traces(frozenset({"tests"}))
    assert traces.left_until(Traces(frozenset({"tests"}))) is None
    assert "tests.support.leaky" in sys.modules


def test_what_a_look_costs_grows_with_the_globals_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laboratory of 300 modules with 40 globals each: looking for what is left costs as much as the first look."""
    for number in range(300):
        module = ModuleType(f"laboratory.part{number}")
        vars(module).update({f"name{place}": [number, place] for place in range(40)})
        monkeypatch.setitem(sys.modules, module.__name__, module)
    traces = Traces(frozenset({"laboratory"}))
    vars(sys.modules["laboratory.part7"])["name3"] = "left"

    def seconds(look: Callable[[], object]) -> float:
        began = time.process_time()
        look()
        return time.process_time() - began

    left = re.findall(r"laboratory\.[\w.]+", str(traces.left_until(Traces(frozenset({"laboratory"})))))
    assert left == ["laboratory.part7.name3"]  # nothing else, in 36,000 objects
    first = min(seconds(lambda: Traces(frozenset({"laboratory"}))) for _ in range(3))
    assert min(seconds(lambda: traces.left_until(Traces(frozenset({"laboratory"})))) for _ in range(3)) < 10 * first


@pytest.mark.anyio
async def test_what_a_thread_does_between_two_trials_is_none_of_the_next_ones(tmp_path: Path) -> None:
    begin = f"""
        import pathlib, threading, time
        from tests.support import pool_envs
        def later():
            while not pathlib.Path({str(tmp_path / "go")!r}).exists():
                time.sleep(0.01)
            pool_envs.stained.append(0)
            pathlib.Path({str(tmp_path / "done")!r}).touch()
            time.sleep(60)
        threading.Thread(target=later, daemon=True).start()
    """
    async with pool(reuse="worker") as workers:
        warnings = []
        for code in (begin, "result = 1", "stained.append(1)", "result = 2"):
            async with workers.lease() as lease:
                runtime_id = await opened(lease)
                await python(lease, runtime_id, code)
                warnings.append((await lease.close_trial(runtime_id)).warnings)
            (tmp_path / "go").touch()
            await eventually((tmp_path / "done").exists)
    assert ["threads" in str(given) for given in warnings] == [True, False, False, False]
    assert ["pool_envs.stained" in str(given) for given in warnings] == [False, False, True, False]


# ---- memory ----


def test_a_process_that_leaks_is_renewed_before_the_limit_hurts_anyone(tmp_path: Path) -> None:
    """20 MB stay behind in each trial; a process is left at half of the limit, and no trial is charged."""

    def policy(lab: Any, prompt: str) -> Any:
        return lab.call(
            "python", code="import sys\nsys.left = [*getattr(sys, 'left', []), bytearray(b'x' * 20_000_000)]"
        )

    config = WorkerPoolConfig(size=1, reuse="worker", memory_limit="300MB")
    result = bench(benches(a="process"), policy, tmp_path, worker_pool=config, trials_per_task=25)
    pids = [trial.worker.trial_pid for trial in result.trials if trial.worker]
    assert result.coverage.complete
    assert {len(trial.attempts) for trial in result.trials} == {1}
    assert 3 <= len(set(pids)) <= 15
    peaks = [trial.attempts[0].peak_rss for trial in result.trials]
    assert max(peak for peak in peaks if peak) < 300_000_000


@pytest.mark.anyio
async def test_an_episode_keeps_its_process_however_much_it_holds() -> None:
    """Its tasks build on each other's state: only between leases is a process left for its memory."""
    hold = "import sys, os\nsys.held = bytearray()\nfor _ in range(18): sys.held += b'x' * 10**7\nresult = os.getpid()"
    look = "import sys, os\nresult = [os.getpid(), len(getattr(sys, 'held', b''))]"
    async with pool(reuse="worker", memory_limit="300MB") as workers:
        async with workers.lease() as lease:
            pid = await python(lease, await opened(lease, "a"), hold)
            assert await python(lease, await opened(lease, "b"), look) == [pid, 180_000_000]
        assert await once(workers, look) != [pid, 180_000_000]
