"""Who uses what of an environment server: its guests are open trials and episodes, its visits requests under way.

A visit lasts from a request to its answer. The call that it asked for may go on when its client has gone: that call is
then nobody's use of the trial. ``Visits.look`` finds such visits; nothing is asked of the connections in between.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import anyio

from corral.door import Door
from corral.errors import NotFound
from corral.turns import Turn

Gone = Callable[[], Awaitable[bool]]
"""Whether the client of a request has gone. Answers at once."""


Place = tuple[Literal["trial", "task"], str]
"""What a visit is to: a trial, or the shared surface of a task, by its id."""


class Visits:
    """The requests that wait for an answer, by what they are about. ``used`` is told of each place that is in use."""

    def __init__(self, used: Callable[[Place], None]) -> None:
        self._used = used
        self._here: dict[Place, dict[object, Gone]] = {}

    @contextmanager
    def to(self, place: Place | None, gone: Gone) -> Iterator[None]:
        """A client waits there while the block runs, or until it is found to have gone."""
        if place is None:
            yield
            return
        visit = object()
        self._here.setdefault(place, {})[visit] = gone
        try:
            yield
        finally:
            self._leave(place, visit)

    def _leave(self, place: Place, visit: object) -> None:
        visits = self._here.get(place, {})
        if visits.pop(visit, None) is not None:
            self._used(place)
        if not visits:
            self._here.pop(place, None)

    async def look(self) -> None:
        """Who still waits uses the place. The visits of those who have gone end."""
        for place, visits in list(self._here.items()):
            for visit, gone in list(visits.items()):
                if await gone():
                    self._leave(place, visit)
                else:
                    self._used(place)


@dataclass(eq=False)
class Guest:
    """A trial or episode that clients use: what it holds, and when it was last used."""

    name: str
    run: str
    turn: Turn | None = None
    used_at: float = field(default_factory=time.monotonic)
    began: bool = False
    """Whether something was done in it."""

    def use(self) -> None:
        """It is used now."""
        self.used_at = time.monotonic()

    @property
    def unused(self) -> float:
        """Seconds since it was last used."""
        return time.monotonic() - self.used_at


@dataclass(eq=False)
class Stay(Guest):
    """An episode."""

    placing: anyio.Lock = field(default_factory=anyio.Lock)
    trials: set[str] = field(default_factory=set)
    opened: int = 0
    """Trials of it that were opened, and that a client came for, as far as is known."""
    door: Door = field(init=False)
    """By which its trials come in."""

    def __post_init__(self) -> None:
        self.door = Door(partial(NotFound, "episode", self.name))
