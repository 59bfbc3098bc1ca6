"""The arguments of a tool: checked, and described as JSON schema. Either pydantic does it, or what is as good.

Signatures of plain types have shapes; all others become a pydantic model. Agents see no difference: of what a shape
is not sure, pydantic's engine decides, which is loaded then and costs a tenth of all pydantic.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from math import isfinite
from typing import Annotated, Any, NamedTuple, Optional, Protocol

from corral.errors import ConfigError
from corral.schema import json_schema
from corral.shapes import NoShape, Shape, Unsure, shape_of

REQUIRED: Any = object()
"""The default of an argument that has none."""


class Argument(NamedTuple):
    """One argument of a signature."""

    name: str
    annotation: Any
    default: Any = REQUIRED

    def nullable(self) -> Argument:
        """``n: int = None`` takes None, as it is meant: models give it where they leave an argument out."""
        return self._replace(annotation=Optional[self.annotation]) if self.default is None else self  # noqa: UP045


class Arguments(Protocol):
    """The arguments that a tool takes."""

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        """All of them as the function takes them, defaults filled in.

        Raises pydantic's ValidationError, with its class or without: a ValueError that has ``errors``.
        """
        ...

    def json_schema(self) -> dict[str, Any]:
        """As JSON schema, without texts."""
        ...


def arguments_of(tool: str, arguments: Iterable[Argument]) -> Arguments:
    """Those of a tool by its name. ConfigError if one cannot be described."""
    arguments = [argument.nullable() for argument in arguments]
    try:
        return PlainArguments(arguments)
    except NoShape:
        return ModelArguments(tool, arguments)


# ---- plain ones ----


class PlainArguments:
    """Arguments that all have a shape. NoShape where one has none."""

    def __init__(self, arguments: Iterable[Argument]) -> None:
        self._fields = [(argument, shape_of(argument.annotation)) for argument in arguments]
        self._takes = {argument.name: shape.take for argument, shape in self._fields}
        self._defaults = {a.name: a.default for a, _ in self._fields if a.default is not REQUIRED}
        _check_default(list(self._defaults.values()))
        self._engine: Any = None

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        """See ``Arguments``."""
        try:
            return {
                name: take(given[name], True) if name in given else self._default(name)
                for name, take in self._takes.items()
            }
        except (Unsure, KeyError):
            if self._engine is None:
                self._engine = self._make_engine()
            validated: dict[str, Any] = self._engine.validate_python(given)
            return {name: validated[name] for name in self._takes}

    def _default(self, name: str) -> Any:
        default = self._defaults[name]
        return copy.deepcopy(default) if type(default) in (list, dict) else default

    def _make_engine(self) -> Any:
        from pydantic_core import SchemaValidator, core_schema

        return SchemaValidator(
            core_schema.typed_dict_schema(
                {argument.name: _core_field(argument, shape) for argument, shape in self._fields}
            )
        )

    def json_schema(self) -> dict[str, Any]:
        """See ``Arguments``."""
        properties = {argument.name: self._property(argument.name, shape) for argument, shape in self._fields}
        schema = {"additionalProperties": False, "properties": properties}
        if required := [name for name in self._takes if name not in self._defaults]:
            schema["required"] = required
        return {**schema, "type": "object"}

    def _property(self, name: str, shape: Shape) -> dict[str, Any]:
        schema = copy.deepcopy(shape.schema)
        if name in self._defaults:
            schema["default"] = copy.deepcopy(self._defaults[name])
        return dict(sorted(schema.items()))


def _core_field(argument: Argument, shape: Shape) -> Any:
    if argument.default is REQUIRED:
        return {"type": "typed-dict-field", "schema": shape.core}
    schema = {"type": "default", "schema": shape.core, "default": argument.default}
    return {"type": "typed-dict-field", "schema": schema, "required": False}


def _check_default(default: Any) -> None:
    """NoShape where JSON would not show it as it is."""
    if type(default) is list:
        for item in default:
            _check_default(item)
    elif type(default) is dict:
        _check_default(list(default.values()))
        if not all(type(key) is str for key in default):
            raise NoShape(default)
    elif not (default is None or type(default) in (str, bool, int) or (type(default) is float and isfinite(default))):
        raise NoShape(default)


# ---- all others ----


class ModelArguments:
    """Arguments as a pydantic model; ``arg_N`` with an alias, so that any name is possible."""

    def __init__(self, tool: str, arguments: Iterable[Argument]) -> None:
        from pydantic import ConfigDict, Field, create_model
        from pydantic.fields import FieldInfo

        self._names: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for number, argument in enumerate(arguments):
            self._names[argument.name] = f"arg_{number}"
            if isinstance(argument.default, FieldInfo):
                fields[f"arg_{number}"] = Annotated[argument.annotation, argument.default], Field(alias=argument.name)
            else:
                more = {} if argument.default is REQUIRED else {"default": argument.default}
                fields[f"arg_{number}"] = argument.annotation, Field(alias=argument.name, **more)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
        try:
            self._model: Any = create_model(tool, __config__=config, **fields)
        except Exception as error:
            raise ConfigError(f"tool {tool!r}: its arguments cannot be described: {error}") from error

    def validate(self, given: dict[str, Any]) -> dict[str, Any]:
        """See ``Arguments``."""
        model = self._model.model_validate(given)
        return {name: getattr(model, field) for name, field in self._names.items()}

    def json_schema(self) -> dict[str, Any]:
        """See ``Arguments``."""
        return json_schema(self._model)
