"""The two template environments: solved by their scripted experts, and fair to others."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corral.envs import balance, orbits
from corral.runtime import TrialRuntime, describe
from corral.types import TaskTrialResult, TrialSpec


class Lab:
    """What a scripted solver calls tools on."""

    def __init__(self, runtime: TrialRuntime) -> None:
        self._runtime = runtime

    def call(self, name: str, **arguments: Any) -> Any:
        response = self._runtime.execute(name, arguments)
        if not response.success:
            raise RuntimeError(response.error)
        return response.result


def run(module: ModuleType, task_id: str, root: Path, *, answer: str | None = None, seed: int = 1) -> TaskTrialResult:
    runtime = TrialRuntime(module.build_envs()[task_id], TrialSpec("tr_1", task_id, seed=seed), root)
    try:
        runtime.configure()
        prompt = runtime.prompt()
        return runtime.submit(answer if answer is not None else module.solve(Lab(runtime), prompt))
    finally:
        assert runtime.close() == []


ALL = [(module, task_id) for module in (orbits, balance) for task_id in module.build_envs()]


@pytest.mark.parametrize(("module", "task_id"), ALL, ids=[task_id for _, task_id in ALL])
def test_the_expert_solves_it_whatever_the_seed(module: ModuleType, task_id: str, tmp_path: Path) -> None:
    assert [run(module, task_id, tmp_path, seed=seed).score for seed in range(5)] == [1.0] * 5


def without_times(result: TaskTrialResult) -> list[tuple[Any, ...]]:
    return [(c["tool"], c["arguments"], c["result"], c["error"]) for c in result.state["tool_calls"]]


@pytest.mark.parametrize(("module", "task_id"), [ALL[0], ALL[-1]])
def test_the_same_seed_gives_the_same_trial(module: ModuleType, task_id: str, tmp_path: Path) -> None:
    first, second = (run(module, task_id, tmp_path, seed=7) for _ in range(2))
    assert without_times(first) == without_times(second)


def test_noise_depends_on_the_seed(tmp_path: Path) -> None:
    first, second = (run(balance, ALL[-1][1], tmp_path, seed=seed) for seed in (1, 2))
    assert without_times(first) != without_times(second)


def test_modes_and_prompts() -> None:
    assert {info.mode for info in describe(orbits.build_envs()).values()} == {"thread"}
    infos = describe(balance.build_envs()).values()
    assert {(info.mode, info.configures) for info in infos} == {("serial", True)}


GEO = "orbits-geostationary"


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        (json.dumps({"burns": [2.4257, 1.4667]}), 1.0),
        (json.dumps({"burns": [2.0, 1.4667]}), 0.0),
        (json.dumps({"burns": [2.4257]}), 0.0),
        (json.dumps({"burns": [9.0, 0.0]}), 0.0),
        (json.dumps({"burns": "x"}), 0.0),
        ("NaN", 0.0),
        ("no idea", 0.0),
    ],
)
def test_orbits_score_the_flight_not_the_text(answer: str, score: float, tmp_path: Path) -> None:
    # 2.4257 + 1.4667 km/s: the Hohmann transfer from 300 km to geostationary height.
    result = run(orbits, GEO, tmp_path, answer=answer)
    assert result.score == score
    assert result.state["feedback"]


def test_a_costly_flight_to_the_right_orbit_is_worth_half(tmp_path: Path) -> None:
    env = orbits.Transfer("t", "Earth", 7_000.0, 7_000.0)
    env.state.submitted_answer = json.dumps({"burns": [0.0, 0.0]})
    assert env.score() == 1.0
    env.state.submitted_answer = json.dumps({"burns": [0.001, -0.001]})
    assert env.score() == 0.5


@pytest.mark.parametrize(("answer", "score"), [("50.0123", 1.0), ("50.5", 0.0), ("heavy", 0.0), ('{"m": 1}', 0.0)])
def test_balance_scores_by_closeness(answer: str, score: float, tmp_path: Path) -> None:
    assert run(balance, "balance-mass-brass-weight", tmp_path, answer=answer).score == score


def test_an_uncalibrated_balance_is_off_and_a_second_user_is_refused(tmp_path: Path) -> None:
    envs = balance.build_envs()
    task_id = "balance-mass-brass-weight"
    one = TrialRuntime(envs[task_id], TrialSpec("tr_1", task_id), tmp_path)
    two = TrialRuntime(envs[task_id], TrialSpec("tr_2", task_id), tmp_path)
    try:
        assert Lab(one).call("weigh") > 50.1
        one.configure()
        assert Lab(one).call("weigh") == pytest.approx(50.0123, abs=0.01)
        assert "in use by another trial" in str(two.execute("weigh").error)
    finally:
        one.close()
        two.close()
    assert balance.BALANCE.user is None


def test_the_sample_is_told_but_its_mass_is_not() -> None:
    env = balance.build_envs()["balance-mass-brass-weight"]
    assert "brass weight" in str(env.get_task_prompt())
    assert "50.0" not in str(env.get_task_prompt())
    assert "sample" not in env.get_tools()["weigh"].schema()["function"]["parameters"]["properties"]
