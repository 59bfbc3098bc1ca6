"""BOTH SIDES. A look at a socket before going to sleep for it.

Purpose
    A process that sleeps is woken by its peer in about 20 us where that is on another processor, twice per tool call:
    more than all the rest of a short call takes. So who waits for what came soon the last time looks again and again
    for GLANCE, and sleeps only then.
Guarantees
    * At most GLANCE of a processor per wait, and only where the last wait was SHORT: a tool that computes, or a model
      that thinks, costs one such look and no more. A look in vain is followed by waits without one, up to
      MOST_SKIPPED of them.
    * No look where the peer ran on the processor that looks, when it was last heard of: it could do nothing meanwhile.
      One of the two may then step aside, to another processor: a virtual one that sleeps is none that the kernel wakes
      a process on, and the two would share one for good. It does so at most once in STEP_PAUSE, unless looks pay.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import sys
from collections.abc import Callable
from time import perf_counter

from corral.pool.wire import NOWHERE

GLANCE = 100e-6
"""Seconds. Long enough for the answer of a tool that does next to nothing."""
SHORT = 300e-6
"""Seconds. A wait that is worth a look: that of an answer within GLANCE, and of two processes being woken up for it."""
MOST_SKIPPED = 64
"""Waits. What looks in vain cost at the worst: GLANCE by this, 1.6 us per wait."""
STEP_PAUSE = 0.1
"""Seconds. Where the other processor is busy after all, a step can cost a slice of the kernel's, some 3 ms."""
HIT_EARNS = 1e-3
"""Seconds by which the next step comes closer with each look that pays."""
CHUNK = 2**16
"""Bytes taken at once."""
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""For all that is sent: to one that is gone, it is an error. Where a script has set SIGPIPE to its default, as is usual
for what is piped into ``head``, it would be the silent end of this process.
"""

_AT_ONCE = getattr(socket, "MSG_DONTWAIT", None)


def _find_here() -> Callable[[], int]:
    libc = ctypes.PyDLL(None) if sys.platform == "linux" else None  # PyDLL keeps the GIL: it takes 0.03 us
    return getattr(libc, "sched_getcpu", lambda: NOWHERE)


here = _find_here()
"""The processor that this thread runs on; NOWHERE if the system does not tell."""


def step_aside() -> bool:
    """Move this thread to another processor, if it may run on one. It is free to come back."""
    if sys.platform != "linux":
        return False
    try:
        allowed = os.sched_getaffinity(0)
        others = allowed - {here()}
        if others:
            os.sched_setaffinity(0, others)
            os.sched_setaffinity(0, allowed)
        return bool(others)
    except OSError:  # it is forbidden
        return False


class Glance:
    """Looks at one socket. Call ``take``; where that gives None, wait for the bytes and call ``learn``."""

    __slots__ = ("_began", "_next_step", "_pays", "_skip", "_socket", "_to_skip")

    def __init__(self, sock: socket.socket, *, steps_aside: bool = False) -> None:
        """``steps_aside``: whether it is this side that does so."""
        self._socket = sock
        self._next_step = 0.0 if steps_aside else math.inf
        """When it may step aside again."""
        self._began = 0.0
        self._pays = False
        """Whether the last wait was short."""
        self._skip = 0
        """Waits to come without a look."""
        self._to_skip = 1
        """Waits without a look after the next one in vain."""

    def take(self, peer: int) -> bytes | None:
        """Bytes that come at once; none at the end of the stream; None if they are to be waited for.

        ``peer``: the processor that they are to come from, or NOWHERE. OSError for a socket that failed.
        """
        self._began = now = perf_counter()
        if not self._pays or _AT_ONCE is None:
            return None
        if peer != NOWHERE and peer == here():
            if not self._step_aside(now):
                return None
            now = perf_counter()
        if self._skip:
            self._skip -= 1
            return None
        until = now + GLANCE
        while now < until:
            try:
                data = self._socket.recv(CHUNK, _AT_ONCE)
            except BlockingIOError:
                now = perf_counter()
                continue
            self._to_skip = max(self._to_skip // 2, 1)
            self._next_step -= HIT_EARNS
            return data
        self._skip, self._to_skip = self._to_skip, min(self._to_skip * 2, MOST_SKIPPED)
        return None

    def _step_aside(self, now: float) -> bool:
        if now < self._next_step:
            return False
        self._next_step = now + STEP_PAUSE
        self._skip = 0
        return step_aside()

    def learn(self) -> None:
        """The bytes have come: whether they came at once decides what the next ``take`` does."""
        self._pays = perf_counter() - self._began < SHORT
