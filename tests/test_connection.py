"""Runs against routers that others wrote: sync and async, with trial runtimes and without."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from corral import BenchmarkResult, ConcurrencyConfig, CorralRunner, LocalRouter
from corral.agents import AgentRunResult, BaseAgent
from corral.connection import source_of
from corral.errors import ConfigError
from corral.source import EnvironmentSource
from tests.support.benches import Bench, bench, benches, sole
from tests.support.routers import HandWritten, WithTrials, as_async, count_to_3, count_to_3_on_loop

POLICIES = pytest.mark.parametrize("policy", [count_to_3, count_to_3_on_loop], ids=["sync agent", "async agent"])
WRAPPERS = pytest.mark.parametrize("wrap", [lambda router: router, as_async], ids=["sync router", "async router"])


@POLICIES
@WRAPPERS
def test_a_router_without_trial_runtimes_runs_one_trial_of_a_task_after_the_other(
    wrap: Any, policy: Any, tmp_path: Path
) -> None:
    router = HandWritten("a", "b")
    result = bench(wrap(router), policy, tmp_path, trials_per_task=2)
    assert result.average_score() == 1
    one_trial = [("configure",), ("count",), ("count",), ("count",), ("submit",)]
    expected = [(*call, task) for task in ("a", "b", "a", "b") for call in one_trial]
    assert router.log == expected


@POLICIES
@WRAPPERS
def test_a_router_with_trial_runtimes_runs_many(wrap: Any, policy: Any, tmp_path: Path) -> None:
    router = WithTrials("a")
    limits = ConcurrencyConfig(3, per_task=3, tool_jobs_per_trial=2)
    result = bench(wrap(router), policy, tmp_path, trials_per_task=3, concurrency=limits)
    assert [trial.score for trial in result.trials] == [1, 1, 1]
    assert [trial.trial_index for trial in result.trials] == [0, 1, 2]
    trials = {f"tr_a_{i}" for i in range(3)}
    assert {call[1] for call in router.log if call[0] == "create"} == trials
    assert {call[2:] for call in router.log if call[0] == "create"} == {("None", "2")}
    assert sorted(call[1] for call in router.log if call[0] == "close") == sorted(trials)


def test_surrender_and_no_answer_by_way_of_a_router(tmp_path: Path) -> None:
    for status, calls in (("surrender", ["configure", "surrender"]), ("max_iterations", ["configure"])):
        router = HandWritten("a")
        trial = sole(bench(router, lambda lab, prompt, s=status: AgentRunResult(None, s), tmp_path / status))  # type: ignore[misc]
        assert [call[0] for call in router.log] == calls
        assert (trial.graded, trial.score, trial.surrendered) == (True, 0, status == "surrender")


class Odd(WithTrials):
    """Fails where it is told."""

    def __init__(self, where: str) -> None:
        super().__init__("a")
        self.where = where

    def create_trial(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.fail("create")
        return super().create_trial(*args, **kwargs)

    def close_trial(self, trial_runtime_id: str) -> None:
        self.fail("close")

    def for_trial(self, *args: Any, **kwargs: Any) -> Any:
        bound = super().for_trial(*args, **kwargs)
        if self.where == "submit":
            bound.submit_answer = lambda task_id, answer: {"score": 1}
        if self.where == "configure":
            bound.configure_additional_apps = lambda task_id: self.fail("configure")
        return bound

    def fail(self, where: str) -> None:
        if where == self.where:
            raise TypeError("odd")


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("create", "the router failed: TypeError: odd"),
        ("configure", "the router failed: TypeError: odd"),
        ("submit", "the router's submit_answer gave {'score': 1}, which is no TaskTrialResult"),
    ],
)
def test_a_router_that_fails_is_tried_again_and_ends_in_a_record(where: str, says: str, tmp_path: Path) -> None:
    trial = sole(bench(Odd(where), count_to_3, tmp_path))
    assert (trial.failure, trial.graded, len(trial.attempts)) == ("infrastructure", False, 2)
    assert trial.error_message == says


def test_a_router_that_cannot_close_costs_a_warning(tmp_path: Path) -> None:
    trial = sole(bench(Odd("close"), count_to_3, tmp_path))
    assert (trial.score, trial.failure) == (1, None)
    assert trial.warnings == ("closing the trial failed: TypeError: odd",)


def test_a_late_agent_cannot_act_on_the_shared_surface(tmp_path: Path) -> None:
    """The first agent goes on after its time, when the task's second trial counts already."""
    router = HandWritten("a")
    second_counts, first_has_tried = threading.Event(), threading.Event()
    late: list[type] = []
    turns = iter(["first", "second"])

    class Slow(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            if next(turns) == "first":
                second_counts.wait(20)
                try:
                    interface.execute_tool(task_id, "count", {})
                except LookupError as error:
                    late.append(type(error))
                first_has_tried.set()
                return None
            interface.execute_tool(task_id, "count", {})
            second_counts.set()
            first_has_tried.wait(20)
            return [interface.execute_tool(task_id, "count", {}).result for _ in range(2)][-1]

    hiring = CorralRunner(router, agent_factory=lambda c: Slow(), checkpoint_dir=tmp_path)
    first, second = hiring.bench(trials_per_task=2, trial_timeout=0.7).trials
    assert (first.failure, second.score) == ("trial_timeout", 1)
    assert [kind.__name__ for kind in late] == ["NotFound"]


class Served(WithTrials):
    """As a server's client is: process-class tasks, on a pool if it says so."""

    def __init__(self, pooled: bool) -> None:
        super().__init__("a", "b")
        self.pooled = pooled
        self.inside = self.most = 0
        self.changed = threading.Condition()

    def get_concurrency_modes(self) -> dict[str, str]:
        return dict.fromkeys(self.tasks, "process")

    def get_trial_worker_active(self) -> bool:
        return self.pooled

    def for_trial(self, *args: Any, **kwargs: Any) -> Any:
        bound = super().for_trial(*args, **kwargs)
        bound.configure_additional_apps = self.meet
        return bound

    def meet(self, task_id: str) -> str:
        with self.changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.most == (2 if self.pooled else 1), timeout=10)
            self.inside -= 1
        return "ready"


