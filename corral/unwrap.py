"""Task groups wrap every exception in a group; users meet one exception, which they can catch by its class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio

TOLD = 5
"""Exceptions of other kinds than the first that its notes tell of: enough to see what else there was."""


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raise one exception of those that a group of the block holds, instead of the group: see ``sole``."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = sole(group)
        if error is group:
            raise
        raise error from error.__cause__


def sole(error: BaseException) -> BaseException:
    """The exception that stands for all inside nested groups; the group itself where there are only cancellations.

    One cause is met by many tasks at once: a full disk, a Ctrl-C. So the first one stands for its like. Others, which
    came in its wake, are told in its notes; a request to stop, which is no ``Exception``, goes before all of them.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    cancelled = anyio.get_cancelled_exc_class()
    leaves = [leaf for leaf in _leaves(error) if not isinstance(leaf, cancelled)]
    leaves.sort(key=lambda leaf: isinstance(leaf, Exception))  # stable: else in the order in which they came
    if not leaves:
        return error
    first = leaves[0]
    others = dict.fromkeys(said for leaf in leaves if (said := _said(leaf)) != _said(first))
    for said in list(others)[:TOLD]:
        first.add_note(f"besides: {said}")
    if len(others) > TOLD:
        first.add_note(f"and {len(others) - TOLD} more")
    return first


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
