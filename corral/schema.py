"""From a signature to a JSON schema: the types of arguments, and what pydantic says of them."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any

from corral.errors import ConfigError


def annotations_of(function: Any, hidden: frozenset[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the visible arguments; text stays text where its names are not defined yet.

    Hidden ones are left alone: ``env: "MyEnv"`` on a method names a class that does not exist at this moment.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        if name in hidden or annotation is inspect.Parameter.empty:
            continue
        if isinstance(annotation, str):
            try:
                annotation = evaluate(annotation, function, namespace)
            except Exception:
                annotation = parameter.annotation
        found[name] = annotation
    return found


def evaluate(annotation: str, function: Any, namespace: Mapping[str, Any]) -> Any:
    """The type that an annotation's text means, seen from inside ``function``."""
    function = inspect.unwrap(function)
    function = function.__func__ if isinstance(function, types.MethodType) else function
    function = function if isinstance(function, types.FunctionType) else type(function).__call__
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    local = {**_by_name(namespace.get("__type_params__", ())), **namespace}
    for name, cell in cells:
        try:
            local[name] = cell.cell_contents
        except ValueError:
            continue
    local |= _by_name(getattr(function, "__type_params__", ()))
    return eval(annotation, function.__globals__, local)


def _by_name(type_parameters: Iterable[Any]) -> dict[str, Any]:
    """Those of ``class Lab[T]`` and ``def take[T]`` (Python 3.12): no scope that is left then holds them."""
    return {parameter.__name__: parameter for parameter in type_parameters}


def first_paragraph(text: str) -> str:
    """The text up to its first blank line, as one line."""
    return " ".join(re.split(r"\n\s*\n", inspect.cleandoc(text), maxsplit=1)[0].split())


def may_have_sections(docstring: str) -> bool:
    """Whether a docstring may say more than its description: every style marks sections in one of these ways."""
    return any(mark in docstring for mark in (":", "@", "--"))


def problem_text(error: Any) -> str:
    """One of pydantic's validation errors, as a sentence for an agent."""
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"argument {where!r} is missing"
    given = repr(error["input"])
    return f"argument {where!r}: {error['msg']} (given {given if len(given) <= 80 else given[:77] + '...'})"


def json_schema(model: Any) -> dict[str, Any]:
    """The JSON schema of a pydantic model of arguments."""
    from pydantic.json_schema import GenerateJsonSchema

    class Quiet(GenerateJsonSchema):
        """Without the titles made from field names, and without warnings on defaults that are no JSON."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def emit_warning(self, kind: Any, detail: str) -> None:
            return None

    try:
        schema: dict[str, Any] = model.model_json_schema(schema_generator=Quiet)
    except Exception as error:
        raise ConfigError(f"tool {model.__name__!r}: its arguments have no JSON schema: {error}") from error
    schema.pop("title", None)
    schema.setdefault("properties", {})
    _drop_no_json(schema)
    return schema


def _drop_no_json(schema: Any) -> None:
    """Leave out what JSON cannot say, such as an infinite default or limit: endpoints refuse requests that hold it."""
    for part in schema if isinstance(schema, list) else list(schema.values()):
        if isinstance(part, dict | list):
            _drop_no_json(part)
    if isinstance(schema, dict):
        for key in [key for key, value in schema.items() if key in _VALUES and not _is_json(value)]:
            del schema[key]


_VALUES = frozenset({
    "default", "const", "enum", "examples", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
})  # fmt: skip
"""Keywords of JSON schema that hold values."""


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def strip_text(schema: Any) -> None:
    """Remove descriptions, titles and examples from a schema and those inside it."""
    if isinstance(schema, list):
        for item in schema:
            strip_text(item)
    elif isinstance(schema, dict):
        for key in ("description", "title", "examples"):
            schema.pop(key, None)
        for key, inner in schema.items():
            if key in ("properties", "$defs", "patternProperties"):
                for named in inner.values():
                    strip_text(named)
            elif key not in ("default", "const", "enum"):
                strip_text(inner)
