"""The front of an environment server: a TrialService as many clients, who come, share and vanish, may use it.

Guarantees
    * Slots, and the gate of trials that run alone, go to the runs that wait for them in fair shares; more clients than
      slots wait, and none is refused.
    * A trial, or an episode, that no client has used for ``idle_timeout`` seconds is closed, and its slot is back at
      most SWEEP seconds later. Waiting for a call's end is use, however long it takes; a call whose client has gone is
      none, and is ended with the trial.
    * A task's shared trial that nothing was done in, or that is over, keeps no slot from anyone who waits.
    * An episode that is closed while trials of it are being opened turns these back, and only then gives its slot back:
      none of them is left over, and none shares the slot with those who get it next.
    * Draining: no trial is opened any more, those that wait are told so, and what runs goes on.
Assumption: nobody else opens or closes trials of the service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from corral.bodies import NewTrial
from corral.counters import Counters
from corral.door import Door
from corral.errors import ConfigError, NotFound, TrialError
from corral.guests import Guest, Place, Stay, Visits
from corral.open_trial import OpenTrial
from corral.pool.messages import Closed
from corral.protocol import Draining
from corral.service import TrialService
from corral.turns import Turn, Turns
from corral.types import Action, TaskInfo

log = logging.getLogger("corral.server")

SWEEP = 1.0
"""Seconds after the idle limit within which what is idle, or abandoned, has given back its slot."""

SHARED = "shared"
"""The run that the tasks' shared trials belong to."""

STOPPING = "the environment server is stopping and opens no trials any more"

_DEEDS = frozenset({Action.EXECUTE, Action.CONFIGURE})


