"""Turns: a counted resource that several runs share fairly. Each next one goes to the run that holds the fewest.

Guarantees: a turn is handed over in the step that frees it; within a run the order is that of asking; a run that waits
for one turn gets it before another gets more than its share; a waiter that is cancelled passes its turn on.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import anyio


@dataclass(eq=False)
class Turn:
    """One unit, waited for or held."""

    run: str
    number: int
    served: anyio.Event = field(default_factory=anyio.Event)


class Turns:
    """``capacity`` turns, and the queue before them."""

    def __init__(self, capacity: int) -> None:
        self._free = capacity
        self._asked = 0
        self._held: Counter[str] = Counter()
        self._queues: dict[str, deque[Turn]] = {}

    @property
    def free(self) -> int:
        """Turns that nobody holds."""
        return self._free

    @property
    def waiting(self) -> int:
        """How many wait."""
        return sum(map(len, self._queues.values()))

    async def take(self, run: str) -> Turn:
        """Wait for a turn."""
        self._asked += 1
        turn = Turn(run, self._asked)
        self._queues.setdefault(run, deque()).append(turn)
        self._serve()
        try:
            await turn.served.wait()
        except BaseException:
            self._withdraw(turn)
            raise
        return turn

    def give_back(self, turn: Turn) -> None:
        """The turn is over; it goes to the next one."""
        self._free += 1
        self._held[turn.run] -= 1
        if not self._held[turn.run]:
            del self._held[turn.run]
        self._serve()

    def _withdraw(self, turn: Turn) -> None:
        if turn.served.is_set():
            self.give_back(turn)
            return
        queue = self._queues[turn.run]
        queue.remove(turn)
        if not queue:
            del self._queues[turn.run]

    def _serve(self) -> None:
        while self._free and self._queues:
            run = min(self._queues, key=lambda run: (self._held[run], self._queues[run][0].number))
            turn = self._queues[run].popleft()
            if not self._queues[run]:
                del self._queues[run]
            self._free -= 1
            self._held[run] += 1
            turn.served.set()
