"""The tasks and their scores, the environment's tools, the two policies, and both ways to run them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyswmm")

from corral import BenchmarkResult, CorralRunner
from corral.agents import ScriptedAgent
from corral.envs.stormwater import agents, build_envs
from corral.envs.stormwater.solver import simulate
from corral.envs.stormwater.tasks import AT_MOST, PIPES, TASKS, choice, prompt
from corral.report import stable
from corral.runtime import TrialRuntime
from corral.types import TaskTrialResult, TrialSpec
from tests.envs.runtime_lab import RuntimeLab


def run(task_id: str, root: Path, policy: Any) -> TaskTrialResult:
    runtime = TrialRuntime(build_envs()[task_id], TrialSpec("tr_1", task_id, seed=1), root)
    try:
        return runtime.submit(policy(RuntimeLab(runtime), runtime.prompt()))
    finally:
        assert runtime.close() == []


def answers(answer: Any) -> Any:
    return lambda lab, prompt: answer


@pytest.mark.parametrize("task_id", TASKS)
def test_the_expert_finds_the_best_known_design(task_id: str, tmp_path: Path) -> None:
    result = run(task_id, tmp_path, agents.expert)
    assert result.score > 0.95, result.state["feedback"]
    assert all(call["success"] for call in result.state["tool_calls"])


@pytest.mark.parametrize("task_id", TASKS)
def test_the_naive_one_is_safe_and_dear(task_id: str, tmp_path: Path) -> None:
    result = run(task_id, tmp_path, agents.naive)
    assert all(result.state["feedback"]["met"].values())
    assert 0.3 < result.score < 0.7


@pytest.mark.parametrize("task_id", TASKS)
def test_what_stands_today_fails_the_storm_or_costs_more(task_id: str, tmp_path: Path) -> None:
    score = run(task_id, tmp_path, answers(TASKS[task_id].start())).score
    assert score < 0.75


def test_a_design_that_fails_is_worth_the_requirements_that_it_meets(tmp_path: Path) -> None:
    small_pond = {"POND": 700, "OUTLET": 0.27, "C2": 0.6}
    result = run("storm-pond", tmp_path, answers(json.dumps(small_pond)))
    assert list(result.state["feedback"]["met"].values()) == [True, False, False]
    assert result.score == pytest.approx(AT_MOST / 3)


@pytest.mark.parametrize(
    ("answer", "feedback"),
    [
        ("no idea", "no design"),
        (None, "a JSON object"),
        ({"C4": 0.9, "C5": 0.9}, "exactly these items: C4"),
        ({}, "exactly these items"),
        ({"C4": "wide"}, "must be a number"),
        ({"C4": True}, "must be a number"),
        ({"C4": 0.8}, "C4 can be 0.3, "),
        ('{"C4": NaN}', "C4 can be"),
    ],
)
def test_an_answer_that_is_no_design_scores_nothing_and_says_why(answer: Any, feedback: str, tmp_path: Path) -> None:
    result = run("storm-one-pipe", tmp_path, answers(answer))
    assert result.score == 0.0
    assert feedback in result.state["feedback"]


@pytest.mark.parametrize("task_id", TASKS)
def test_the_prompt_says_what_to_choose_and_what_is_required(task_id: str) -> None:
    task = TASKS[task_id]
    text = prompt(task)
    assert all(f"- {item.name}: " in text for item in task.items)
    assert all(requirement.text in text for requirement in task.requirements)
    assert f"{task.best:g}" not in text


def test_a_larger_option_costs_more() -> None:
    for item in (item for task in TASKS.values() for item in task.items if item.price or item.length):
        costs = [item.cost(option) for option in item.options]
        assert costs == sorted(costs)
        assert len(set(costs)) == len(costs)
    assert choice(TASKS["storm-pond"].items[0], 1050) == 1050.0


def test_tools_change_simulate_and_read(tmp_path: Path) -> None:
    runtime = TrialRuntime(build_envs()["storm-one-pipe"], TrialSpec("tr_1", "storm-one-pipe"), tmp_path)
    lab = RuntimeLab(runtime)
    told = lab.call("describe_network")
    assert told["junctions"][3] == {"name": "J4", "invert m": "99.80", "rim above invert m": "2.4"}
    assert list(map(float, told["cost of each option"]["C4"])) == list(PIPES)
    assert lab.call("show_design") == {"C4": 0.45}
    with pytest.raises(RuntimeError, match=r"call simulate\(\)"):
        lab.call("read_series", name="J4")
    before = lab.call("simulate")
    assert before["met"] == {"no junction floods": False}
    assert before["nodes"]["J4"]["flooding_m3"] > 500
    assert lab.call("change", item="C4", value=0.9) == {"C4": 0.9}
    after = lab.call("simulate")
    assert after["met"] == {"no junction floods": True}
    assert after["cost"] > before["cost"]
    depth = lab.call("read_series", name="J4", every_minutes=1)["values"]
    assert max(depth) == pytest.approx(after["nodes"]["J4"]["max_depth_m"], abs=0.05)
    assert len(lab.call("read_series", name="C4", every_minutes=30)["values"]) == 6
    for arguments, error in [
        ({"item": "C1", "value": 0.9}, "'C1' cannot be changed; C4 can"),
        ({"item": "C4", "value": 0.8}, "C4 can be"),
    ]:
        with pytest.raises(RuntimeError, match=error):
            lab.call("change", **arguments)
    with pytest.raises(RuntimeError, match="there is no 'J9'"):
        lab.call("read_series", name="J9")
    assert runtime.close() == []


def test_trials_do_not_share_a_design(tmp_path: Path) -> None:
    env = build_envs()["storm-one-pipe"]
    one, two = (TrialRuntime(env, TrialSpec(f"tr_{n}", "storm-one-pipe"), tmp_path) for n in (1, 2))
    RuntimeLab(one).call("change", item="C4", value=1.2)
    assert RuntimeLab(two).call("show_design") == {"C4": 0.45}
    one.close()
    two.close()


@pytest.mark.slow
def test_no_design_near_the_best_known_one_is_cheaper(tmp_path: Path) -> None:
    task = TASKS["storm-trunk"]
    best = json.loads(run("storm-trunk", tmp_path, agents.expert).state["submitted_answer"])
    near = [[p for p in PIPES if abs(PIPES.index(p) - PIPES.index(d)) <= 1] for d in best.values()]
    for sizes in itertools.product(*near):
        design = dict(zip(best, sizes, strict=True))
        if task.cost(design, {}) < task.best - 1:
            run_ = simulate(task.text(design), tmp_path)
            assert not task.requirements[0].met({"flooding": run_.flooding}), design


# Both ways to run it.

QUICK = ["storm-one-pipe", "storm-outlet"]


def bench(root: Path, **options: Any) -> BenchmarkResult:
    runner = CorralRunner(build_envs, agent_factory=lambda context: ScriptedAgent(agents.expert), checkpoint_dir=root)
    return runner.bench(QUICK, seed=3, **options)


def report_of(result: BenchmarkResult, path: Path) -> Any:
    result.generate_report(path)
    return stable(json.loads(path.read_text("utf-8")))


def test_a_pool_of_two_and_no_pool_give_the_same_report(tmp_path: Path) -> None:
    pooled = bench(tmp_path / "a", worker_pool=2, max_concurrency=4, trials_per_task=3, max_concurrency_per_task=2)
    plain = bench(tmp_path / "b", max_concurrency=4, trials_per_task=3, max_concurrency_per_task=2)
    assert [trial.score for trial in pooled.trials] == [1.0] * 6
    assert all(trial.worker is not None for trial in pooled.trials)
    assert all(trial.worker is None for trial in plain.trials)
    assert report_of(pooled, tmp_path / "a.json") == report_of(plain, tmp_path / "b.json")
