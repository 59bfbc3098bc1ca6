"""Plain types of arguments, understood as pydantic understands them, without loading it.

Purpose
    pydantic takes 75 ms and 12 MB to load: more than all else that a small environment needs in its process.
Guarantees
    * A shape's JSON schema is pydantic's of that type, its core schema means the same to pydantic's engine.
    * What ``take`` gives is what pydantic would. It takes what an agent sends rightly, and leaves all else, from "3"
      for a number to what is plainly wrong, to the engine.
Assumptions
    Types that are no plain ones, and annotations that say more than bounds, have no shape: they are pydantic's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

Take: TypeAlias = Callable[[Any, bool], Any]

EXACT = 2**53
"""Whole numbers up to this one are floats without a loss."""


class Unsure(Exception):
    """The value is not plainly right: pydantic's engine is to say what becomes of it."""


class NoShape(Exception):
    """The type is no plain one."""


class Shape(NamedTuple):
    """A plain type."""

    schema: dict[str, Any]
    """As JSON schema."""
    core: dict[str, Any]
    """As core schema, for pydantic's engine."""
    take: Take
    """The value as validated, or Unsure. ``loosely``: a float may be given as a whole number, a tuple as a list; not
    so among alternatives, where pydantic prefers what fits as it is."""
    is_certain: bool = True
    """Whether a value that it takes is taken as it is, and not because anything would be."""


