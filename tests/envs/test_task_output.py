"""What an environment leaves to its dependents beside answer and score, and who sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corral import Environment, InputRef, TaskDefinition, build_environments
from corral.errors import ScoringError, SerializationError
from corral.runtime import TrialRuntime
from corral.tasks import task_output, visible_outputs
from corral.types import TaskTrialResult, TrialSpec


class Leaves(Environment):
    """Leaves what it was made with."""

    def __init__(self, task_id: str, left: Any = None) -> None:
        super().__init__(task_id)
        self.left = left

    def get_task_prompt(self) -> str:
        return "?"

    def score(self) -> float:
        return float(self.state.submitted_answer)

    def get_task_output(self) -> Any:
        return self.left


def submit(env: Environment, root: Path, answer: Any = 1) -> TaskTrialResult:
    runtime = TrialRuntime(env, TrialSpec("tr_1", env.task_id), root)
    try:
        return runtime.submit(answer)
    finally:
        runtime.close()


def test_it_travels_as_data_beside_answer_and_score(tmp_path: Path) -> None:
    result = submit(Leaves("a", {"steps": (1, 2), "_key": {"x": 0.1}}), tmp_path)
    assert result.state["output"] == {"steps": [1, 2], "_key": {"x": 0.1}}
    output = task_output(json.loads(json.dumps(result.state)))
    assert output == {"answer": 1, "score": 1.0, "steps": [1, 2], "_key": {"x": 0.1}}
    assert InputRef("a", "_key.x").resolve({"a": output}) == 0.1


def test_answer_and_score_are_the_trial_s_own(tmp_path: Path) -> None:
    result = submit(Leaves("a", {"answer": 9, "score": 9.0}), tmp_path, answer=0.5)
    assert task_output(result.state) == {"answer": 0.5, "score": 0.5}


def test_nothing_is_asked_for_after_a_score_of_zero_and_nothing_kept_of_nothing(tmp_path: Path) -> None:
    assert "output" not in submit(Leaves("a", "would be refused"), tmp_path, answer=0).state
    assert "output" not in submit(Leaves("a", {}), tmp_path).state


@pytest.mark.parametrize(("left", "error"), [("text", ScoringError), ({"x": object()}, SerializationError)])
def test_what_is_no_mapping_of_data_is_refused(left: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="get_task_output of task 'a'"):
        submit(Leaves("a", left), tmp_path)


def test_an_error_in_it_is_one_of_scoring(tmp_path: Path) -> None:
    class Raises(Leaves):
        def get_task_output(self) -> Any:
            return 1 / 0

    with pytest.raises(ScoringError, match="ZeroDivisionError"):
        submit(Raises("a"), tmp_path)


def test_hidden_parts_are_in_no_state_and_no_prompt(tmp_path: Path) -> None:
    inputs = {"shown": InputRef("a", "steps"), "secret": InputRef("a", "_key")}
    definition = TaskDefinition("b", "go on", [], lambda answer: 1.0, "a number", input_map=inputs)
    first = TaskDefinition("a", "begin", [], lambda answer: 1.0, "a number")
    env = build_environments([first, definition])["b"]
    outputs = {"a": {"answer": 1, "score": 1.0, "steps": 3, "_key": "s3cret"}}
    runtime = TrialRuntime(env, TrialSpec("tr_1", "b", outputs=outputs), tmp_path)
    assert runtime.env.inputs == {"shown": 3, "secret": "s3cret"}
    assert runtime.state()["dependency_outputs"] == {"a": {"answer": 1, "score": 1.0, "steps": 3}}
    assert "- shown: 3" in runtime.prompt()
    assert "s3cret" not in json.dumps([runtime.prompt(), runtime.guide(), runtime.state(), runtime.submit(1).state])
    assert runtime.close() == []


def test_visible_outputs_leave_what_is_no_mapping_alone() -> None:
    assert visible_outputs({"a": {"_x": 1, "y": {"_z": 2}}, "b": None}) == {"a": {"y": {"_z": 2}}, "b": None}
