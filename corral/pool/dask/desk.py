"""NODE SIDE. The agent's desk: carries out what the driver asks, and knows its workers and processes by its numbers.

Guarantees
    * What was ended before its start was asked for, or is still being started, is not there afterwards: requests may
      overtake each other on their way.
    * No error of a start or of a trial process leaves here as an exception.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from corral.errors import ConfigError, ProtocolError, TrialError
from corral.pool.agent import Agent
from corral.pool.dask.messages import (
    Amount,
    Answer,
    Ask,
    Begin,
    EndProcess,
    EndWorker,
    Leave,
    Measure,
    News,
    Nothing,
    NotStarted,
    ProcessIs,
    Request,
    Spawn,
    Unanswered,
    Watch,
    WorkerGone,
    WorkerIs,
)
from corral.pool.ending import NoAnswer
from corral.pool.messages import Failed, Frame
from corral.pool.trial_handle import TrialProcess
from corral.pool.worker import Worker

HOLD = 1.0
"""Seconds for which a Watch waits for news."""

T = TypeVar("T")


class _Starts:
    """What is being started, by the driver's number: so that it can be called off, even before."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[anyio.CancelScope, anyio.Event]] = {}
        self._called_off: set[int] = set()

    async def run(self, number: int, start: Callable[[], Awaitable[T]]) -> T | None:
        """What ``start`` gives; None if it was called off."""
        if number in self._called_off:
            self._called_off.discard(number)
            return None
        over = anyio.Event()
        with anyio.CancelScope() as scope:
            self._running[number] = scope, over
            try:
                return await start()
            finally:
                del self._running[number]
                over.set()
        return None

    async def call_off(self, number: int) -> None:
        """It is not to be. Returns when nothing of it is left."""
        if number not in self._running:
            self._called_off.add(number)
            return
        scope, over = self._running[number]
        scope.cancel()
        await over.wait()


class Desk:
    """Answers requests, many at a time."""

    def __init__(self, agent: Agent, leave: Callable[[], object]) -> None:
        """``leave``: called when the driver has no more use for this agent."""
        self._agent = agent
        self._leave = leave
        self._workers: dict[int, Worker] = {}
        self._processes: dict[int, TrialProcess] = {}
        self._spawning = _Starts()
        self._beginning = _Starts()
        self._gone: list[WorkerGone] = []
        self._news = anyio.Event()

    async def answer(self, request: Request) -> Answer | bytes:
        """Carry out one request."""
        match request:
            case Ask():
                return await self._ask(request)
            case Begin():
                return await self._begin(request)
            case EndProcess():
                return await self._end_process(request)
            case Spawn():
                return await self._spawn(request)
            case EndWorker():
                return await self._end_worker(request)
            case Measure(number):
                process = self._processes.get(number)
                return Amount(await process.memory()) if process else Nothing()
            case Watch():
                return await self._watch()
            case Leave():
                self._leave()
                return Nothing()

    async def _spawn(self, request: Spawn) -> Answer:
        number = request.worker
        try:
            started = await self._spawning.run(number, lambda: self._agent.start(request.spec))
        except (TrialError, ConfigError, ProtocolError) as error:
            return NotStarted.of(error)
        if started is None:
            return Nothing()
        worker, loaded, seconds = started
        self._workers[number] = worker
        self._agent.tell_when_gone(worker, lambda: self._lose(number, worker))
        return WorkerIs(worker.pid, loaded, seconds)

    def _lose(self, number: int, worker: Worker) -> None:
        del self._workers[number]
        self._gone.append(WorkerGone(number, worker.status))
        self._news.set()

    async def _watch(self) -> News:
        with anyio.move_on_after(HOLD):
            await self._news.wait()
        gone, self._gone, self._news = tuple(self._gone), [], anyio.Event()
        return News(gone)

    async def _end_worker(self, request: EndWorker) -> Answer:
        if (worker := self._workers.get(request.worker)) is None:
            await self._spawning.call_off(request.worker)
        else:
            await (worker.stop() if request.stop else worker.kill())
        return Nothing()

    async def _begin(self, request: Begin) -> Answer:
        number, worker = request.process, self._workers.get(request.worker)
        if worker is None:
            return Nothing()
        try:
            process = await self._beginning.run(number, lambda: worker.start_process(request.fresh))
        except (TrialError, ConfigError, ProtocolError) as error:
            return NotStarted.of(error)
        if process is None:
            return Nothing()
        process.pass_on()
        self._processes[number] = process
        return ProcessIs(process.pid)

    async def _ask(self, request: Ask) -> Answer | bytes:
        if (process := self._processes.get(request.process)) is None:
            return Nothing()
        try:
            answer = await process.exchange(Frame(request.frame))
        except NoAnswer as gone:
            ending = await process.ending(gone)
            return Unanswered(ending, Failed.of(process.doom) if process.doom else None)
        return bytes(answer.data) if isinstance(answer, Frame) else Nothing()

    async def _end_process(self, request: EndProcess) -> Answer:
        if (process := self._processes.pop(request.process, None)) is None:
            await self._beginning.call_off(request.process)
            return Nothing()
        if request.finish:
            await process.finish()
        else:
            doom = request.doom.error() if request.doom else None
            await process.kill(doom, last_words=request.last_words)
        return ProcessIs(process.pid, process.end)
