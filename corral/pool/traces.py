"""WORKER SIDE. What a trial leaves behind in a process that serves others after it (``reuse="worker"``).

Purpose
    Say, in the record of the trial that did it, what later trials may see of it. Nothing is put back but what each
    trial is given anew: its environment object, its directory, the global generators of ``random`` and of NumPy.
Guarantees
    Looking changes nothing and calls no user code. It costs a few milliseconds, whatever the modules hold: what lies
    deeper than DEPTH, or beyond BUDGET objects, is not looked at.
Assumptions
    State is kept by modules of the user's, not by the standard library or by installed packages (their caches change
    with every call); a package that defines an environment counts as the user's.
"""

from __future__ import annotations

import operator
import os
import random
import site
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

LEFT = "left behind in its process, which later trials share: "
"""How the warning begins."""

DEPTH = 3
"""How deep containers and objects are looked into."""
BUDGET = 20_000
"""Objects that one look goes over."""
NAMED = 5
"""How many of each sort are named."""

LARGE = 1_000
"""Entries of a container from which on only their number is looked at."""

_WHOLE = frozenset({int, float, complex, bool, str, bytes, NoneType, FunctionType, BuiltinFunctionType, ModuleType})
"""What has nothing inside: only whether it is the same one is looked at."""

_SIZED = (list, tuple, set, frozenset, deque, dict, bytearray)


_first: list[str] = []
"""The directory of the process before its first trial: to be back there is no trace."""


class Traces:
    """The state of this process at one moment. References are held: or a new object could pass for an old one."""

    def __init__(self, packages: Iterable[str]) -> None:
        """``packages``: the first names of modules that count as the user's, wherever they are installed."""
        self._packages = frozenset(packages)
        self._variables = dict(os.environ)
        self._directory = _directory()
        if not _first:
            _first.append(self._directory)
        self._threads = {thread.ident: thread.name for thread in threading.enumerate()}
        self._native_threads = _native_threads()
        self._descriptors = _descriptors()
        self._globals: dict[str, list[Any]] = {}
        self._cut: set[str] = set()
        """Globals that the budget did not suffice for: only whether they are the same objects is known."""
        self._look_at_globals()

    def _look_at_globals(self) -> None:
        left = BUDGET
        for name, value in _globals(self._packages):
            parts: list[Any] = []
            left = _add_parts(value, DEPTH, left, parts)
            if left <= 0:  # where it runs out depends on all that was looked at before
                self._cut.add(name)
                del parts[1:]
            self._globals[name] = parts

    @property
    def settled(self) -> bool:
        """Whether nothing changes before this process is asked for something: it has one thread."""
        return self._native_threads == 1

    def left_until(self, now: Traces) -> str | None:
        """What is different then, in words; None if nothing is."""
        found = [
            _named("module globals", self._changed_globals(now)),
            _named("environment variables", _changed(self._variables, now._variables)),
            _named(
                "the current directory", [now._directory] if now._directory not in (self._directory, _first[0]) else []
            ),
            _named("threads", [now._threads[ident] for ident in now._threads.keys() - self._threads.keys()]),
            _named(
                "open descriptors", [what for key, what in now._descriptors.items() if key not in self._descriptors]
            ),
        ]
        more = now._native_threads - self._native_threads - len(now._threads.keys() - self._threads.keys())
        if more > 0:
            found.append(f"{more} native threads")
        told = "; ".join(part for part in found if part)
        return LEFT + told if told else None

    def _changed_globals(self, now: Traces) -> list[str]:
        known = {_module_of(name) for name in self._globals}  # what was imported since is no trace
        cut = self._cut | now._cut
        return [
            name
            for name, parts in now._globals.items()
            if _module_of(name) in known
            and not _same(
                self._globals.get(name, [])[: 1 if name in cut else None], parts[: 1 if name in cut else None]
            )
        ]


def _named(what: str, names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:NAMED])
    return f"{what} {shown}" + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]


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


def _globals(packages: frozenset[str]) -> Iterator[tuple[str, Any]]:
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), ModuleType) and _is_users(name, module, packages):
            for key, value in list(vars(module).items()):
                if not key.startswith("__"):
                    yield f"{name}.{key}", value


def _add_parts(value: Any, depth: int, left: int, parts: list[Any]) -> int:
    """Add the object and what it is made of, in an order that is the same each time; what is left of the budget."""
    left -= 1
    parts.append(value)
    if left <= 0 or depth == 0 or type(value) in _WHOLE:
        return left
    if (state := _state_of(value)) is not None:
        parts.append(state)
    for part in _inside(value):
        left = _add_parts(part, depth - 1, left, parts)
    return left


def _inside(value: Any) -> Iterable[Any]:
    kind = type(value)
    if kind in _SIZED:
        return () if len(value) > LARGE else _entries(value)
    if issubclass(kind, type):
        attributes = type.__getattribute__(value, "__dict__")
    elif kind.__module__ == "builtins":
        return ()
    else:
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return ()
    return [part for name, part in list(attributes.items()) if not str(name).startswith("__")]


def _entries(value: Any) -> list[Any]:
    return [item for pair in list(value.items()) for item in pair] if type(value) is dict else list(value)


def _state_of(value: Any) -> _State | None:
    if type(value) in _SIZED and len(value) > LARGE:
        return _State(str(len(value)))
    if issubclass(type(value), random.Random):
        return _State(str(hash(value.getstate())))
    if type(value).__module__.startswith("numpy.random") and type(value).__name__ in ("Generator", "RandomState"):
        bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
        return _State(repr(getattr(bits, "state", None)))
    return None


_INSTALLED = tuple({
    *(os.path.realpath(path) + os.sep for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))),
    *(os.path.realpath(path) + os.sep for path in [*site.getsitepackages(), site.getusersitepackages()]),
})  # fmt: skip


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
    return not os.path.realpath(file).startswith(_INSTALLED)


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(removed)"


def _native_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _descriptors() -> dict[tuple[int, str], str]:
    found = {}
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # the one that lists
                continue
            found[int(name), target] = f"{name} ({target})"
    except OSError:
        return {}
    return found
