"""Plain signatures without pydantic: agents see what they would see of it, to the byte."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Annotated, Any, Literal, Optional, Union

import pytest
from annotated_types import Ge, Gt, Le, Lt

from corral import tools
from corral.arguments import REQUIRED, Argument, Arguments, ModelArguments, PlainArguments, arguments_of
from corral.schema import problem_text
from corral.shapes import NoShape, shape_of
from corral.tools import Tool

ATOMS: list[Any] = [str, int, float, bool, None, Any]
CHOICES: list[Any] = [
    Literal["a"], Literal["a", "b"], Literal[1, 2], Literal[True], Literal[None], Literal[1, "a", None],
    Literal[0, False],
]  # fmt: skip
BOUNDED: list[Any] = [
    Annotated[float, Gt(0)], Annotated[float, Gt(0), Le(2.5)], Annotated[int, Ge(1), Le(3)], Annotated[int, Lt(2)],
]  # fmt: skip
VALUES: list[Any] = [
    "a", "b", "", "1", "1.5", "true", "no", "\ud800", "é", 0, 1, 2, 3, -1, 2**53 + 1, 10**400, True, False, None, 0.0,
    1.0, 1.5, -0.0, 2.5, float("nan"), float("inf"), 1e300, b"a", b"\xff", object,
]  # fmt: skip
DEFAULTS: list[Any] = [REQUIRED, REQUIRED, None, 1, "a", 1.5, True, [], [1, "a"], {}, {"a": [None, {"b": 2}]}, 10**30]
ROUNDS = 150


def a_type(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.randrange(12 if depth else 7)
    if kind < 5:
        return draw.choice(ATOMS)
    if kind == 5:
        return draw.choice(CHOICES)
    if kind == 6:
        return draw.choice(BOUNDED)
    inner = [a_type(draw, depth - 1) for _ in range(draw.randint(1, 3))]
    made: list[Any] = [
        list[inner[0]], dict[str, inner[0]], tuple[inner[0], ...], tuple[tuple(inner)], Union[tuple(inner)],  # type: ignore[valid-type, misc]  # noqa: UP007
        Optional[inner[0]], draw.choice([list, dict, tuple, list[Any], dict[str, Any]]),  # noqa: UP045
    ]  # fmt: skip
    return draw.choice(made)


def a_value(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.randrange(10 if depth else 6)
    if kind < 6:
        return draw.choice(VALUES)
    items = [a_value(draw, depth - 1) for _ in range(draw.randrange(4))]
    return draw.choice(
        [items, tuple(items), {str(i): item for i, item in enumerate(items)}, dict(enumerate(items)), items]
    )


def fitting(draw: random.Random, schema: dict[str, Any]) -> Any:
    """A value that a JSON schema allows, or nearly one."""
    if draw.random() < 0.03:
        return a_value(draw)
    if "anyOf" in schema:
        return fitting(draw, draw.choice(schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return draw.choice(schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            items = [fitting(draw, each) for each in schema["prefixItems"]]
        case "array":
            items = [fitting(draw, schema.get("items", {})) for _ in range(draw.randrange(3))]
        case "object":
            inner = schema["additionalProperties"]
            return {key: fitting(draw, inner if isinstance(inner, dict) else {}) for key in draw.sample("abc", 2)}
        case kind:
            simple: dict[str, list[Any]] = {
                "string": ["a", "xyz"],
                "integer": [1, 2],
                "number": [1, 1.5],
                "boolean": [True],
                "null": [None],
            }
            return draw.choice(simple.get(str(kind), VALUES))
    return draw.choice([items, items, tuple(items)])


def outcome(arguments: Arguments, given: dict[str, Any]) -> Any:
    """What a call comes to, in a form in which 1, 1.0 and True differ."""
    try:
        return repr(arguments.validate(dict(given)))
    except ValueError as error:
        return [problem_text(each) for each in error.errors(include_url=False)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(4))
def test_plain_signatures_are_what_they_are_to_pydantic(seed: int) -> None:
    draw = random.Random(seed)
    shaped = decided = 0
    for _ in range(ROUNDS):
        signature = [Argument(f"x{i}", a_type(draw), draw.choice(DEFAULTS)) for i in range(draw.randint(0, 3))]
        try:
            plain = PlainArguments(signature)
        except NoShape:
            continue
        shaped += 1
        model = ModelArguments("tool", signature)
        schema = model.json_schema()
        assert json.dumps(plain.json_schema()) == json.dumps(schema), signature
        for _ in range(12):
            given = {
                name: fitting(draw, each) if draw.random() < 0.9 else a_value(draw)
                for name, each in schema["properties"].items()
                if draw.random() < 0.95
            }
            assert outcome(plain, given) == outcome(model, given), (signature, given)
            decided += isinstance(outcome(model, given), str)
    assert shaped > ROUNDS / 2
    assert decided > ROUNDS


@pytest.mark.parametrize("annotation", [
    set[int], bytes, object, dict[int, str], tuple[()], int | Any, list[set[int]], Literal[b"a"], "str",
    Annotated[int, "a note"], Annotated[list[int], Gt(1)], Annotated[int, Ge("a")],
])  # fmt: skip
def test_other_types_have_no_shape(annotation: Any) -> None:
    with pytest.raises(NoShape):
        shape_of(annotation)


def test_what_a_call_does_to_a_default_or_to_what_it_was_given_is_its_own() -> None:
    arguments = PlainArguments([Argument("x", list[int], [1]), Argument("y", dict[str, Any])])
    given: dict[str, Any] = {"y": {"a": []}}
    validated = arguments.validate(given)
    validated["x"].append(2)
    validated["y"]["b"] = 1
    assert given == {"y": {"a": []}}
    assert arguments.validate(given)["x"] == [1]


def test_what_is_plainly_right_never_asks_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = arguments_of("tool", [
        Argument("volume", float), Argument("name", str), Argument("steps", Annotated[int, Ge(1)], 3),
        Argument("points", list[tuple[float, float]]), Argument("label", Literal["a", "b"] | None, None),
    ])  # fmt: skip
    monkeypatch.setattr(PlainArguments, "_make_engine", None)
    given = {"volume": 2, "name": "a", "points": [[1, 2.5]], "label": "b"}
    assert arguments.validate(given) == {
        "volume": 2.0, "name": "a", "steps": 3, "points": [(1.0, 2.5)], "label": "b",
    }  # fmt: skip


LIGHT = """
import sys
from typing import Literal
from corral.tools import Tool, InvalidArguments
def weigh(vessel: str, times: int = 1, unit: Literal["g", "mg"] = "g") -> float:
    '''Weigh a vessel.'''
