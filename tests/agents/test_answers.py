from __future__ import annotations

import pytest

from corral.agents.answers import answer_in, clean, marked_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: Ag+, Pb+2", "Ag+, Pb+2"),
        ("I think so.\n**Final Answer:** 42", "42"),
        ("final answer : 42\n", "42"),
        ('## Answer:\n{"a": 1}', '{"a": 1}'),
        ("Answer: 1\nNo, wait.\nAnswer: 2", "2"),
        ("<answer>\n7 mL\n</answer> as I said", "7 mL"),
        ("so \\boxed{3.5} it is", "3.5"),
        ('Answer: ```json\n{"burns": [1, 2]}\n```', '{"burns": [1, 2]}'),
        ("Answer:", ""),
        ("The answer: is unclear", None),
        ("no mark at all", None),
    ],
)
def test_the_marked_answer(text: str, answer: str | None) -> None:
    assert marked_answer(text) == answer


def test_without_a_mark_the_whole_text_is_the_answer() -> None:
    assert answer_in("  Ag+  ") == "Ag+"


@pytest.mark.parametrize(("text", "bare"), [("**x**", "x"), ('"x"', "x"), ('"x" or "y"', '"x" or "y"'), ("``", "``")])
def test_marks_around_all_of_it_go(text: str, bare: str) -> None:
    assert clean(text) == bare