@pytest.mark.parametrize("pooled", [False, True])
def test_process_class_trials_of_a_server_overlap_where_it_has_a_pool(pooled: bool, tmp_path: Path) -> None:
    router = Served(pooled)
    assert bench(router, count_to_3, tmp_path, max_concurrency=2).average_score() == 1
    assert router.most == (2 if pooled else 1)


def test_a_pool_behind_a_router_without_trial_runtimes_is_of_no_use(tmp_path: Path) -> None:
    class Shared(HandWritten):
        def get_concurrency_modes(self) -> dict[str, str]:
            return dict.fromkeys(self.tasks, "process")

        def get_trial_worker_active(self) -> bool:
            return True

    with pytest.raises(ConfigError, match="process-class trials on a worker pool needs trial runtimes"):
        bench(Shared("a"), count_to_3, tmp_path, max_concurrency=2)


def test_a_mode_that_is_none_is_the_router_s_fault_and_said_so(tmp_path: Path) -> None:
    class Wrong(HandWritten):
        def get_concurrency_modes(self) -> dict[str, str]:
            return {"a": "fast"}

    with pytest.raises(ConfigError, match="task 'a': concurrency must be"):
        bench(Wrong("a"), count_to_3, tmp_path)


def test_where_environments_come_from() -> None:
    mapping = {"a": Bench("a")}
    source = source_of(mapping)
    assert isinstance(source, EnvironmentSource)
    assert source.here() == mapping
    build = benches(a="thread")
    assert source_of(build).build is build  # type: ignore[union-attr]
    with LocalRouter(build) as router:
        assert source_of(router) is router.source
    assert source_of(HandWritten("a")) is None


def test_a_local_router_runs_with_a_pool(tmp_path: Path) -> None:
    def run(router: Any) -> BenchmarkResult:
        return bench(router, lambda lab, prompt: 1, tmp_path, worker_pool=1)

    with LocalRouter(benches(a="process")) as router:
        trial = sole(run(router))
    assert trial.worker is not None
