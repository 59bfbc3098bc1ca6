"""The ReAct format (Yao et al. 2022, arXiv 2210.03629): how it is asked for, and a tolerant reader of it. Pure.

Models write it with bold labels, in fences, as one JSON object, as a function call, with Python's literals or
arguments as ``name=value`` lines, and go on to invent the observation. All of these are read; what cannot be read is
a problem in words, for the model.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.agents.answers import clean
from corral.agents.llm.messages import check_depth, read_json

FORMAT = """\
Reply in exactly this form, one action at a time, and then wait for the observation:

Thought: what you think
Action: the name of one tool
Action Input: its arguments as a JSON object, such as {"name": "value"}

When you know the answer, reply in this form instead:

Thought: what you think
Answer: the answer alone, in the format that the task asks for"""

# Each takes time in proportion to the text, whatever that is: a model may repeat itself up to its token limit.
_MARK = r"[ \t>#*_`-]*"
_LABEL = re.compile(
    rf"^{_MARK}(?P<name>thought|action[ _]input|action|observation|(?:final[ _])?answer)[*_`]*[ \t]*:[*_`]*",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"```[\w-]*+\n?(.*?)```", re.DOTALL)
_PAIR = re.compile(r"([A-Za-z_]\w*)\s*[:=](.+)")
_CALL = re.compile(r"(?P<name>[\w-]+)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)


@dataclass(frozen=True)
class Step:
    """What a model's turn amounts to: an action, an answer, or a problem."""

    thought: str = ""
    action: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None
    problem: str | None = None


CUT = "your reply was cut off at its token limit: say it again, in fewer words"


def read(text: str, *, was_cut: bool = False) -> Step:
    """Read a model's turn. The first action or answer counts; what it says after that is invention.

    ``was_cut``: it ended at the token limit. An action or answer that the text ends with may then be a part of one.
    """
    sections, last = _sections(text)
    thought = sections.get("thought", "")
    if was_cut and last in ("action", "action input", "answer"):
        return Step(thought, problem=CUT)
    if "action" in sections:
        return _action(thought, sections["action"], sections.get("action input"))
    if "answer" in sections:
        return Step(thought, answer=clean(sections["answer"]))
    if (found := _from_json(text)) is not None:
        return found
    return Step(text.strip(), problem=CUT if was_cut else "there is neither an Action nor an Answer in your reply")


def _sections(text: str) -> tuple[dict[str, str], str | None]:
    """Label -> text, up to the first observation, and of a label that comes twice the first; whose text is the last,
    if what is said at the end counts.
    """
    found: dict[str, str] = {}
    last = None
    labels = list(_LABEL.finditer(text))
    for label, following in zip(labels, [*labels[1:], None], strict=False):
        name = re.sub(r"[ _]", " ", label["name"].lower()).replace("final ", "")
        if name == "observation" or (name in ("action", "answer") and {"action", "answer"} & found.keys()):
            return found, None
        found.setdefault(name, text[label.end() : following.start() if following else len(text)].strip())
        last = name
    return found, last


def _action(thought: str, action: str, given: str | None) -> Step:
    bare = action.strip().strip("*`\"' .")
    if given is None and (call := _CALL.fullmatch(bare + (")" if "(" in bare and not bare.endswith(")") else ""))):
        name, given = call["name"], call["arguments"]
    elif given is None and "\n" in bare:
        name, given = bare.split("\n", 1)
    else:
        name = bare.split("\n", 1)[0]
    name = name.strip().strip("*`\"' .()")
    if not name:
        return Step(thought, problem="the Action is empty: name one tool")
    arguments, problem = read_input(given or "")
    return Step(thought, action=name, arguments=arguments, problem=problem)


