"""What counts as data: the values that may leave an environment, and how others become data.

Tool results, answers and states cross process borders and are kept in records, so they are reduced to what JSON
knows (plus NaN and infinities, and NumPy arrays where the caller keeps them). What has no faithful form is refused
by name, never turned into its ``repr``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import ItemsView, KeysView, Mapping, Sequence, Set, ValuesView
from enum import Enum
from pathlib import PurePath
from types import NoneType
from typing import Any, Literal

from corral.errors import SerializationError

Arrays = Literal["keep", "copy", "list", "describe"]
"""What becomes of a NumPy array: it stays as it is, is copied, becomes nested lists, or, if it is not small, a short
description."""

SMALL = 1000
"""Numbers of an array that is small: a record holds them."""

_PLAIN = frozenset({str, int, float, bool})
_FLAT = _PLAIN | {NoneType}
_NAMES = frozenset({str})
_BUILT_IN = frozenset({dict, list, tuple})


def to_data(value: Any, where: str, *, arrays: Arrays = "keep") -> Any:
    """Return ``value`` as data; raise SerializationError naming ``where`` and the type that cannot be."""
    if value is None or type(value) in _PLAIN:
        return value
    if type(value) is dict and _is_flat(value):  # as the arguments of nearly every tool call are
        return value.copy()
    try:
        return _Converter(where, arrays).convert(value)
    except RecursionError:
        raise SerializationError.of_value(where, value, "it is nested too deeply") from None


def _is_flat(value: dict[Any, Any]) -> bool:
    return _FLAT.issuperset(map(type, value.values())) and _NAMES.issuperset(map(type, value))


def well_formed(text: str) -> str:
    """A text without lone surrogates, which UTF-8 and so many a protocol cannot carry: they become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def describe_array(array: Any) -> str:
    """A NumPy array in a few words, for records: ``<array float64 (3, 4)>``."""
    return f"<array {array.dtype} {array.shape}>"


def array_bytes(data: Any) -> int:
    """What the NumPy arrays in data take, in bytes."""
    if "numpy" not in sys.modules:
        return 0
    size, rest = 0, [data]
    while rest:
        part = rest.pop()
        if type(part) is dict or type(part) is list:
            inside = part.values() if type(part) is dict else part
            if not _FLAT.issuperset(map(type, inside)):  # by C's own loop: a long list of numbers is common
                rest.extend(inside)
        elif _is_numpy(part, "ndarray"):
            size += part.nbytes
    return size


class _Converter:
    """One conversion; ``_open`` holds the containers around the current value, to notice cycles."""

    def __init__(self, where: str, arrays: Arrays) -> None:
        self.where = where
        self.arrays = arrays
        self._open: set[int] = set()

    def convert(self, value: Any) -> Any:
        if value is None or type(value) in _PLAIN:
            return value
        if type(value) in _BUILT_IN:  # most of what comes, and no other questions to ask of it
            return self._contained(value)
        if isinstance(value, Enum):
            return self.convert(value.value)
        for base in (str, int, float):
            if isinstance(value, base) and not _is_numpy(value, "generic"):
                return base(value) if base is not str else str.__str__(value)
        if isinstance(value, BaseException | type):
            raise SerializationError.of_value(self.where, value, "it is no data")
        if _is_numpy(value, "generic"):
            return self._numpy_scalar(value)
        if _is_numpy(value, "ndarray"):
            return self._array(value)
        return self._contained(value)

    def _contained(self, value: Any) -> Any:
        if id(value) in self._open:
            raise SerializationError.of_value(self.where, value, "it contains itself")
        self._open.add(id(value))
        try:
            return self._structure(value)
        finally:
            self._open.discard(id(value))

    def _structure(self, value: Any) -> Any:
        if type(value) is list:
            is_flat = _FLAT.issuperset(map(type, value))  # by C's own loop
            return value.copy() if is_flat else [self.convert(item) for item in value]
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple | range | KeysView | ValuesView | ItemsView):
            return [self.convert(item) for item in value]
        if isinstance(value, Set):
            return self._sorted([self.convert(item) for item in value])
        if dataclasses.is_dataclass(value):
            return {f.name: self.convert(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if hasattr(type(value), "model_dump") and hasattr(type(value), "model_fields"):
            return self.convert(value.model_dump())
        if isinstance(value, PurePath) or _is_of(value, "uuid", "UUID") or _is_of(value, "decimal", "Decimal"):
            return str(value)
        if any(_is_of(value, "datetime", name) for name in ("date", "time")):
            return value.isoformat()
        if _is_of(value, "datetime", "timedelta"):
            return value.total_seconds()
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
            return [self.convert(item) for item in value]
        if isinstance(value, bytes | bytearray):
            return self._text_of(value)
        raise SerializationError.of_value(self.where, value)

    def _mapping(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        if type(value) is dict and _is_flat(value):
            return value.copy()
        data: dict[str, Any] = {}
        for key, item in value.items():
            name = key if type(key) is str else self._key(key)
            if name in data:
                raise SerializationError.of_value(self.where, value, f"two of its keys become {name!r}")
            data[name] = self.convert(item)
        return data

    def _key(self, key: Any) -> str:
        plain = self.convert(key)
        if isinstance(plain, str):
            return plain
        if plain is None or isinstance(plain, bool):
            return {None: "null", True: "true", False: "false"}[plain]
        if isinstance(plain, int | float):
            return repr(plain)
        raise SerializationError.of_value(self.where, key, "it cannot be a key of data")

    @staticmethod
    def _sorted(items: list[Any]) -> list[Any]:
        # A set's order changes with the process's hash seed; a record must not.
        try:
            return sorted(items)
        except TypeError:
            return sorted(items, key=repr)

    def _numpy_scalar(self, value: Any) -> Any:
        plain = value.item()
        # A longdouble's item() is a longdouble again.
        return float(plain) if _is_numpy(plain, "generic") else self.convert(plain)

    def _array(self, value: Any) -> Any:
        if value.dtype.hasobject:
            raise SerializationError.of_value(self.where, value, "it is an array of Python objects")
        if self.arrays == "keep":
            return value
        if self.arrays == "copy":
            return value.copy()
        is_large = self.arrays == "describe" and value.size > SMALL
        return describe_array(value) if is_large else self.convert(value.tolist())

    def _text_of(self, value: bytes | bytearray) -> str:
        try:
            return bytes(value).decode("utf-8")
        except UnicodeDecodeError:
            raise SerializationError.of_value(self.where, value, "its bytes are no UTF-8 text") from None


def _is_numpy(value: Any, name: str) -> bool:
    return _is_of(value, "numpy", name)


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether ``value`` is of that class. Never imports its module: where that is not loaded there is no such value."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))
