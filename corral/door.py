"""A door: what is on its way into something that may be closed.

Guarantees
    * Who is on the way in when the door is shut is turned back, with what the refusal says; nobody sets out after that.
    * Once ``emptied`` returns, whoever has got in has been noted by those who let it in: closing what is inside then
      leaves nothing behind.
Assumption: what gets in is noted before the ``entering`` block ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio


class Door:
    """``with door.entering():`` is the way in. ``refusal`` makes what is raised by a door that is shut."""

    def __init__(self, refusal: Callable[[], Exception]) -> None:
        self.is_shut = False
        self._refusal = refusal
        self._entering: set[anyio.CancelScope] = set()
        self._empty: anyio.Event | None = None

    @property
    def in_use(self) -> bool:
        """Whether somebody is on the way in."""
        return bool(self._entering)

    @contextmanager
    def entering(self) -> Iterator[None]:
        """On the way in. One that arrives in the moment of the shutting, before it could be told, is in."""
        if self.is_shut:
            raise self._refusal()
        with anyio.CancelScope() as scope:
            self._entering.add(scope)
            try:
                yield
            finally:
                self._leave(scope)
        if scope.cancelled_caught:
            raise self._refusal()

    def _leave(self, scope: anyio.CancelScope) -> None:
        self._entering.discard(scope)
        if not self._entering and self._empty is not None:
            self._empty.set()

    def shut(self) -> None:
        """Let nobody in any more, and turn back who is on the way."""
        self.is_shut = True
        for scope in list(self._entering):
            scope.cancel()

    async def emptied(self) -> None:
        """Wait until nobody is on the way in. For a door that is shut, or this may never be."""
        if self._entering:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()
