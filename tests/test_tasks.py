"""Task definitions, references into outputs, and the graph; pure."""

from __future__ import annotations

from typing import Any

import pytest

from corral.errors import ConfigError, TaskGraphError
from corral.tasks import (
    InputRef,
    TaskDefinition,
    check_unique,
    connected_components,
    missing_parents,
    parse_answer,
    task_output,
    topological_order,
)
from corral.tools import Tool

LONG = 5_000


def weigh() -> float:
    return 1.0


def define(**changes: Any) -> TaskDefinition:
    fields: dict[str, Any] = {
        "name": "t", "description": "Weigh it.", "tools": [weigh, "stir"], "scoring_fn": lambda answer: 1.0,
        "submission_format": "a number",
    }  # fmt: skip
    return TaskDefinition(**{**fields, **changes})


def test_functions_become_tools_and_names_stay() -> None:
    made = define().tools
    assert isinstance(made[0], Tool)
    assert made[1] == "stir"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": " "}, "name must be text"),
        ({"name": 3}, "name must be text"),
        ({"description": None}, "description must be text"),
        ({"submission_format": 1}, "submission_format must be text"),
        ({"scoring_fn": None}, "scoring_fn must be a function"),
        ({"prompt_fn": "x"}, "prompt_fn must be a function"),
        ({"setup_fn": 1}, "setup_fn must be a function"),
        ({"tools": "weigh"}, "tools must be a list"),
        ({"tools": [1]}, "tools must be a list"),
        ({"scoring_inputs": []}, "scoring_inputs must be a mapping"),
        ({"initial_input": {1: 2}}, "initial_input must be a mapping"),
        ({"input_map": {"x": "a"}}, r"input_map\['x'\] must be an InputRef"),
        ({"initial_input": {"x": 1}, "input_map": {"x": InputRef("a")}}, "x in initial_input and in input_map"),
        ({"resolve_answer": "yes"}, "resolve_answer must be True or False"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        define(**changes)


def test_parents_come_from_inputs_and_scoring() -> None:
    task = define(
        input_map={"x": InputRef("a", "answer.pH"), "y": InputRef("b")},
        scoring_inputs={"truth": InputRef("c"), "other": InputRef("a"), "n": 1},
    )
    assert task.parents == ("a", "b", "c")


def test_inputs_and_scoring_inputs_are_copies() -> None:
    shared = {"list": [1]}
    task = define(
        initial_input=shared,
        scoring_inputs={"truth": shared["list"], "ref": InputRef("a", "score")},
        scoring_fn=lambda answer, truth, ref: truth.append(answer) or len(truth) + ref,
    )
    task.inputs({})["list"].append(2)
    assert task.score(3, {"a": {"answer": None, "score": 0.5}}) == 2.5
    assert shared == {"list": [1]}


def test_the_prompt_shows_text_inputs_and_format() -> None:
    assert define().prompt({"sample": "S1", "ions": [1, 2]}) == (
        "Weigh it.\n\nGiven:\n- sample: S1\n- ions: [1, 2]\n\nAnswer format: a number"
    )
    assert define(prompt_fn=lambda inputs: f"go {inputs['x']}").prompt({"x": 1}) == "go 1"


OUTPUTS = {"a": {"answer": {"pH": 7.0, "ions": ["Ag", "Pb"]}, "score": 1.0}}


@pytest.mark.parametrize(
    ("key", "value"),
    [("answer.pH", 7.0), ("answer.ions.1", "Pb"), ("score", 1.0), ("answer", OUTPUTS["a"]["answer"])],
)
def test_a_reference_reaches_into_the_output(key: str, value: Any) -> None:
    assert InputRef("a", key).resolve(OUTPUTS) == value


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (InputRef("b"), "no output of task 'b'; there are 'a'"),
        (InputRef("a", "answer.ph"), "task 'a' has no 'answer.ph': at 'ph' there are 'pH', 'ions'"),
        (InputRef("a", "answer.ions.2"), "at '2' there are 2 items"),
        (InputRef("a", "answer.ions.-1"), "at '-1' there are 2 items"),
        (InputRef("a", "score.x"), "at 'x' there is only 1.0"),
    ],
)
def test_a_missing_key_names_task_key_and_what_there_is(ref: InputRef, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ref.resolve(OUTPUTS)


def test_a_reference_needs_text() -> None:
    with pytest.raises(ConfigError, match=r"InputRef\.key"):
        InputRef("a", "")


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ('{"pH": 7}', {"pH": 7}),
        (" [1, 2]\n", [1, 2]),
        ("7.5", 7.5),
        ("true", True),
        ('"text"', '"text"'),
        ("null", "null"),
        ("NaN", "NaN"),
        ("1e300", 1e300),
        ("1e999", "1e999"),
        ('{"pH": -1e999}', '{"pH": -1e999}'),
        ("silver", "silver"),
        ("\ud800", "\ud800"),
        ("[" * 100_000, "[" * 100_000),
        ([1], [1]),
    ],
)
def test_answers_that_are_json_are_parsed(answer: Any, value: Any) -> None:
    assert parse_answer(answer) == value


def test_an_output_is_made_from_the_state() -> None:
    assert task_output({"submitted_answer": 3, "score": 0.5, "feedback": ""}) == {"answer": 3, "score": 0.5}


def test_order_is_stable_and_parents_come_first() -> None:
    graph = {"c": ["b"], "x": [], "b": ["a"], "a": [], "d": ["a", "c"]}
    assert topological_order(graph) == ["a", "b", "c", "x", "d"]


@pytest.mark.parametrize(
    ("graph", "text"),
    [
        ({"a": ["c"], "b": ["a"], "c": ["b"]}, "a -> b -> c -> a"),
        ({"x": [], "c": ["b", "x"], "a": ["c"], "b": ["a"]}, "c -> a -> b -> c"),
        ({"a": ["a"]}, "a -> a"),
        ({"a": ["z"]}, "'a' needs 'z', which is no task here"),
    ],
)
def test_a_bad_graph_is_named_in_full(graph: dict[str, list[str]], text: str) -> None:
    with pytest.raises(TaskGraphError, match=text):
        topological_order(graph)


def test_duplicate_ids_are_named() -> None:
    with pytest.raises(TaskGraphError, match="'b', 'a'"):
        check_unique(["a", "b", "b", "c", "a", "b"])
    check_unique(["a", "b"])


def test_components() -> None:
    graph = {"a": [], "x": [], "b": ["a"], "c": ["d"], "d": ["b"], "y": ["x"]}
    assert connected_components(graph) == [("a", "b", "c", "d"), ("x", "y")]


def test_missing_parents_of_a_selection() -> None:
    graph = {"a": [], "b": ["a"], "c": ["b", "a"]}
    assert missing_parents(graph, ["c"]) == {"c": ("b", "a")}
    assert missing_parents(graph, ["c", "b", "a"]) == {}


def test_a_long_chain_and_a_wide_fan() -> None:
    chain = {f"t{i}": [f"t{i - 1}"] if i else [] for i in range(LONG)}
    backwards = dict(reversed(chain.items()))
    assert topological_order(backwards) == list(chain)
    assert [len(group) for group in connected_components(chain)] == [LONG]
    fan = {"root": [], **{f"t{i}": ["root"] for i in range(LONG)}, "sink": [f"t{i}" for i in range(LONG)]}
    assert topological_order(fan) == list(fan)
    assert [len(group) for group in connected_components(fan)] == [LONG + 2]
    with pytest.raises(TaskGraphError, match=r"t0 -> t1 -> .*-> t0"):
        topological_order({**chain, "t0": [f"t{LONG - 1}"]})