def read_input(text: str) -> tuple[dict[str, Any], str | None]:
    """An Action Input as arguments, and what is wrong with it if it cannot be read."""
    text = text.strip()
    if (fenced := _FENCE.search(text)) is not None:
        text = fenced[1].strip()
    if text.strip("`\"' ").lower() in ("", "none", "null", "n/a", "{}", "()"):
        return {}, None
    for candidate in (text, text.strip("`"), _outer_braces(text)):
        for reader in (_as_json, _as_python, _as_pairs):
            if (value := reader(candidate)) is not None:
                return value, None
    return {}, f"the Action Input is no JSON object: {text[:200]}"


def _outer_braces(text: str) -> str:
    """From the first brace to the one that closes it: what stands around an object does not matter."""
    start = text.find("{")
    if start < 0:
        return text
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text, start)
    except (ValueError, RecursionError):
        end = text.rfind("}") + 1
    return text[start:end]


def _as_json(text: str) -> dict[str, Any] | None:
    for candidate in (text, re.sub(r",(\s*[}\]])", r"\1", text)):
        try:
            value = read_json(candidate, strict=False)
        except ValueError:
            continue
        return value if isinstance(value, dict) else None
    return None


def _as_python(text: str) -> dict[str, Any] | None:
    try:
        value = _literal(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and all(isinstance(key, str) for key in value) else None


def _as_pairs(text: str) -> dict[str, Any] | None:
    """``name=value, name="value"`` as in a call, or one ``name: value`` a line."""
    with contextlib.suppress(ValueError):
        call = _parsed(f"f({text})")
        if isinstance(call, ast.Call) and call.keywords and not call.args:
            return {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords if keyword.arg}
    pairs = [_PAIR.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
    if not pairs or None in pairs:
        return None
    return {pair[1]: _value(pair[2].strip().removesuffix(",").rstrip()) for pair in pairs if pair is not None}


def _value(text: str) -> Any:
    for reader in (read_json, _literal):
        try:
            return reader(text)
        except ValueError:
            continue
    return text


def _parsed(text: str) -> ast.expr:
    """Python's expression; ValueError where it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an odd escape in a model's text, nobody wants to hear
            return ast.parse(text.strip(), mode="eval").body
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _literal(expression: str | ast.expr) -> Any:
    """Python's literal; ValueError where it is none, or nested too deeply."""
    try:
        value = ast.literal_eval(_parsed(expression) if isinstance(expression, str) else expression)
    except (TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None
    check_depth(value)
    return value


def _from_json(text: str) -> Step | None:
    """The whole step as one JSON object: ``{"action": ..., "action_input": {...}}`` and its kin."""
    fenced = _FENCE.search(text)
    value = _as_json(_outer_braces(fenced[1] if fenced else text))
    if value is None:
        return None
    keys = {str(key).lower().replace(" ", "_"): item for key, item in value.items()}
    thought = str(keys.get("thought", ""))
    action = keys.get("action") or keys.get("tool") or keys.get("name")
    if isinstance(action, str):
        given: Any = next(
            (keys[key] for key in ("action_input", "arguments", "parameters", "input") if key in keys), {}
        )
        if str(action).lower().replace(" ", "_") in ("answer", "final_answer"):
            return Step(thought, answer=given if isinstance(given, str) else json.dumps(given, ensure_ascii=False))
        arguments, problem = (dict(given), None) if isinstance(given, Mapping) else read_input(str(given))
        return Step(thought, action=action, arguments=arguments, problem=problem)
    answer = keys.get("final_answer", keys.get("answer"))
    if answer is None:
        return None
    return Step(thought, answer=answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def describe(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools for a prompt: name, what it does, and its arguments' JSON schema."""
    lines = []
    for tool in tools:
        function = tool["function"]
        lines.append(f"{function['name']}: {function.get('description') or 'no description'}")
        parameters = function.get("parameters") or {}
        for name, schema in (parameters.get("properties") or {}).items():
            must = "" if name in parameters.get("required", ()) else " (optional)"
            lines.append(f"    {name}{must}: {json.dumps(schema, ensure_ascii=False)}")
    return "\n".join(lines)
