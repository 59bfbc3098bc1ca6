"""Any Python value as strict JSON data: None, bool, int, finite float, str, list and dict with str keys.

Guarantees: it never raises for a value, whatever that does when it is read; equal values give equal data, whatever
the hash seed; no two keys of a mapping become one. NaN and infinities become null. What has no form in JSON becomes
text. NumPy and pydantic values are known by their methods, so neither is imported.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from enum import Enum
from numbers import Number
from pathlib import PurePath
from typing import Any
from uuid import UUID

from corral.errors import ErrorRecord

MAX_DEPTH = 100
"""Levels of nesting kept: encoders and parsers recurse, and common parsers stop at some hundreds."""

MAX_INT_BITS = 10_000
"""Longer whole numbers are written in hexadecimal as text: Python itself refuses to print them in decimal."""

MAX_TEXT = 2_000
"""Characters kept of the ``repr`` of an object that has no form in JSON."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: object) -> Any:
    """``value`` as strict JSON data."""
    return _plain(value, ())


def _plain(value: object, above: tuple[int, ...]) -> Any:
    """``above``: the ids of the containers around ``value``, by which a cycle is seen."""
    if value is None or value is True or value is False or type(value) is str:
        return value
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return _number(value)
    if len(above) >= MAX_DEPTH:
        return "<nested too deeply>"
    if id(value) in above:
        return "<contains itself>"
    try:
        return _other(value, (*above, id(value)))
    except Exception as error:
        return f"<{_type_name(value)}: {ErrorRecord.of(error)}>"


def _number(value: float) -> Any:
    # Subclasses of numbers (NumPy's float64 among them) are made the plain number they stand for.
    if isinstance(value, int):
        return int(value) if value.bit_length() <= MAX_INT_BITS else hex(value)
    return float(value) if math.isfinite(value) else None


def _other(value: Any, above: tuple[int, ...]) -> Any:
    if hasattr(type(value), "dtype") and hasattr(type(value), "tolist"):
        return _array(value, above)  # first: NumPy's numbers are registered as Numbers
    match value:
        case Enum():
            return _plain(value.value, above)
        case str():
            return str.__str__(value)
        case Mapping():
            return _mapping(value.items(), above)
        case list() | tuple() | deque():
            return [_plain(item, above) for item in value]
        case AbstractSet():
            return sorted((_plain(item, above) for item in value), key=_order)
        case bytes() | bytearray() | memoryview():
            return _text_of_bytes(bytes(value))
        case PurePath() | UUID() | Number():  # other numbers: Decimal, Fraction, complex
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case BaseException():
            return str(ErrorRecord.of(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _mapping(((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)), above)
    if hasattr(type(value), "model_dump"):
        return _plain(value.model_dump(), above)
    return _ADDRESS.sub("", repr(value))[:MAX_TEXT]


def _array(value: Any, above: tuple[int, ...]) -> Any:
    listed = value.tolist()
    # NumPy's long double has no Python number of its own and gives itself.
    return _plain(float(listed) if type(listed) is type(value) else listed, above)


def _mapping(items: Iterable[tuple[object, object]], above: tuple[int, ...]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, item in items:
        name = key if type(key) is str else _key(key)
        while name in data:  # 1 and "1": JSON would hold the name twice, and readers keep one of them
            name = f"{name} ({_type_name(key)})"
        data[name] = _plain(item, above)
    return data


def _key(key: object) -> str:
    data = plain(key)
    return data if isinstance(data, str) else json.dumps(data)


def _order(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode("ascii")


def _type_name(value: object) -> str:
    return type(value).__qualname__