class Front:
    """Opens, drives and closes trials for clients."""

    def __init__(self, service: TrialService, *, idle_timeout: float, counters: Counters | None = None) -> None:
        self.service = service
        self.counters = counters or Counters()
        self._door = Door(lambda: Draining(STOPPING))
        self._idle_timeout = idle_timeout
        self._slots = Turns(service.pool.size if service.pool is not None else 0)
        self._gate = Turns(1)
        self._trials: dict[str, Guest] = {}
        self._stays: dict[str, Stay] = {}
        self._shared: dict[str, Guest] = {}
        self._sharing: dict[str, anyio.Lock] = {}
        self.visits = Visits(self._used)
        """Who waits for an answer: kept by who serves the requests."""
        self._calls = 0
        self._room = anyio.Lock()

    # ---- what it tells ----

    @property
    def draining(self) -> bool:
        """Whether no trial is opened any more."""
        return self._door.is_shut

    @property
    def waiting(self) -> int:
        """Trials that wait for a place."""
        return self._slots.waiting + self._gate.waiting

    @property
    def open_trials(self) -> int:
        """Trials that are open, shared ones included."""
        return len(self._trials) + len(self._shared)

    @property
    def running_calls(self) -> int:
        """Calls into environments that run or wait for their turn."""
        return self._calls

    def find(self, runtime_id: str) -> OpenTrial:
        """An open trial, as the service keeps it. NotFound if there is none of that id, or it is a shared one."""
        self._guest(runtime_id)
        return self.service.find(runtime_id)

    def info(self, task_id: str) -> TaskInfo:
        """A task of the catalogue; NotFound for an unknown one."""
        try:
            return self.service.catalogue[task_id]
        except KeyError:
            raise NotFound("task", task_id, list(self.service.catalogue)) from None

    # ---- trials ----

    async def open(self, task_id: str, order: NewTrial) -> OpenTrial:
        """Open a trial when its turn comes. Draining if the server stops meanwhile, NotFound if its episode ends."""
        info, began = self.info(task_id), time.monotonic()
        guest = Guest("", order.benchmark_run_id or "")
        stay = self._stay(order, guest.run)
        try:
            with self._arrival(stay):
                trial = await self._open(info, guest, stay, order)
        except anyio.get_cancelled_exc_class():  # its client has gone
            if stay is not None:
                await self._close_unused(stay)
            raise
        self.counters.opened.labels(info.mode).inc()
        log.info("trial opened", extra=_facts(trial, run=guest.run, waited_s=round(time.monotonic() - began, 3)))
        return trial

    async def _open(self, info: TaskInfo, guest: Guest, stay: Stay | None, order: NewTrial) -> OpenTrial:
        await self._place(info, guest, stay)
        try:
            trial = await self.service.create_trial(info.task_id, **_wanted(order))
        except BaseException:
            self._leave(guest, info)
            raise
        guest.name = trial.runtime_id
        guest.use()
        self._trials[trial.runtime_id] = guest
        if stay is not None:
            stay.trials.add(trial.runtime_id)
            stay.opened += 1
        return trial

    @contextmanager
    def _arrival(self, stay: Stay | None = None) -> Iterator[None]:
        with ExitStack() as doors:
            doors.enter_context(self._door.entering())
            if stay is not None:
                doors.enter_context(stay.door.entering())
                doors.callback(stay.use)
            yield

    def _stay(self, order: NewTrial, run: str) -> Stay | None:
        if order.episode_id is None:
            return None
        stay = self._stays.setdefault(order.episode_id, Stay(order.episode_id, run))
        if stay.run != run:
            raise ConfigError(f"episode {order.episode_id!r} belongs to another run: choose another episode_id")
        return stay

    async def _place(self, info: TaskInfo, guest: Guest, stay: Stay | None) -> None:
        turns = self._turns_for(info)
        if turns is None:
            return
        if turns is self._slots and stay is not None:
            async with stay.placing:  # two at once must not take two turns
                stay.turn = stay.turn or await self._take(turns, stay.run)
        else:
            guest.turn = await self._take(turns, guest.run)

    def _turns_for(self, info: TaskInfo) -> Turns | None:
        if info.mode == "thread":
            return None
        return self._slots if info.mode == "process" and self.service.pool is not None else self._gate

    async def _take(self, turns: Turns, run: str) -> Turn:
        if turns is self._slots and not turns.free:
            await self.make_room()
        return await turns.take(run)

    def _leave(self, guest: Guest, info: TaskInfo) -> None:
        turns = self._turns_for(info)
        if guest.turn is not None and turns is not None:
            turns.give_back(guest.turn)
            guest.turn = None

    async def ask(self, runtime_id: str, action: Action, *arguments: Any) -> Any:
        """Ask something of an open trial. Calls of one trial run one after the other, in the order they came."""
        self._guest(runtime_id)
        async with self._call():
            return await self._asked(self.service.find(runtime_id), action, *arguments)

    def _guest(self, runtime_id: str) -> Guest:
        try:
            return self._trials[runtime_id]
        except KeyError:
            raise NotFound("trial", runtime_id) from None

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    async def _asked(self, trial: OpenTrial, action: Action, *arguments: Any) -> Any:
        try:
            with self.counters.seconds.labels(action.value).time():
                return await self.service.perform(trial.runtime_id, action, *arguments)
        except TrialError as error:
            error.worker = error.worker or trial.worker  # its client may not have seen where it was opened
            if trial.fault is error:
                self.counters.failed.labels(error.kind.value).inc()
                log.warning("trial broke", extra=_facts(trial, kind=error.kind.value, phase=error.phase))
            raise

    async def close(self, runtime_id: str, why: str = "asked") -> Closed:
        """Close a trial and give back its slot. NotFound if it is closed already."""
        guest, trial = self._guest(runtime_id), self.service.find(runtime_id)
        used_at = guest.used_at
        del self._trials[runtime_id]
        if trial.episode_id in self._stays:
            stay = self._stays[trial.episode_id]
            stay.trials.discard(runtime_id)
            stay.used_at = max(stay.used_at, guest.used_at if why == "idle" else time.monotonic())
        try:
            return await self.service.close_trial(runtime_id)
        finally:
            self._leave(guest, self.info(trial.task_id))
            unused = round(time.monotonic() - used_at, 3)
            log.info("trial closed", extra=_facts(trial, why=why, unused_s=unused))

    async def close_episode(self, episode_id: str, why: str = "asked") -> None:
        """Close what is open of an episode, and give back its slot. NotFound if it is closed already.

        A trial of it that is being opened is turned back first. The episode keeps its name until it has nothing left,
        so that no other one can come by its slot in the meantime.
        """
        if (stay := self._stays.get(episode_id)) is None or stay.door.is_shut:
            raise NotFound("episode", episode_id)
        stay.door.shut()
        with anyio.CancelScope(shield=True):
            try:
                await stay.door.emptied()
                await self._close_stay(stay, why)
            finally:
                del self._stays[episode_id]
                if stay.turn is not None:
                    self._slots.give_back(stay.turn)

    async def _close_stay(self, stay: Stay, why: str) -> None:
        for runtime_id in list(stay.trials):
            with suppress(NotFound):
                await self.close(runtime_id, why)
        with suppress(NotFound):  # none of its trials could be opened
            await self.service.close_episode(stay.name)

    async def forsake(self, runtime_id: str) -> None:
        """Close a trial that its client never came for, and its episode where that is all there was of it."""
        stay = self._stays.get(self.find(runtime_id).episode_id or "")
        await self.close(runtime_id, "never fetched")
        if stay is not None:
            stay.opened -= 1
            await self._close_unused(stay)

    async def _close_unused(self, stay: Stay) -> None:
        """Close an episode of which no client has, or had, a trial: none would, and it may hold a slot."""
        if not stay.opened and not stay.door.in_use and not stay.door.is_shut:
            with anyio.CancelScope(shield=True):
                await self.close_episode(stay.name, "never fetched")

    # ---- the shared, serial surface of a task ----

    async def ask_shared(self, task_id: str, action: Action, *arguments: Any) -> Any:
        """Ask something of the task's shared trial, which is opened where there is none."""
        info = self.info(task_id)
        async with self._sharing.setdefault(task_id, anyio.Lock()), self._call():
            guest = await self._shared_guest(info)
            try:
                guest.began = guest.began or action in _DEEDS
                with self.counters.seconds.labels(action.value).time():
                    value = await self.service.perform_shared(task_id, action, *arguments)
            finally:
                if self._turns_for(info) is self._gate:
                    self._leave(guest, info)
                if self.service.shared_trial(task_id) is None:
                    self._forget_shared(task_id)
        if self._slots.waiting:
            await self.make_room()
        return value

    async def _shared_guest(self, info: TaskInfo) -> Guest:
        """What stands for the shared trial. The gate is held for a call, a slot for as long as the trial is open."""
        if (guest := self._shared.get(info.task_id)) is None:
            with self._arrival():
                guest = Guest(info.task_id, SHARED)
                await self._place(info, guest, None)
                self._shared[info.task_id] = guest
        elif guest.turn is None:
            await self._place(info, guest, None)
        return guest

    def _forget_shared(self, task_id: str) -> None:
        if (guest := self._shared.pop(task_id, None)) is not None:
            self._leave(guest, self.info(task_id))

    async def make_room(self) -> None:
        """Close shared trials that need not be open, until a slot is free."""
        async with self._room:
            for task_id, guest in list(self._shared.items()):
                if self._slots.free:
                    return
                if guest.turn is not None and self._is_dispensable(task_id, guest):
                    await self._close_shared(task_id)

    def _is_dispensable(self, task_id: str, guest: Guest) -> bool:
        if self._sharing[task_id].locked():
            return False
        trial = self.service.shared_trial(task_id)
        return not guest.began or trial is None or trial.result is not None or trial.fault is not None

    async def _close_shared(self, task_id: str) -> None:
        async with self._sharing[task_id]:
            with anyio.CancelScope(shield=True):
                await self.service.close_shared(task_id)
                self._forget_shared(task_id)

    # ---- those who vanish, and the end ----

    async def look_around(self, tasks: TaskGroup) -> None:
        """Close what no client has used for the idle limit: in ``tasks``, for one that is slow to close must not keep
        the others. Called several times in SWEEP seconds.
        """
        await self.visits.look()
        if self._slots.waiting:
            tasks.start_soon(self._quietly, self.make_room)
        limit = self._idle_timeout
        for runtime_id, guest in self._trials.items():
            if guest.unused > limit:
                tasks.start_soon(self._quietly, self.close, runtime_id, "idle")
        for episode_id, stay in self._stays.items():
            if not stay.trials and not stay.door.in_use and stay.unused > limit:
                tasks.start_soon(self._quietly, self.close_episode, episode_id, "idle")
        for task_id, guest in self._shared.items():
            if guest.unused > limit:
                tasks.start_soon(self._quietly, self._close_idle_shared, task_id, guest)

    def _used(self, place: Place) -> None:
        kind, name = place
        guest = (self._trials if kind == "trial" else self._shared).get(name)
        if guest is not None:
            guest.use()

    async def _close_idle_shared(self, task_id: str, guest: Guest) -> None:
        if (trial := self.service.shared_trial(task_id)) is not None:
            trial.end_calls()  # one that still runs would hold the place for ever
        async with self._sharing[task_id]:
            if self._shared.get(task_id) is not guest:
                return
        await self._close_shared(task_id)

    @staticmethod
    async def _quietly(close: Any, *arguments: Any) -> None:
        try:
            await close(*arguments)
        except NotFound:  # its client was faster
            pass
        except Exception:
            log.exception("sweeping failed")

    def drain(self) -> None:
        """Open no trial from now on."""
        self._door.shut()


def _wanted(order: NewTrial) -> dict[str, Any]:
    jobs = order.tool_jobs_per_trial
    return {
        "episode_id": order.episode_id,
        "trial_index": order.trial_index or 0,
        "tool_jobs_per_trial": 4 if jobs is None else jobs,
        "seed": order.seed or 0,
        "outputs": order.outputs,
    }


def _facts(trial: OpenTrial, **more: Any) -> Mapping[str, Any]:
    """What a line of the log tells beside its words."""
    slot = trial.worker.slot if trial.worker is not None else None
    return {
        "facts": {"trial": trial.runtime_id, "task": trial.task_id, "index": trial.trial_index, "slot": slot} | more
    }
