"""SUPERVISOR SIDE. Trial processes that could all end in one moment end one after the other.

Purpose
    With a trial's end a process closes and gives its memory back, and the next one opens: some milliseconds of
    computing. Where many trials end at once, processors that share all of it have everything done at the end of it; in
    turn, the first slots serve again long before the last ones, and their next trials end at different moments.
Guarantees
    As many end at once as ``most``: as there are processors beside the supervisor's, which has the records to make and
    the next trials to begin. Nobody waits for longer than PATIENCE: an environment that takes long
    to close keeps nobody up.
"""

from __future__ import annotations

from contextlib import nullcontext

import anyio

PATIENCE = 0.05
"""Seconds that one may wait for others to end."""


class Exits:
    """Of one machine."""

    def __init__(self, most: int) -> None:
        """``most``: how many go at once."""
        self._room = anyio.Semaphore(most, fast_acquire=True)
        self._going: set[anyio.Event] = set()

    async def turn(self, ended: anyio.Event) -> None:
        """Wait until one may end that has not ``ended`` by itself. ``has_gone`` is to follow, with the same event."""
        with anyio.move_on_after(PATIENCE) if self._room.value == 0 else nullcontext():
            await self._room.acquire()
            if ended.is_set():
                self._room.release()
            else:
                self._going.add(ended)

    def has_gone(self, ended: anyio.Event) -> None:
        """It has ended, whether it had its turn or not."""
        if ended in self._going:
            self._going.discard(ended)
            self._room.release()
