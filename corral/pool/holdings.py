"""WORKER SIDE. What the modules of the user hold, at one moment and at a later one.

Purpose
    Tell what a trial changed of the state that modules keep, for the trials that follow in its process.
Guarantees
    Looking changes nothing and calls no user code. It costs milliseconds at most, whatever the modules hold: what lies
    deeper than DEPTH, or beyond BUDGET objects, is not looked at. Where nothing has changed, as after most trials,
    ``are_same`` says so in a tenth of that: the containers that were found still have the same entries.
Assumptions
    State is kept by modules of the user's, not by the standard library or by installed packages (their caches change
    with every call); a package that defines an environment counts as the user's.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

from corral.installed import is_installed

DEPTH = 3
"""How deep containers and objects are looked into."""
BUDGET = 20_000
"""Objects that one look goes over."""

LARGE = 1_000
"""Entries of a container from which on only their number is looked at."""

_WHOLE = frozenset({int, float, complex, bool, str, bytes, NoneType, FunctionType, BuiltinFunctionType, ModuleType})
"""What has nothing inside: only whether it is the same one is looked at."""

_SIZED = (list, tuple, set, frozenset, deque, dict, bytearray)
_FIXED = (tuple, frozenset)
"""What always has the entries that it has."""

_Check = Callable[[], bool]
"""Whether something is still as it was found."""


class Holdings:
    """The globals at one moment. References are held: or a new object could pass for an old one."""

    def __init__(self, packages: frozenset[str]) -> None:
        """``packages``: the first names of modules that count as the user's, wherever they are installed."""
        self._modules = list(sys.modules.values())
        self._parts: dict[str, list[Any]] = {}
        self._cut: set[str] = set()
        """Globals that the budget did not suffice for: only whether they are the same objects is known."""
        self._checks: dict[int, _Check] = {}
        """By the id of what is checked: much can be reached by several ways."""
        left = BUDGET
        for name, module in _users_modules(packages):
            self._check(module, partial(_has_entries, vars(module), *_entries_of(vars(module))))
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    left = self._look_at(f"{name}.{key}", value, left)

    def _look_at(self, name: str, value: Any, left: int) -> int:
        parts: list[Any] = []
        left = self._add(value, DEPTH, left, parts)
        if left <= 0:  # where it runs out depends on all that was looked at before
            self._cut.add(name)
            del parts[1:]
        self._parts[name] = parts
        return left

    def _add(self, value: Any, depth: int, left: int, parts: list[Any]) -> int:
        """Add the object and what it is made of, in an order that is the same each time; what is left of the budget."""
        left -= 1
        parts.append(value)
        if left <= 0 or depth == 0 or type(value) in _WHOLE:
            return left
        if (state := _state_of(value)) is not None:
            parts.append(state)
            self._check(state, partial(_has_state, value, state))
        for part in self._inside(value):
            left = self._add(part, depth - 1, left, parts)
        return left

    def _inside(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        if kind in _SIZED:
            return () if len(value) > LARGE else self._entries(value)
        if issubclass(kind, type):
            attributes = type.__getattribute__(value, "__dict__")  # a view of them, made anew each time
            self._check(value, partial(_has_entries, attributes, *_entries_of(attributes)))
        elif kind.__module__ == "builtins":
            return ()
        else:
            try:
                attributes = object.__getattribute__(value, "__dict__")
            except AttributeError:
                return ()
            self._check(value, partial(_has_attributes, value, attributes))
            self._check(attributes, partial(_has_entries, attributes, *_entries_of(attributes)))
        return [part for name, part in list(attributes.items()) if not str(name).startswith("__")]

    def _entries(self, value: Any) -> list[Any]:
        if type(value) is not dict:
            items = list(value)
            if type(value) not in _FIXED:
                self._check(value, partial(_has_items, value, items))
            return items
        self._check(value, partial(_has_entries, value, *_entries_of(value)))
        return [item for pair in list(value.items()) for item in pair]

    def _check(self, value: Any, check: _Check) -> None:
        self._checks.setdefault(id(value), check)

    def are_same(self) -> bool:
        """Whether nothing has changed since. "No" only means that it is not known without another look."""
        try:
            return _has_items(sys.modules.values(), self._modules) and all(map(operator.call, self._checks.values()))
        except Exception:  # as where a thread changes what is looked at
            return False

    def changed_until(self, now: Holdings) -> list[str]:
        """The globals that are different then, by name."""
        if now is self:
            return []
        known = {_module_of(name) for name in self._parts}  # what was imported since is no trace
        cut = self._cut | now._cut
        return [
            name
            for name, parts in now._parts.items()
            if _module_of(name) in known
            and not _same(self._parts.get(name, [])[: 1 if name in cut else None], parts[: 1 if name in cut else None])
        ]


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or all(map(_is_same, before, now))


def _is_same(a: Any, b: Any) -> bool:
    # A generator's state is made anew for each look; everything else is the same object or another one.
    return a is b or (type(a) is _State and type(b) is _State and a.text == b.text)


class _State:
    """What is compared by its text: the state of a random generator, the size of a large container."""

    def __init__(self, text: str) -> None:
        self.text = text


def _state_of(value: Any) -> _State | None:
    if type(value) in _SIZED and len(value) > LARGE:
        return _State(str(len(value)))
    if issubclass(type(value), random.Random):
        return _State(str(hash(value.getstate())))
    if type(value).__module__.startswith("numpy.random") and type(value).__name__ in ("Generator", "RandomState"):
        bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
        return _State(repr(getattr(bits, "state", None)))
    return None


# ---- whether something is as it was found ----


def _has_items(value: Any, items: list[Any]) -> bool:
    return len(value) == len(items) and all(map(operator.is_, value, items))


def _entries_of(entries: Mapping[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(entries.keys()), list(entries.values())


def _has_entries(entries: Mapping[Any, Any], keys: list[Any], values: list[Any]) -> bool:
    same_keys = len(entries) == len(keys) and all(map(operator.is_, entries.keys(), keys))
    return same_keys and all(map(operator.is_, entries.values(), values))


def _has_attributes(value: Any, attributes: object) -> bool:
    return object.__getattribute__(value, "__dict__") is attributes


def _has_state(value: Any, state: _State) -> bool:
    now = _state_of(value)
    return now is not None and now.text == state.text


# ---- whose modules ----


def _users_modules(packages: frozenset[str]) -> Iterator[tuple[str, ModuleType]]:
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType) and _is_users(name, module, packages):
            yield name, module


_known: dict[str, bool] = {}


def _is_users(name: str, module: ModuleType, packages: frozenset[str]) -> bool:
    if name not in _known:
        _known[name] = _look_up(name, module, packages)
    return _known[name]


def _look_up(name: str, module: ModuleType, packages: frozenset[str]) -> bool:
    if name.partition(".")[0] in packages:
        return True
    file = getattr(module, "__file__", None)
    if name == "corral" or name.startswith("corral.") or not isinstance(file, str):
        return name in ("__main__", "__mp_main__")
    return not is_installed(file)
