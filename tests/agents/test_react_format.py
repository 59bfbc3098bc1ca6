from __future__ import annotations

import warnings
from typing import Any

import pytest

from corral.agents.answers import marked_answer
from corral.agents.react_format import Step, describe, read, read_input

ADD = {"vessel": "a", "volume_ml": 2}


@pytest.mark.parametrize(
    "text",
    [
        'Thought: t\nAction: add\nAction Input: {"vessel": "a", "volume_ml": 2}',
        '**Thought:** t\n**Action:** `add`\n**Action Input:** ```json\n{"vessel": "a", "volume_ml": 2}\n```',
        'thought: t\naction: add\naction_input: {"vessel": "a",\n "volume_ml": 2,}',
        "Thought: t\nAction: add\nAction Input: {'vessel': 'a', 'volume_ml': 2}",
        'Thought: t\nAction: add(vessel="a", volume_ml=2)',
        'Thought: t\nAction: add\nAction Input: vessel="a", volume_ml=2',
        "Thought: t\nAction: add\nAction Input:\nvessel: a\nvolume_ml: 2",
        'Thought: t\nAction: add\nAction Input: Here it is: {"vessel": "a", "volume_ml": 2} as you asked',
        'Thought: t\n\nAction: add\nAction Input: {"vessel": "a", "volume_ml": 2}\nObservation: blue\nAnswer: Cu+2',
        'Thought: t\nAction: add\nAction Input: {"vessel": "a", "volume_ml": 2}\nAction: boil\nAction Input: {}',
        '{"thought": "t", "action": "add", "action_input": {"vessel": "a", "volume_ml": 2}}',
        '```json\n{"thought": "t", "tool": "add", "arguments": {"vessel": "a", "volume_ml": 2}}\n```',
    ],
)
def test_ways_to_write_one_action(text: str) -> None:
    assert read(text) == Step("t", action="add", arguments=ADD)


@pytest.mark.parametrize("given", ["", "{}", "None", "`{}`", "()"])
def test_an_action_without_arguments(given: str) -> None:
    assert read(f"Action: reagents\nAction Input: {given}") == Step(action="reagents")


def test_a_bare_call_without_arguments() -> None:
    assert read("Thought: t\nAction: reagents()") == Step("t", action="reagents")


@pytest.mark.parametrize(
    "text",
    ["Thought: t\nAnswer: Ag+", "Thought: t\n**Final Answer:** Ag+", "Thought: t\nAnswer: Ag+\nObservation: right!",
     '{"thought": "t", "final_answer": "Ag+"}', '{"thought": "t", "action": "Final Answer", "action_input": "Ag+"}'],
)  # fmt: skip
def test_ways_to_write_an_answer(text: str) -> None:
    assert read(text) == Step("t", answer="Ag+")


def test_an_answer_of_several_lines_stays_whole() -> None:
    assert read('Answer: {\n  "burns": [1, 2]\n}').answer == '{\n  "burns": [1, 2]\n}'


def test_an_answer_in_json_stays_json() -> None:
    assert read('{"answer": {"burns": [1]}}').answer == '{"burns": [1]}'


def test_what_an_invented_observation_is_followed_by_does_not_count() -> None:
    assert read("Thought: t\nObservation: it is silver\nAnswer: Ag+").answer is None


@pytest.mark.parametrize("text", ["", "I will add acid.", "The output is 6.\n\n" * 20, "Thought: hm"])
def test_neither_action_nor_answer_is_a_problem_in_words(text: str) -> None:
    assert read(text).problem == "there is neither an Action nor an Answer in your reply"


def test_an_input_that_cannot_be_read_names_itself() -> None:
    step = read("Action: add\nAction Input: some acid, please")
    assert step.problem == "the Action Input is no JSON object: some acid, please"


def test_an_empty_action_is_a_problem() -> None:
    assert read("Thought: t\nAction:\nAction Input: {}").problem == "the Action is empty: name one tool"


@pytest.mark.parametrize(("text", "value"), [('{"a": "x\ny"}', {"a": "x\ny"}), ("a = [1, 2]", {"a": [1, 2]}),
                                             ('{"a": {"b": 1}} {"c": 2}', {"a": {"b": 1}})])  # fmt: skip
def test_inputs(text: str, value: dict[str, Any]) -> None:
    assert read_input(text) == (value, None)


def test_nothing_is_evaluated() -> None:
    arguments, problem = read_input("__import__('os').getcwd()")
    assert (arguments, problem is not None) == ({}, True)


def test_tools_are_described_with_their_arguments() -> None:
    schema = {"properties": {"a": {"type": "number"}, "b": {"enum": ["x"]}}, "required": ["a"]}
    text = describe([{"function": {"name": "add", "description": "Add.", "parameters": schema}}])
    assert text == 'add: Add.\n    a: {"type": "number"}\n    b (optional): {"enum": ["x"]}'


@pytest.mark.parametrize(
    "given",
    ['data={{"a": 1}}', '{{"a": 1}}', '{"a":' * 3000, "{'a': " * 300 + "1" + "}" * 300, "[" * 5000, "x=" + "(" * 900],
)
def test_odd_inputs_are_a_problem_for_the_model_or_text(given: str) -> None:
    step = read(f"Action: heat\nAction Input: {given}")
    assert step.action == "heat"
    assert bool(step.problem) != bool(step.arguments)


def test_the_odd_escapes_of_a_model_warn_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read("Action: f\nAction Input: {'x': '\\d+'}").arguments == {"x": "\\d+"}


CUT_OFF = [
    "Thought: x\nAnswer: 4",
    "Thought: x\nAction: heat",
    "Action: heat\nAction Input: celsius=4",
    'Action: heat\nAction Input: {"celsius": 4',
    "Thought: I shall",
    '{"action": "heat", "action_input": {"celsius": 4',
]


@pytest.mark.parametrize("text", CUT_OFF)
def test_what_may_be_half_of_something_does_not_count(text: str) -> None:
    step = read(text, was_cut=True)
    assert (step.action, step.answer) == (None, None)
    assert str(step.problem).startswith("your reply was cut off at its token limit")


@pytest.mark.parametrize("text", [
    'Action: heat\nAction Input: {"celsius": 4}\nObservation: it is wa',
    '{"action": "heat", "action_input": {"celsius": 4}} and the',
])  # fmt: skip
def test_what_stands_whole_before_the_cut_counts(text: str) -> None:
    assert read(text, was_cut=True) == read(text)
    assert read(text).arguments == {"celsius": 4}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", [
    "hm" + "\n" * 300_000 + "x", "Action: x\nAction Input: ```" + "A" * 300_000, "<answer>" * 40_000,
    "Action: f\nAction Input: x = a" + " " * 300_000 + "b", "Answer" + "\n" * 300_000, "final" + " " * 300_000 + "x",
    "Action: f" + "(" * 300_000, "\\boxed{" * 40_000, "- " * 150_000, "```" * 100_000,
])  # fmt: skip
def test_a_model_that_repeats_itself_does_not_hold_up_who_reads_it(text: str) -> None:
    assert read(text).answer is None  # in time proportional to the text: the test's limit is there for the square
    marked_answer(text)
