"""SUPERVISOR SIDE. The slots of a pool and who gets one: plain decisions, made in one step, without an await.

Guarantees
    A slot leaves READY in the step that assigns it. Waiting leases are served in the order in which they came; one that
    gives up passes on what it was just given. When no slot will ever be ready again, every waiting lease is told why.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import field

import anyio

from corral.errors import EnvStartError, NoSlot
from corral.lean import dataclass
from corral.pool.backend import Node, SlotProcess, SlotWorker
from corral.pool.lifecycle import WorkerEvent, WorkerState, next_state


@dataclass
class Slot:
    """A place in the pool. Its worker can be replaced; the slot stays."""

    index: int
    state: WorkerState = WorkerState.ABSENT
    worker: SlotWorker | None = None
    process: SlotProcess | None = None
    """The trial process of the current lease; with ``reuse="worker"``, also of those before and after it."""
    node: Node | None = None
    """Where its worker is, or is being started."""
    leased: bool = False
    ready: anyio.Event = field(default_factory=anyio.Event)
    """Set while there is a loaded worker, or there will never be one again."""
    error: EnvStartError | None = None
    """Why its worker could not start."""
    trials: int = 0
    """Trials that were opened here."""
    trials_of_worker: int = 0
    restarts: int = 0
    losses: list[float] = field(default_factory=list)
    """When each of its workers was gone, in seconds since 1970 UTC."""
    busy_seconds: float = 0.0
    start_seconds: float = 0.0

    def lose(self, worker: SlotWorker) -> None:
        """Its worker is gone. Whoever learns of it first says so; once is enough."""
        if self.worker is worker:
            self.worker = self.process = self.node = None
            if self.state is not WorkerState.STOPPED:
                self.restarts += 1
                self.losses.append(time.time())
                self.advance(WorkerEvent.DIED)

    def advance(self, event: WorkerEvent) -> None:
        """Take one step of the lifecycle."""
        self.state = next_state(self.state, event)
        if self.state in (WorkerState.ABSENT, WorkerState.STARTING):
            if self.ready.is_set():
                self.ready = anyio.Event()
        else:
            self.ready.set()


@dataclass(eq=False)
class _Waiter:
    served: anyio.Event = field(default_factory=anyio.Event)
    slot: Slot | None = None
    refused: NoSlot | None = None


class Slots:
    """All slots of a pool, and the queue before them."""

    def __init__(self) -> None:
        self.all: list[Slot] = []
        self.shared_out: int | None = None
        """How many slots their user shares out, who lets no more trials come than that. None: as many as will may wait.

        When a slot is given up there are fewer. Who then waits in vain may hold what those need that have the others:
        they are sent away, to wait without holding anything.
        """
        self._queue: deque[_Waiter] = deque()

    def add(self) -> Slot:
        """One more slot, without a worker."""
        slot = Slot(len(self.all))
        self.all.append(slot)
        return slot

    async def take(self) -> Slot:
        """A ready slot, leased. EnvStartError when there will never be one, NoSlot when there are too few."""
        if not self._queue and (slot := self._assign()):
            return slot
        waiter = _Waiter()
        self._queue.append(waiter)
        self.hand_out()
        try:
            await waiter.served.wait()
        except BaseException:
            if waiter.slot is not None:
                self.give_back(waiter.slot)
            elif not waiter.served.is_set():
                self._queue.remove(waiter)
            raise
        if waiter.slot is None:
            raise waiter.refused or self._hopeless()
        return waiter.slot

    def take_one(self, wanted: Callable[[Slot], bool]) -> Slot | None:
        """A slot that is ready and wanted, leased; None if there is none."""
        return self._assign(wanted)

    def give_back(self, slot: Slot) -> None:
        """The lease is over; the slot goes to the next one."""
        slot.leased = False
        if slot.state is WorkerState.BUSY:
            slot.advance(WorkerEvent.RETURN)
        self.hand_out()

    def hand_out(self) -> None:
        """Serve the queue with what is ready. Called after every event."""
        while self._queue and (slot := self._assign()):
            waiter = self._queue.popleft()
            waiter.slot = slot
            waiter.served.set()
        left = [slot for slot in self.all if not slot.state.is_over]
        if not left:
            while self._queue:
                self._queue.popleft().served.set()
        if self.shared_out is not None and self.shared_out > len(left):
            to_come = sum(not slot.leased for slot in left)
            while len(self._queue) > to_come:
                waiter = self._queue.pop()
                waiter.refused = NoSlot(len(left))
                waiter.served.set()

    def _assign(self, wanted: Callable[[Slot], bool] = lambda slot: True) -> Slot | None:
        for slot in self.all:
            if slot.state.can_lease and not slot.leased and wanted(slot):
                slot.leased = True
                slot.advance(WorkerEvent.LEASE)
                return slot
        return None

    def _hopeless(self) -> EnvStartError:
        errors = [slot.error for slot in self.all if slot.error is not None]
        if not errors:
            return EnvStartError("the worker pool is closed")
        return EnvStartError(f"no worker is left: {errors[-1]}", record=errors[-1].record)
