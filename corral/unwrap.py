"""Task groups wrap every exception in a group; users meet the exception itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the one exception that a group of the block holds, besides cancellations, instead of the group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = sole(group)
        if error is group:
            raise
        raise error from error.__cause__


def sole(error: BaseException) -> BaseException:
    """The only exception inside nested groups, cancellations aside; the group where there are several."""
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        leaves = [leaf for leaf in _leaves(error) if not isinstance(leaf, cancelled)]
        if len(leaves) == 1:
            return leaves[0]
    return error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
