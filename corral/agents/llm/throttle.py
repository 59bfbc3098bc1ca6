"""Fewer requests at once to a model that says "too many", and slowly more again: one throttle for all trials of a run.

After a 429 the requests in flight are halved; every answer lets a little more through (additive increase,
multiplicative decrease: Chiu and Jain 1989, doi 10.1016/0169-7552(89)90019-6). It only ever bounds what the run's own
limits let through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf

import anyio
from anyio.lowlevel import RunVar


@dataclass
class Turn:
    """One request that was let through; who makes it says how it went."""

    cuts: int
    limited: bool = False
    """The endpoint said that there were too many."""
    succeeded: bool = False


class Throttle:
    """Bounds the requests in flight to one model."""

    def __init__(self) -> None:
        self.limit = inf
        """Requests that may be in flight; a fraction is on its way to the next whole one."""
        self.in_flight = 0
        self._ceiling = inf
        self._cuts = 0
        self._waiting: deque[anyio.Event] = deque()

    @property
    def is_lowered(self) -> bool:
        """Whether it lets fewer through than there were before the endpoint complained."""
        return self.limit < self._ceiling

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Wait until one more request may be made; it is made inside the block."""
        await self._enter()
        turn = Turn(self._cuts)
        try:
            yield turn
        finally:
            self._settle(turn)
            self.in_flight -= 1
            self._wake()

    async def _enter(self) -> None:
        while self.in_flight >= max(1, int(min(self.limit, 1e9))):
            event = anyio.Event()
            self._waiting.append(event)
            try:
                await event.wait()
            except BaseException:
                if event.is_set():
                    self._wake()  # the turn was ours: pass it on
                else:
                    self._waiting.remove(event)
                raise
        self.in_flight += 1

    def _settle(self, turn: Turn) -> None:
        if turn.limited and turn.cuts == self._cuts:  # requests sent before the last cut say nothing new
            self._ceiling = max(self.in_flight, 2) if not self.is_lowered else self._ceiling
            self.limit = max(1.0, self.in_flight / 2)
            self._cuts += 1
        elif turn.succeeded and self.limit < inf:
            self.limit += 1 / self.limit
            if not self.is_lowered:
                self.limit = self._ceiling = inf

    def _wake(self) -> None:
        free = min(self.limit, 1e9) - self.in_flight
        while self._waiting and free >= 1:
            self._waiting.popleft().set()
            free -= 1


_throttles: RunVar[dict[str, Throttle]] = RunVar("corral_throttles")


def throttle_of(model: str) -> Throttle:
    """The throttle of a model, shared by all that run in this event loop."""
    try:
        known = _throttles.get()
    except LookupError:
        known = {}
        _throttles.set(known)
    return known.setdefault(model, Throttle())


def held_back() -> dict[str, int]:
    """The models of this run that are held back: what they may have, and how many requests wait (the progress view)."""
    try:
        known = _throttles.get()
    except LookupError:
        return {}
    return {
        f"requests to {model} ({max(1, int(throttle.limit))} at once)": throttle.waiting
        for model, throttle in known.items()
        if throttle.is_lowered
    }
