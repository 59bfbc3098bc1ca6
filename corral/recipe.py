"""How an environment was made: copies of its constructor's arguments, from which a fresh one is made."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator
from contextvars import ContextVar
from functools import WRAPPER_ASSIGNMENTS
from typing import Any

from corral.lean import dataclass

trial_seed: ContextVar[int | None] = ContextVar("corraltrial_seed", default=None)
"""Set while ``new_instance`` constructs: a trial's instance is born with its seed, and keeps no recipe."""


@dataclass
class Recipe:
    """How to make the same instance again: its constructor's arguments, as they were before it ran."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: frozenset[int] = frozenset()
    """The ids of the caller's own objects: what happens to those later is no change of this environment."""
    replayable: bool = True

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
        """Copies of these arguments, taken before the constructor sees them."""
        memo: dict[int, Any] = {}
        recipe = cls(tuple(copied(a, memo) for a in args), {k: copied(v, memo) for k, v in kwargs.items()})
        recipe.given = frozenset(map(id, (*args, *kwargs.values())))
        # A generator or an open file that is shared would be empty for the second constructor.
        shared = [
            kept
            for given, kept in zip((*args, *kwargs.values()), (*recipe.args, *recipe.kwargs.values()), strict=True)
            if given is kept and isinstance(given, Iterator)
        ]
        recipe.replayable = not shared
        return recipe

    def copies(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the copies: for one more constructor call."""
        again = Recipe.of(self.args, self.kwargs)
        return again.args, again.kwargs


def copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy, or the value itself where it has none (a lock, an engine). ``memo`` gains what was copied whole."""
    attempt = dict(memo)
    try:
        made = copy.deepcopy(value, attempt)
    except Exception:
        # The attempt's memo holds half-made objects: whoever shares a part with this value must not get those.
        return value
    # deepcopy keeps temporaries alive under the id of the memo that it was given.
    alive = attempt.pop(id(attempt), [])
    memo.update(attempt)
    memo.setdefault(id(memo), []).extend(alive)
    return made


def rebound(function: Any, old: object, new: object) -> Any:
    """``function`` with ``new`` wherever it, or a function that it closes over, closes over ``old``.

    Copying does not do this: a function is copied by reference, and so would go on working on the old object.
    """
    return _rebound(function, old, new, {})


def _rebound(function: Any, old: object, new: object, done: dict[int, Any]) -> Any:
    if not isinstance(function, types.FunctionType) or not function.__closure__:
        return function
    if id(function) in done:
        return done[id(function)]
    done[id(function)] = function  # a function that closes over itself is left alone
    contents = [_content(cell) for cell in function.__closure__]
    fresh = [new if c is old else _rebound(c, old, new, done) for c in contents]
    if all(a is b for a, b in zip(contents, fresh, strict=True)):
        return function
    cells = [
        cell if a is b else types.CellType(b) for cell, a, b in zip(function.__closure__, contents, fresh, strict=True)
    ]
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    for name in WRAPPER_ASSIGNMENTS:  # what a function of this Python has besides
        setattr(made, name, getattr(function, name))
    done[id(function)] = made
    return made


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def equal(value: Any, other: Any) -> bool:
    """Whether two values are known to be equal."""
    try:
        return bool(value == other)
    except Exception:
        # Arrays inside: called different, and so copied; the value is the same either way.
        return False
