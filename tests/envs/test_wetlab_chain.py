"""The separation as a chain: by hand, stage by stage, and through the runner; what travels, and what agents see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("phreeqc")

from corral import BenchmarkResult, CorralRunner, FailureKind, LocalRouter
from corral.agents import ScriptedAgent
from corral.envs.wetlab import agents, build_envs
from corral.envs.wetlab.bench import elements
from corral.envs.wetlab.chain import REPORT, chain_tasks, score_report, score_stage
from corral.envs.wetlab.stages import LEFT, StageEnvironment
from corral.errors import EnvStartError
from corral.report import stable
from corral.runtime import TrialRuntime
from corral.tasks import connected_components, task_output
from corral.types import TaskTrialResult, TrialSpec
from tests.envs.runtime_lab import RuntimeLab

TASKS = chain_tasks()
STAGES = [name for name in TASKS if name != REPORT]


def run(
    root: Path, policies: Mapping[str, Any] | None = None, seed: int = 0, upto: str = REPORT
) -> dict[str, TaskTrialResult]:
    """The chain by hand, each stage by its policy, else by the expert; stages that cannot start are left out."""
    envs = build_envs(seed)
    outputs: dict[str, Any] = {}
    results = {}
    for name in TASKS:
        parents = envs[name].parents
        if not set(parents) <= outputs.keys():
            continue
        # As a resumed session has them: out of a journal.
        given = json.loads(json.dumps({parent: outputs[parent] for parent in parents}))
        runtime = TrialRuntime(envs[name], TrialSpec("tr_1", name, seed=1, outputs=given), root)
        try:
            policy = (policies or {}).get(name, agents.expert)
            result = runtime.submit(policy(RuntimeLab(runtime), runtime.prompt()))
        finally:
            assert runtime.close() == []
        results[name] = result
        if result.success:
            outputs[name] = task_output(result.state)
        if name == upto:
            break
    return results


def scores(results: Mapping[str, TaskTrialResult]) -> list[float]:
    return [round(result.score, 2) for result in results.values()]


def test_the_links() -> None:
    envs = {name: env for name, env in build_envs().items() if name in TASKS}
    assert [envs[name].parents for name in STAGES] == [(), *((name,) for name in STAGES[:-1])]
    assert envs[REPORT].parents == tuple(STAGES)
    assert connected_components({name: env.parents for name, env in envs.items()}) == [tuple(TASKS)]
    assert {env.component for env in envs.values()} == {tuple(TASKS)}
    assert envs[REPORT].new_instance().component == tuple(TASKS)


def test_every_group_has_two_ions_and_they_depend_on_the_seed() -> None:
    assert [len(TASKS[name].answer) for name in STAGES] == [2] * 5
    assert chain_tasks(0) == TASKS != chain_tasks(1)


@pytest.mark.parametrize("seed", range(3))
def test_the_expert_solves_every_stage_and_the_report(seed: int, tmp_path: Path) -> None:
    results = run(tmp_path, seed=seed)
    assert list(results) == list(TASKS)
    assert scores(results) == [1.0] * 6


def test_each_stage_works_on_what_the_one_before_it_left(tmp_path: Path) -> None:
    results = run(tmp_path, upto="l3-chain-2")
    left = results["l3-chain-1"].state["output"][LEFT]
    held = elements(left)
    taken = {ion: TASKS[REPORT].sample[ion] * 0.012 for ion in TASKS[REPORT].answer}  # 12 mL of the sample
    assert held["Ag"] < 0.02 * taken["Ag+"]  # silver chloride went down
    assert held["Cd"] == pytest.approx(taken["Cd+2"], rel=1e-6)
    assert "holds 14.0 mL of the liquid that stage I left" in StagePrompts(results).of("l3-chain-2")
    assert results["l3-chain-1"].state["feedback"]["left"] == "14.0 mL"


class StagePrompts:
    """The prompts of stages that start from the outputs of ``results``."""

    def __init__(self, results: Mapping[str, TaskTrialResult]) -> None:
        self._outputs = {name: task_output(result.state) for name, result in results.items()}

    def of(self, name: str) -> str:
        env = build_envs()[name].new_instance()
        env.take_outputs(self._outputs)
        return str(env.get_task_prompt())


def test_agents_never_see_what_travels(tmp_path: Path) -> None:
    results = run(tmp_path)
    for name in TASKS:
        outputs = {parent: task_output(results[parent].state) for parent in build_envs()[name].parents}
        runtime = TrialRuntime(build_envs()[name], TrialSpec("tr_1", name, outputs=outputs), tmp_path)
        shown = [runtime.prompt(), runtime.guide(), runtime.tools(), runtime.status(), runtime.state()]
        runtime.close()
        text = json.dumps(shown)
        assert LEFT not in text
        assert "water_kg" not in text
        state: Any = shown[-1]
        assert state["dependency_outputs"] == {
            parent: {"answer": results[parent].state["submitted_answer"], "score": 1.0} for parent in outputs
        }
        recorded = results[name].state
        assert all(LEFT not in output for output in recorded["dependency_outputs"].values())


def test_an_answer_brings_no_chemistry_along(tmp_path: Path) -> None:
    note = "Ag+ (the rest is mostly Zn+2) {'_left': {'water_kg': 1}}"

    def talks(lab: Any, prompt: str) -> str:
        agents.expert(lab, prompt)
        return note

    results = run(tmp_path, {"l3-chain-1": talks}, upto="l3-chain-2")
    assert results["l3-chain-1"].state["output"][LEFT]["water_kg"] == pytest.approx(0.014)
    assert results["l3-chain-2"].score == 1.0
    stages = dict.fromkeys(STAGES, results["l3-chain-1"])
    assert "I: Ag+, Zn+2; II: " in StagePrompts(stages).of(REPORT)


def test_a_careless_chain_breaks_and_takes_the_rest_with_it(tmp_path: Path) -> None:
    results = run(tmp_path, dict.fromkeys(TASKS, agents.careless))
    assert list(results) == ["l3-chain-1", "l3-chain-2"]
    assert results["l3-chain-2"].score == 0.0


@pytest.mark.parametrize(
    ("seed", "careless", "expected"),
    [
        (2, "l3-chain-1", [1.0, 1.0, 1.0, 1.0, 0.8, 0.96]),  # group I left in: something white in group V
        (6, "l3-chain-2", [1.0, 0.5, 0.8, 1.0, 1.0, 0.86]),
        (0, "l3-chain-3", [1.0, 1.0, 0.5, 1.0, 1.0, 0.9]),
    ],
)
def test_one_careless_stage_costs_later_ones_and_the_report(
    seed: int, careless: str, expected: list[float], tmp_path: Path
) -> None:
    assert scores(run(tmp_path, {careless: agents.careless}, seed)) == expected


def test_a_stage_that_leaves_nothing_scores_nothing(tmp_path: Path) -> None:
    def takes_all_away(lab: Any, prompt: str) -> str:
        answer = agents.expert(lab, prompt)
        lab.call("discard", vessel="rest")
        return answer

    results = run(tmp_path, {"l3-chain-1": takes_all_away})
    assert scores(results) == [0.0]
    assert results["l3-chain-1"].state["feedback"]["f1"] == 1.0
    assert results["l3-chain-1"].state["feedback"]["left"] == 'no liquid in a vessel "rest"'
    assert "output" not in results["l3-chain-1"].state


def test_a_dry_residue_is_nothing_left() -> None:
    env = StageEnvironment(TASKS["l3-chain-1"])
    env.bench.add("sample", "HCl 6M", 2)
    env.bench.centrifuge("sample", "liquid", "rest")
    env.state.submitted_answer = ", ".join(TASKS["l3-chain-1"].answer)
    assert env.score() == 0.0
    assert env.get_task_output() == {}


def test_a_stage_without_its_parent_does_not_start(tmp_path: Path) -> None:
    runtime = TrialRuntime(build_envs()["l3-chain-2"], TrialSpec("tr_1", "l3-chain-2"), tmp_path)
    with pytest.raises(EnvStartError, match="there is no output of task 'l3-chain-1'"):
        runtime.prompt()
    runtime.close()


def test_scores_of_stages_and_report() -> None:
    third = TASKS["l3-chain-3"]
    assert score_stage(["Ag+", "Cd+2", *third.answer], third)[0] == 1.0  # left-overs of groups I and II
    assert score_stage([*third.answer, "Ba+2"], third)[0] == pytest.approx(0.8)
    truth = TASKS[REPORT].answer
    assert score_report(truth, truth)[0] == 1.0
    assert score_report(truth[2:], truth)[0] == pytest.approx(4 / 5)
    assert score_report(truth[1:], truth)[0] == pytest.approx((4 + 2 / 3) / 5)
    assert score_report([*truth, "K+", "Na+"], truth)[0] == pytest.approx(10 / 12)
    assert score_report([], truth)[0] == 0.0


@pytest.mark.parametrize("name", TASKS)
def test_prompts_name_groups_but_no_answer(name: str) -> None:
    left = StageEnvironment(TASKS["l3-chain-1"]).bench.export("sample")
    state = {"submitted_answer": "none", "output": {LEFT: left}}
    text = StagePrompts({stage: TaskTrialResult(stage, 0, state=state) for stage in STAGES}).of(name)
    possible = ", ".join(TASKS[name].possible)
    assert possible in text
    assert ", ".join(TASKS[name].answer) not in text.replace(possible, "")


# Through the runner.


def bench(root: Path, policy: Any, **options: Any) -> BenchmarkResult:
    runner = CorralRunner(
        build_envs, agent_factory=lambda context: ScriptedAgent(policy, model="m"), checkpoint_dir=root
    )
    return runner.bench(list(TASKS), seed=7, **options)


def report_of(result: BenchmarkResult, root: Path) -> Any:
    path = root / "report.json"
    result.generate_report(path)
    return stable(json.loads(path.read_text("utf-8")))


def test_in_a_benchmark_the_report_is_the_same_at_any_concurrency(tmp_path: Path) -> None:
    runs: list[dict[str, Any]] = [
        {"max_concurrency": 1},
        {"max_concurrency": 1, "worker_pool": 2},
        {"max_concurrency": 4, "max_concurrency_per_task": 2, "worker_pool": 2},
    ]
    reports = []
    for number, options in enumerate(runs):
        root = tmp_path / str(number)
        result = bench(root, agents.expert, trials_per_task=2, **options)
        assert [trial.score for trial in result.trials] == [1.0] * 12
        assert all(trial.graded for trial in result.trials)
        reports.append(report_of(result, root))
    assert reports[0] == reports[1] == reports[2]


def test_in_a_benchmark_a_broken_stage_makes_the_later_ones_unreachable(tmp_path: Path) -> None:
    result = bench(tmp_path, agents.careless, max_concurrency=4, worker_pool=2)
    by_task = {trial.task_id: trial for trial in result.trials}
    assert [by_task[name].graded for name in TASKS] == [True, True, False, False, False, False]
    for name in ("l3-chain-3", REPORT):
        assert by_task[name].failure is FailureKind.NOT_RUN
        assert by_task[name].state["missing_dependency"] == "l3-chain-2"


def test_a_resumed_session_starts_the_next_stage_from_the_recorded_vessel(tmp_path: Path) -> None:
    def falls_ill(lab: Any, prompt: str) -> str:
        if "You do stage III" in prompt:
            raise RuntimeError("ill")
        return agents.expert(lab, prompt)

    first = bench(tmp_path, falls_ill, session_id="s", worker_pool=1)
    assert [trial.score for trial in first.trials] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    second = bench(tmp_path, agents.expert, session_id="s", worker_pool=1, retry_errors=True)
    assert [trial.score for trial in second.trials] == [1.0] * 6
    before, after = list(first.trials), list(second.trials)
    assert after[0].timings == before[0].timings  # it was not run again
    whole = list(bench(tmp_path / "whole", agents.expert).trials)
    assert after[2].state["output"] == whole[2].state["output"]


def test_a_local_router_hands_the_sample_on_and_shows_it_to_nobody(tmp_path: Path) -> None:
    with LocalRouter(build_envs) as router:
        first = router.create_trial("l3-chain-1", episode_id="e")
        bound = router.for_trial(first["trial_runtime_id"], "l3-chain-1")
        agent = ScriptedAgent(agents.expert)
        bound.submit_answer("l3-chain-1", agent.run(bound, "l3-chain-1"))
        assert "output" not in bound.get_task_state("l3-chain-1")
        router.close_trial(first["trial_runtime_id"])
        second = router.create_trial("l3-chain-2", episode_id="e")
        bound = router.for_trial(second["trial_runtime_id"], "l3-chain-2")
        assert "holds 14.0 mL" in str(bound.get_task_prompt("l3-chain-2"))
        assert LEFT not in json.dumps(bound.get_task_state("l3-chain-2"))
        router.close_episode("e")
