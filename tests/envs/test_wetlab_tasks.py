"""Tasks, scores, answers, and the environment with its two scripted agents."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

pytest.importorskip("phreeqc")

from corral.envs.wetlab import agents, build_envs
from corral.envs.wetlab.answers import parse_ions
from corral.envs.wetlab.chain import chain_tasks
from corral.envs.wetlab.environment import WetlabEnvironment
from corral.envs.wetlab.reference import TIE_ML, TIE_PORES
from corral.envs.wetlab.tasks import ANIONS, CATIONS, default_tasks, prompt, score_ions, score_order
from corral.types import ToolResponse, TrialContext
from tests.envs.wetlab_lab import BenchLab

TASKS = default_tasks()
ORDERS = [name for name, task in TASKS.items() if task.kind in ("titration", "column")]


def env(name: str) -> WetlabEnvironment:
    return WetlabEnvironment(TASKS[name])


@pytest.mark.parametrize(
    ("answer", "ions"),
    [
        ("Ag+, Pb+2", ["Ag+", "Pb+2"]),
        ("Pb2+; Ag+", ["Pb+2", "Ag+"]),
        ("Pb²⁺ and Hg₂²⁺", ["Pb+2", "Hg2+2"]),
        ("Hg2+", ["Hg+2"]),
        ("Hg^2+, Hg2^2+", ["Hg+2", "Hg2+2"]),
        ("mercury(I), mercury (II)", ["Hg2+2", "Hg+2"]),
        ("The sample contains silver and lead(II).", ["Ag+", "Pb+2"]),
        ("1. Fe3+\n2. Cu++\n3. Zn", ["Fe+3", "Cu+2", "Zn+2"]),
        ("Fe(OH)3 > Al(OH)3 > Mg(OH)2", ["Fe+3", "Al+3", "Mg+2"]),
        ("K+ -> Cu2+ → Pb2+", ["K+", "Cu+2", "Pb+2"]),
        ("**NH4+**, NH₄⁺", ["NH4+"]),
        ("SO4^{2-}", ["SO4-2"]),
        ("I think it is iodide", ["I-"]),
        ("I\u2212", ["I-"]),
        ("Ag+, Xx+3", ["Ag+", "Xx+3"]),
        ("Ag+, H+, NO3-", ["Ag+"]),
        ("Co, Cr, Cl-", ["Co+2", "Cr+3", "Cl-"]),
        ("group-1 and Group-2 cations: none", []),
        ("", []),
        (["Ag+", "Pb+2"], ["Ag+", "Pb+2"]),
        (None, []),
    ],
)
def test_answers_are_understood(answer: object, ions: list[str]) -> None:
    assert parse_ions(answer) == ions


@pytest.mark.parametrize("ion", [*CATIONS, *ANIONS])
def test_every_ion_is_understood_as_it_is_written_in_prompts(ion: str) -> None:
    assert parse_ions(ion) == [ion]


def test_score_over_ions() -> None:
    assert score_ions(["Ag+", "Pb+2"], ["Pb+2", "Ag+"])[0] == 1.0
    assert score_ions(["Ag+"], ["Pb+2", "Ag+"]) == (2 / 3, {"precision": 1.0, "recall": 0.5, "f1": 2 / 3})
    assert score_ions(["Ag+", "Cu+2"], ["Ag+"])[0] == pytest.approx(2 / 3)
    assert score_ions([], ["Ag+"])[0] == 0.0


def test_score_over_orders() -> None:
    at = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 3.05}
    assert score_order(["a", "b", "c", "d"], at, 0.1)[0] == 1.0
    assert score_order(["a", "b", "d", "c"], at, 0.1)[0] == 1.0
    assert score_order(["b", "a", "c", "d"], at, 0.1)[0] == pytest.approx(5 / 6)
    assert score_order(["a", "b", "c"], at, 0.1)[0] == pytest.approx(3 / 6)
    assert score_order(["a", "b", "c", "d", "e"], at, 0.1)[0] == pytest.approx(4 / 5)
    assert score_order([], at, 0.1)[0] == 0.0


def test_the_plan_has_three_levels_and_at_least_twelve_tasks() -> None:
    assert len(TASKS) >= 12
    assert {task.level for task in TASKS.values()} == {1, 2, 3}
    assert {task.kind for task in TASKS.values()} == {"ions", "anion", "titration", "column"}
    assert all(re.fullmatch(r"[a-z0-9-]+", name) and name == task.id for name, task in TASKS.items())
    for task in TASKS.values():
        assert set(task.answer) <= set(task.possible)


def test_tasks_are_drawn_by_seed() -> None:
    assert default_tasks(0) == TASKS
    assert default_tasks(1) != TASKS
    assert list(default_tasks(1)) == list(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_neither_prompt_nor_id_tells_the_answer(name: str) -> None:
    task = TASKS[name]
    text = prompt(task)
    assert ", ".join(task.possible) in text
    shown = text.replace(", ".join(task.possible), "")
    assert '"sample"' in shown
    assert str(task.sample) not in shown
    assert not any(parse_ions(part) for part in name.split("-"))


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_a_reference_experiment_is_clear(name: str) -> None:
    at, tie = env(name).reference()
    assert set(at) == set(TASKS[name].answer)
    times = sorted(at.values())
    assert min(b - a for a, b in itertools.pairwise(times)) > tie
    assert tie == (TIE_ML if TASKS[name].kind == "titration" else TIE_PORES)


@pytest.mark.parametrize("name", TASKS)
def test_the_expert_solves_it(name: str) -> None:
    trial = env(name)
    trial.state.submitted_answer = agents.expert(BenchLab(trial), trial.get_task_prompt())
    assert trial.score() == 1.0, trial.state.feedback


def test_the_careless_one_scores_clearly_less() -> None:
    scores = {}
    for name in TASKS:
        trial = env(name)
        trial.state.submitted_answer = agents.careless(BenchLab(trial), trial.get_task_prompt())
        scores[name] = trial.score()
    assert 0.2 < sum(scores.values()) / len(scores) < 0.7, scores


def test_no_tool_tells_a_formula() -> None:
    trial = env("l2-group-2")
    lab = BenchLab(trial)
    agents.expert(lab, trial.get_task_prompt())
    told = json.dumps([result for tool, result in lab.log if tool not in ("reagents", "possible_ions")])
    for solid in trial.bench.vessels["sample"]["totals"].keys() | {"CuS", "CdS", "Cu", "Cd"}:
        assert not re.search(rf"\b{re.escape(solid)}\b", told)


def test_a_trial_goes_on_after_a_failed_call_and_starts_fresh() -> None:
    first = env("l2-group-1")
    lab = BenchLab(first)
    with pytest.raises(ValueError, match="there is no vessel"):
        lab.call("measure_ph", vessel="nowhere")
    lab.call("split", vessel="sample", new_vessel="a", volume_ml=2)
    second = first.new_instance()
    assert set(second.bench.inventory()) == {"sample"}
    assert set(first.bench.inventory()) == {"sample", "a"}


def test_tools_have_schemas() -> None:
    tools = env("l3-column-1").get_tools()
    assert {"reagents", "possible_ions", "inventory", "add", "split", "discard", "centrifuge", "bubble_h2s", "boil",
            "digest_nitric", "oxidise_h2o2", "measure_ph", "flame_test", "flame_test_cobalt_glass", "titrate",
            "solubility_scan", "run_column", "pour"} == set(tools)  # fmt: skip
    schema = tools["run_column"].schema()["function"]
    assert schema["parameters"]["properties"]["packing"]["enum"] == ["cation resin", "sand"]
    assert all(tool.schema()["function"]["description"] for tool in tools.values())
    assert all(p["description"] for p in schema["parameters"]["properties"].values())


def test_another_environment_starts_from_an_exported_vessel() -> None:
    first = env("l2-group-1")
    first.bench.add("sample", "HCl 6M", 2)
    first.bench.centrifuge("sample", "filtrate", "residue")
    left = json.loads(json.dumps(first.export_sample("filtrate")))
    second = WetlabEnvironment(TASKS["l2-group-2"], {"sample": left})
    assert second.bench.vessels == {"sample": left}
    assert second.new_instance().bench.add("sample", "NH3 6M", 1) == second.bench.add("sample", "NH3 6M", 1)
    assert first.export_sample("residue")["pH"] is None


def test_feedback_says_what_was_understood() -> None:
    trial = env("l1-salt-1")
    trial.state.submitted_answer = "potassium chloride"
    assert trial.score() == 1.0
    assert trial.state.feedback == {"understood": ["Cl-"], "precision": 1.0, "recall": 1.0, "f1": 1.0}
    trial.state.submitted_answer = None
    assert trial.score() == 0.0


def test_build_envs_is_the_plan_and_process_class() -> None:
    envs = build_envs()
    assert list(envs) == [*TASKS, *chain_tasks()]
    assert {e.concurrency for e in envs.values()} == {"process"}


class OneTask:
    """A trial's router, as far as a scripted agent needs one."""

    def __init__(self, trial: WetlabEnvironment):
        self._lab = BenchLab(trial)

    def get_task_prompt(self, task_id: str) -> str:
        return self._lab.env.get_task_prompt()

    def get_available_tools_for_task(self, task_id: str) -> dict[str, Any]:
        return {"tools": [tool.schema() for tool in self._lab.env.get_tools().values()]}

    def execute_tool(self, task_id: str, tool: str, arguments: dict[str, Any]) -> ToolResponse:
        return ToolResponse(True, self._lab.call(tool, **arguments))


@pytest.mark.parametrize(("factory", "score"), [(agents.expert_agent, 1.0), (agents.careless_agent, 0.5)])
def test_the_factories_make_agents_that_run(factory: Any, score: float) -> None:
    trial = env("l2-group-1")
    context = TrialContext("l2-group-1", 0, "session", "run", 1)
    trial.state.submitted_answer = factory(context).run(OneTask(trial), "l2-group-1")
    assert trial.score() == score
    assert factory(context, think_time=0.5).think_time == 0.5
