"""SUPERVISOR SIDE. Trial processes of a worker that are made ahead of time: the next lease finds its process waiting.

Purpose
    A worker's state does not change between trials, so a process that is made of it while another one serves, or while
    none does, is as fresh as one that is made when a lease asks for it. What it takes to make one, and what the first
    steps of any process cost, is then on nobody's path; nor does what is left of the trial before hold up the next one.
Guarantees
    * At most one waits for each way in which processes are made; none that no lease can come for: where one process
      serves them all, or the worker is about to be renewed.
    * One that could not be made, was killed or stopped meanwhile, alone or with its worker, is charged to nobody: both
      are looked at before it is used. It has run nothing of anybody's, so one that is there does answer.
    * It is made when a processor is idle, and not in the moment in which many trials begin at once; where leases are
      far apart, when everything that begins with a trial has had its turn.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import anyio

from corral.errors import TrialError
from corral.pool.messages import Serves
from corral.pool.processes import has_idle_processor, is_there
from corral.types import FreshMode

if TYPE_CHECKING:
    from corral.pool.trial_handle import TrialProcess
    from corral.pool.worker import Worker

PAUSE = 0.05
"""Seconds after which a process is made though no processor is idle: what begins with a trial has then had its turn."""
FAR = 4 * PAUSE
"""Seconds between two leases: where they are further apart, one that is begun after the PAUSE comes early enough."""


class Ahead:
    """Those of one worker that wait, or are on their way."""

    def __init__(self, worker: Worker, most: int | None = None) -> None:
        """``most``: how many leases will take a process of this worker, at most."""
        self._worker = worker
        self._to_come = math.inf if most is None else most
        self._taken = time.monotonic()
        self._apart = 0.0
        """Seconds between the last two leases, or from the worker's start to its first."""
        self._waiting: dict[FreshMode, TrialProcess | None] = {}
        """None: it is just being ordered."""

    async def take(self, fresh: FreshMode) -> TrialProcess | None:
        """The one that waits, to serve a lease from now on. None if there is none, or none that is of use any more."""
        self._to_come -= 1
        now = time.monotonic()
        self._apart, self._taken = now - self._taken, now
        process = self._waiting.pop(fresh, None)
        if process is None:
            return None
        try:
            if await self._worker.has_come(process) and await self._worker.is_there() and is_there(process.pid):
                await self._worker.tell(Serves(process.number))
                return process
        except TrialError:  # nobody's fault: the lease gets another one
            pass
        except BaseException:
            await process.kill()
            raise
        await process.kill()
        return None

    async def prepare(self, fresh: FreshMode, over: anyio.Event) -> None:
        """Have one made: when a processor is idle, ``over`` is set, or after a PAUSE.

        An interpreter that loads computes for longer than one can tell that a processor will be idle.
        """
        if fresh == "spawn" or self._apart > FAR or not has_idle_processor():
            with anyio.move_on_after(PAUSE):
                await over.wait()
        if fresh in self._waiting or self._to_come < 1:
            return
        self._waiting[fresh] = None
        try:
            self._waiting[fresh] = await self._worker.order(fresh, ahead=True)
        finally:
            if self._waiting.get(fresh) is None:
                self._waiting.pop(fresh, None)

    def close(self) -> list[TrialProcess]:
        """Make no more; those that wait."""
        self._to_come = 0
        return [process for process in self._waiting.values() if process is not None]