weigh = Tool(weigh)
assert weigh.schema()["function"]["parameters"]["required"] == ["vessel"]
assert weigh.validate({"vessel": "a", "times": 2}) == {"vessel": "a", "times": 2, "unit": "g"}
assert not {"pydantic", "pydantic_core", "docstring_parser"} & sys.modules.keys()
try:
    weigh.validate({"vessel": "a", "times": "often"})
except InvalidArguments as error:
    assert "times" in str(error)
assert "pydantic" not in sys.modules
"""


def test_a_plain_tool_loads_no_pydantic() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=60)


def test_a_tool_of_both_kinds() -> None:
    def plain(x: int) -> None: ...
    def other(x: set[int]) -> None: ...

    assert isinstance(Tool(plain)._arguments(), PlainArguments)
    assert isinstance(Tool(other)._arguments(), ModelArguments)
    assert Tool(other).validate({"x": [1, 1]}) == {"x": {1}}


@pytest.mark.parametrize("text", ["", "One line.", "Two\nlines.", "A first.\n\nA second,\n  indented.\n\n\nA third."])
def test_docstrings_without_sections_are_what_the_parser_makes_of_them(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(x: int) -> None: ...

    plain.__doc__ = text
    unparsed = [Tool(plain).schema(verbosity) for verbosity in ("minimal", "brief", "full")]
    monkeypatch.setattr(tools, "may_have_sections", lambda docstring: True)
    assert [Tool(plain).schema(verbosity) for verbosity in ("minimal", "brief", "full")] == unparsed
