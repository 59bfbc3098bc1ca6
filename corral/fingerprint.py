"""What a task's results depend on, in the user's own code: the definitions that its code names, as text.

From a function or a class one goes to the functions, classes and constants of its module that it names, to those that
they name, and so on, through modules of the user's. The sources are read, and nothing is run or looked at by its value:
a value may differ from run to run, such as a temporary folder, where the code is the same.
Guarantees: comments and layout do not count, nor does what a task's code does not name, such as another task's code.
Limits: what is found by its name in text (``getattr``), files of data, and installed packages are not followed. A
function without a source, as of a console, counts by its bytecode.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from corral.installed import is_installed
from corral.tools import Tool

_Place = tuple[str, str]
"""A module and a name at its top."""


class Code:
    """The user's code, read once for all the tasks of a set.

    ``packages``: the first names of modules that count as the user's, wherever they are installed.
    """

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self._packages = frozenset(packages)
        self._sources: dict[str, _Source | None] = {}

    def of(self, things: Iterable[Any]) -> list[str]:
        """The definitions that functions, classes and tools depend on, each by a hash, always in the same order."""
        found = _Found(self)
        for thing in things:
            found.add(thing)
        return sorted(found.definitions)

    def source_of(self, module: str) -> _Source | None:
        """A module's text. None for what is not the user's, and for what has no text."""
        if module not in self._sources:
            self._sources[module] = _Source.of(module) if self.has(module) else None
        return self._sources[module]

    def has(self, module: str) -> bool:
        """Whether a module is the user's own: neither installed nor Corral's, but for the benchmarks that it brings."""
        first = module.partition(".")[0]
        if first == "corral":
            return module.startswith("corral.envs.")
        if first in self._packages:
            return True
        file = getattr(sys.modules.get(module), "__file__", None)
        return module not in sys.builtin_module_names and not (isinstance(file, str) and is_installed(file))


class _Found:
    """The definitions so far."""

    def __init__(self, code: Code) -> None:
        self.definitions: set[str] = set()
        self._code = code
        self._seen: set[_Place] = set()

    def add(self, thing: Any) -> None:
        """A function, class or tool, and what it names."""
        if isinstance(thing, Tool):
            thing = thing.function
        while isinstance(thing, partial | MethodType):
            thing = thing.func if isinstance(thing, partial) else thing.__func__
        thing = inspect.unwrap(thing) if callable(thing) else thing
        if isinstance(thing, type):
            for each in thing.__mro__:
                self._add_class(each)
        elif isinstance(thing, FunctionType):
            self._add_function(thing)
        elif callable(thing):  # an object with __call__
            self.add(type(thing))

    def _add_class(self, cls: type) -> None:
        self._follow(cls.__module__, cls.__qualname__.partition(".")[0])
        if self._code.source_of(cls.__module__) is None and self._code.has(cls.__module__):
            for function in filter(inspect.isfunction, vars(cls).values()):
                self._add_function(function)

    def _add_function(self, function: FunctionType) -> None:
        module = function.__module__ or ""
        source = self._code.source_of(module)
        name = source.name_at(function.__code__.co_firstlineno) if source is not None else None
        if name is not None:
            self._follow(module, name)
        elif self._code.has(module):
            self.definitions.add(f"{function.__qualname__}: {_hash(_bytecode(function.__code__))}")

    def _follow(self, module: str, name: str) -> None:
        rest = [(module, name)]
        while rest:
            if (place := rest.pop()) in self._seen:
                continue
            self._seen.add(place)
            if (source := self._code.source_of(place[0])) is not None:
                definitions, named = source.defined(place[1])
                self.definitions.update(definitions)
                rest += named


class _Source:
    """A module of the user's, by its text."""

    def __init__(self, module: ModuleType, tree: ast.Module) -> None:
        self._module = module
        self._statements: dict[str, list[ast.stmt]] = {}
        """At the module's top, by the names that they bind."""
        self._defined: dict[str, tuple[list[str], list[_Place]]] = {}
        self._lines: list[tuple[int, int, str]] = []
        for statement in _statements(tree.body):
            for name in _bound_by(statement):
                self._statements.setdefault(name, []).append(statement)
                first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
                self._lines.append((first, statement.end_lineno or first, name))

    @classmethod
    def of(cls, name: str) -> _Source | None:
        """None for what has no text."""
        module = sys.modules.get(name)
        if module is None or not isinstance(getattr(module, "__file__", None), str):
            return None
        try:
            return cls(module, ast.parse(inspect.getsource(module)))
        except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
            return None

    def name_at(self, line: int) -> str | None:
        """What is defined at the top around a line."""
        return next((name for first, last, name in self._lines if first <= line <= last), None)

    def defined(self, name: str) -> tuple[list[str], list[_Place]]:
        """What a name at the top is, each definition by a hash, and what these name or where it is from."""
        if name not in self._defined:
            self._defined[name] = self._look_up(name)
        return self._defined[name]

    def _look_up(self, name: str) -> tuple[list[str], list[_Place]]:
        definitions, named = [], list[_Place]()
        for statement in self._statements.get(name, ()):
            if isinstance(statement, ast.ImportFrom):
                named += self._imported(statement, name)
            elif not isinstance(statement, ast.Import):  # where it is from is not what it is
                definitions.append(f"{_stable(self._module.__name__)}.{name}: {_hash(ast.dump(statement))}")
                named += self._named_in(statement)
        return definitions, named

    def _named_in(self, definition: ast.stmt) -> Iterator[_Place]:
        """Names of this module's top that a definition uses, and of other modules' that it gets at as attributes."""
        own = self._module.__name__
        for node in ast.walk(definition):
            if isinstance(node, ast.Name):
                yield own, node.id
            elif isinstance(node, ast.Attribute) and (other := self._module_named(node.value)) is not None:
                yield other, node.attr

    def _imported(self, statement: ast.ImportFrom, name: str) -> Iterator[_Place]:
        if (module := self._origin(statement)) is not None:
            yield from ((module, alias.name) for alias in statement.names if (alias.asname or alias.name) == name)

    def _origin(self, statement: ast.ImportFrom) -> str | None:
        if not statement.level:
            return statement.module
        package = str(getattr(self._module, "__package__", "") or "").split(".")
        above = package[: len(package) - statement.level + 1]
        return ".".join([*above, *([statement.module] if statement.module else [])]) or None

    def _module_named(self, node: ast.expr) -> str | None:
        """The module that ``a`` or ``a.b`` is here."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        value: Any = getattr(self._module, node.id, None) if isinstance(node, ast.Name) else None
        for part in reversed(parts):
            value = getattr(value, part, None) if isinstance(value, ModuleType) else None
        return value.__name__ if isinstance(value, ModuleType) else None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those at a module's top, and in its ``if``, ``try``, ``with`` and loops."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(getattr(statement, part, ()))
        for handler in getattr(statement, "handlers", ()):
            yield from _statements(handler.body)


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _bytecode(code: CodeType) -> str:
    parts = [_bytecode(const) if isinstance(const, CodeType) else repr(const) for const in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {parts}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _stable(module: str) -> str:
    """A script is __main__ in the supervisor and __mp_main__ in a spawned worker."""
    return "__main__" if module == "__mp_main__" else module


# ---- data ----

MAX_DEPTH = 20
"""Levels of nesting that are looked into."""


def data_of(value: Any, depth: int = MAX_DEPTH) -> str:
    """Data as a text that is the same for the same data, in every process.

    Of objects that are none only the type counts, and of paths only that they are some: where something is may change.
    """
    if isinstance(value, PurePath) or (isinstance(value, str) and value.startswith(os.sep)):
        return "<path>"
    if value is None or isinstance(value, str | bytes | bool | int | float | complex):
        return repr(value)
    kind = f"{_stable(type(value).__module__)}.{type(value).__qualname__}"
    if depth == 0:
        return kind
    if isinstance(value, Mapping):
        inside = sorted(f"{data_of(key, depth - 1)}: {data_of(item, depth - 1)}" for key, item in value.items())
        return f"{{{', '.join(inside)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(data_of(item, depth - 1) for item in value)}]"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(data_of(item, depth - 1) for item in value))}}}"
    if hasattr(value, "dtype") and hasattr(value, "tobytes") and not getattr(value.dtype, "hasobject", True):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, partial):
        return f"{kind}({data_of([value.args, value.keywords], depth - 1)})"
    if is_dataclass(value):
        return f"{kind}({data_of({each.name: getattr(value, each.name, None) for each in fields(value)}, depth - 1)})"
    return kind
