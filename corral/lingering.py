"""Calls that were given up and go on, of trials that must run alone: how long they keep the next trial waiting.

Guarantees
    * What must run alone runs beside no such call that ends within LINGER seconds of its trial's end.
    * Who begins beside one that takes longer gets a warning for his record, as long as that call goes on.
    * Only who comes next waits: a record is made at the limit, and a run that is stopped does not wait for anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from corral.hosts import InProcessHost
from corral.types import ConcurrencyMode, TrialKey

LINGER = 5.0
"""Seconds that a call which was given up may keep the next trial waiting. Most calls that pass a limit end soon after
it; one that hangs for good must cost a run no more than on a pool, where a fault is made good in as long."""


@dataclass(frozen=True)
class _Call:
    """What goes on: whose it is, and until when it is waited for."""

    host: InProcessHost
    trial: TrialKey
    mode: ConcurrencyMode
    until: float


class Lingering:
    """The calls that go on."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def note(self, host: InProcessHost, trial: TrialKey, mode: ConcurrencyMode) -> None:
        """A trial that ran alone is over. What it left running counts from now."""
        if host.is_busy:
            self._calls.append(_Call(host, trial, mode, anyio.current_time() + LINGER))

    async def wait(self, *, gated: bool) -> tuple[str, ...]:
        """Before a trial begins: wait, and give the warnings that it begins with.

        A call of a serial trial concerns all; others only those that wait at the ``gate`` for each other.
        """
        concerned = [call for call in self._calls if gated or call.mode == "serial"]
        for call in concerned:
            if call.host.is_busy and (seconds := call.until - anyio.current_time()) > 0:
                await call.host.rest(seconds)
        self._calls = [call for call in self._calls if call.host.is_busy]
        return tuple(_warning(call) for call in concerned if call.host.is_busy)


def _warning(call: _Call) -> str:
    return (
        f"it began while a call of {call.trial}, which was given up and cannot be killed, still ran in this process: "
        f"a trial of the class {call.mode!r} must run alone here"
    )