def shape_of(annotation: Any) -> Shape:
    """The shape of a type; NoShape where it has none."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    try:
        if origin in _ATOMS:
            return _ATOMS[origin]
        if origin in _MAKERS:
            return _MAKERS[origin](*arguments)
    except TypeError:  # a type that is none, or has parts that no dictionary takes
        pass
    raise NoShape(annotation)


# ---- atoms ----


def _exactly(kind: type) -> Take:
    def take(value: Any, loosely: bool) -> Any:
        if type(value) is kind:
            return value
        raise Unsure

    return take


def _float(value: Any, loosely: bool) -> float:
    if type(value) is float:
        return value
    if loosely and type(value) is int and -EXACT <= value <= EXACT:
        return float(value)
    raise Unsure


_ANY = Shape({}, {"type": "any"}, lambda value, loosely: value, is_certain=False)
_NONE = Shape({"type": "null"}, {"type": "none"}, _exactly(types.NoneType))
_ATOMS: dict[Any, Shape] = {
    Any: _ANY,
    None: _NONE,
    types.NoneType: _NONE,
    str: Shape({"type": "string"}, {"type": "str"}, _exactly(str)),
    bool: Shape({"type": "boolean"}, {"type": "bool"}, _exactly(bool)),
    int: Shape({"type": "integer"}, {"type": "int"}, _exactly(int)),
    float: Shape({"type": "number"}, {"type": "float"}, _float),
}
_NAMES = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}

# ---- what is made of others ----


def _list(of: Any = Any) -> Shape:
    inner = shape_of(of)
    take_item = inner.take

    def take(value: Any, loosely: bool) -> Any:
        if type(value) is not list:
            raise Unsure
        return [take_item(item, loosely) for item in value]

    core = {"type": "list", "items_schema": inner.core}
    return Shape({"items": inner.schema, "type": "array"}, core, take, inner.is_certain)


def _dict(keys: Any = Any, values: Any = Any) -> Shape:
    if keys not in (str, Any):
        raise NoShape(keys)
    of_key, inner = shape_of(keys), shape_of(values)
    take_key, take_item = of_key.take, inner.take

    def take(value: Any, loosely: bool) -> Any:
        if type(value) is not dict:
            raise Unsure
        return {take_key(key, loosely): take_item(item, loosely) for key, item in value.items()}

    core = {"type": "dict", "keys_schema": of_key.core, "values_schema": inner.core}
    schema = {"additionalProperties": inner.schema or True, "type": "object"}
    return Shape(schema, core, take, of_key.is_certain and inner.is_certain)


def _tuple(*of: Any) -> Shape:
    if not of:
        raise NoShape(tuple)
    if of[-1] is Ellipsis:
        return _long_tuple(shape_of(of[0]))
    inner = [shape_of(each) for each in of]

    def take(value: Any, loosely: bool) -> Any:
        if not _is_row(value, loosely) or len(value) != len(inner):
            raise Unsure
        return tuple(shape.take(item, loosely) for shape, item in zip(inner, value, strict=True))

    items, size = [shape.schema for shape in inner], len(inner)
    schema = {"maxItems": size, "minItems": size, "prefixItems": items, "type": "array"}
    core = {"type": "tuple", "items_schema": [shape.core for shape in inner]}
    return Shape(schema, core, take, all(shape.is_certain for shape in inner))


def _long_tuple(inner: Shape) -> Shape:
    def take(value: Any, loosely: bool) -> Any:
        if not _is_row(value, loosely):
            raise Unsure
        return tuple(inner.take(item, loosely) for item in value)

    core = {"type": "tuple", "items_schema": [inner.core], "variadic_item_index": 0}
    return Shape({"items": inner.schema, "type": "array"}, core, take, inner.is_certain)


def _is_row(value: Any, loosely: bool) -> bool:
    return type(value) is tuple or (loosely and type(value) is list)


def _literal(*choices: Any) -> Shape:
    kinds = {type(choice) for choice in choices}
    if not kinds <= _NAMES.keys():
        raise NoShape(choices)

    def take(value: Any, loosely: bool) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise Unsure

    schema: dict[str, Any] = {"const": choices[0]} if len(choices) == 1 else {"enum": list(choices)}
    if len(kinds) == 1:
        schema["type"] = _NAMES[kinds.pop()]
    # To pydantic 1, 1.0 and True are one choice, and the first of several types that has one takes them all.
    is_certain = all(type(choice) in (str, types.NoneType) for choice in choices)
    return Shape(schema, {"type": "literal", "expected": list(choices)}, take, is_certain)


def _union(*alternatives: Any) -> Shape:
    shapes = [shape_of(each) for each in alternatives if each is not types.NoneType]
    has_none = len(shapes) < len(alternatives)
    is_certain = all(shape.is_certain for shape in shapes)
    words = [repr(shape.schema) for shape in shapes]
    if not shapes or (len(shapes) > 1 and not is_certain) or len(set(words)) < len(words):
        raise NoShape(alternatives)

    def take(value: Any, loosely: bool) -> Any:
        if value is None and has_none:
            return None
        if len(shapes) == 1:
            return shapes[0].take(value, loosely)
        for shape in shapes:
            try:
                return shape.take(value, False)
            except Unsure:
                continue
        raise Unsure

    schema = {"anyOf": [shape.schema for shape in (*shapes, *[_NONE][:has_none])]}
    core = shapes[0].core if len(shapes) == 1 else {"type": "union", "choices": [shape.core for shape in shapes]}
    return Shape(schema, {"type": "nullable", "schema": core} if has_none else core, take, is_certain)


# ---- bounds ----

_BOUNDS = {
    "Gt": ("gt", "exclusiveMinimum"), "Ge": ("ge", "minimum"),
    "Lt": ("lt", "exclusiveMaximum"), "Le": ("le", "maximum"),
}  # fmt: skip


def _annotated(of: Any, *notes: Any) -> Shape:
    if of not in (int, float):
        raise NoShape(of)
    shape = shape_of(of)
    bounds: dict[str, float] = {}
    schema = dict(shape.schema)
    for note in notes:
        name, word = _bound(note)
        if name in bounds:
            raise NoShape(notes)
        schema[word] = bounds[name] = getattr(note, name)

    def take(value: Any, loosely: bool) -> Any:
        value = shape.take(value, loosely)
        for name, bound in bounds.items():
            if not _WITHIN[name](value, bound):
                raise Unsure
        return value

    return Shape(dict(sorted(schema.items())), {**shape.core, **bounds}, take)


def _bound(note: Any) -> tuple[str, str]:
    """The name of a bound in annotated_types, and its word in a JSON schema."""
    kinds = sys.modules.get("annotated_types")
    kind = type(note).__name__
    if kinds is None or kind not in _BOUNDS or type(note) is not getattr(kinds, kind):
        raise NoShape(note)
    name, word = _BOUNDS[kind]
    if type(getattr(note, name)) not in (int, float):
        raise NoShape(note)
    return name, word


_WITHIN: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda value, bound: value > bound, "ge": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound, "le": lambda value, bound: value <= bound,
}  # fmt: skip
_MAKERS: dict[Any, Callable[..., Shape]] = {
    list: _list, dict: _dict, tuple: _tuple, Literal: _literal, Union: _union, types.UnionType: _union,
    Annotated: _annotated,
}  # fmt: skip
