"""SUPERVISOR SIDE. Workers and trial processes of other nodes, as the pool sees them: by the seam's protocols.

Guarantees
    * A request gives its answer, or raises what ended the trial process: facts that its node found out, the reason for
      which it was killed, or that its node was lost, which is named.
    * A request that is cancelled has its process killed; one whose node is lost meanwhile is over at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import anyio

from corral.errors import ProtocolError, TrialError, WorkerDied
from corral.pool.backend import Asked, Node, SlotRef
from corral.pool.dask.engine import NodeGone
from corral.pool.dask.messages import (
    Amount,
    Ask,
    Begin,
    EndProcess,
    EndWorker,
    Measure,
    Nothing,
    NotStarted,
    ProcessIs,
    Request,
    Unanswered,
)
from corral.pool.messages import Failed, Message, ProcessEnded, value_of
from corral.pool.wire import Decoder, encode
from corral.types import FreshMode

Call = Callable[[Request], Awaitable[Any]]
"""What an agent answers to a request. NodeGone if it will not."""

KILL_PATIENCE = 15.0
"""Seconds for a node to end a process, or a worker: it has its own patience with them, and then kills the worker."""

_numbers = count(1)


class RemoteWorker:
    """The worker of a slot, on a node."""

    def __init__(self, node: Node, slot: int, call: Call, lost: Callable[[], str | None]) -> None:
        """``lost``: why its node is lost, once it is."""
        self.number = next(_numbers)
        self.gone = anyio.Event()
        self.pid = 0
        self.status: int | None = None
        self.node = node
        self._slot = slot
        self._call = call
        self._lost = lost
        self._processes: set[RemoteProcess] = set()

    @property
    def ref(self) -> SlotRef:
        """Which one it is."""
        return SlotRef(self._slot, self.pid, self.node.name, self.node.incarnation)

    @property
    def fell_with_node(self) -> bool:
        """Whether its node is lost."""
        return self._lost() is not None

    @property
    def loss_of_node(self) -> str | None:
        """Why its node is lost, once it is."""
        return self._lost()

    def lose(self, status: int | None) -> None:
        """It is gone; with what status, if that is known."""
        self.status = status
        self.gone.set()
        for process in list(self._processes):
            process.has_ended(None)

    async def start_process(self, fresh: FreshMode) -> RemoteProcess | None:
        """Make a trial process. See ``SlotWorker``."""
        if self.gone.is_set():
            return None
        process = RemoteProcess(self, self._call)
        try:
            answer = await self._call(Begin(self.number, process.number, fresh))
        except NodeGone:
            return None
        except BaseException:
            await process.kill()
            raise
        match answer:
            case ProcessIs(pid):
                process.pid = pid
                self._processes.add(process)
                return process
            case NotStarted():
                raise answer.error()
            case Nothing():
                return None
            case _:
                raise ProtocolError(f"an agent answered with a {type(answer).__name__}")

    def forget(self, process: RemoteProcess) -> None:
        """That process is over."""
        self._processes.discard(process)

    async def stop(self) -> None:
        """End it in order."""
        await self._end(stop=True)

    async def kill(self) -> None:
        """Kill it."""
        await self._end(stop=False)

    async def _end(self, *, stop: bool) -> None:
        with anyio.move_on_after(KILL_PATIENCE, shield=True):
            with contextlib.suppress(NodeGone):
                await self._call(EndWorker(self.number, stop))
        if not self.gone.is_set():
            self.lose(None)


class RemoteProcess:
    """A trial process, on a node."""

    def __init__(self, worker: RemoteWorker, call: Call) -> None:
        self.number = next(_numbers)
        self.pid = 0
        self.end: ProcessEnded | None = None
        self.log_start = 0
        self._worker = worker
        self._call = call
        self.unheard = False
        self.clean = True
        self._doom: TrialError | None = None
        self._over = False
        self._asking = False

    @property
    def alive(self) -> bool:
        """Whether it can be asked something."""
        return not self._over and self._doom is None

    def is_seen(self) -> bool:
        """Never, from here."""
        return False

    @property
    def output(self) -> str:
        """The tail of what it printed for the trial that it served last, once it has ended."""
        return self.end.printed_since(self.log_start) if self.end else ""

    async def request(self, message: Message, phase: str) -> Any:
        """Send a request. See ``SlotProcess``."""
        frame = b"".join(encode(message))
        self._asking = True
        try:
            answer = await self._call(Ask(self.number, frame)) if self.alive else Nothing()
        except NodeGone:
            answer = Nothing()
        except BaseException:  # cancelled: it is at something that nobody waits for
            await self.kill(last_words=True)
            raise
        finally:
            self._asking = False
        if isinstance(answer, bytes):
            return _opened(answer)
        if isinstance(answer, NotStarted):
            raise answer.error()
        raise await self._reason(answer, phase)

    def ask(self, message: Message, phase: str) -> Asked:
        """The same; it never comes at once."""
        return self.request(message, phase)

    async def _reason(self, answer: Any, phase: str) -> TrialError:
        """Why there is no answer."""
        doom, ending = None, None
        if isinstance(answer, Unanswered):
            ending = answer.ending
            self.has_ended(ending.end)
            doom = answer.doom.error() if answer.doom else None
        await self.kill()
        if (doom := self._doom or doom) is not None:
            doom.output = doom.output or self.output
            return doom
        worker = self._worker
        if ending is not None:
            self.unheard = ending.unheard
            return ending.error(phase, self.output)
        at, node = {"pid": self.pid, "slot": worker.ref.slot}, worker.node.name
        if (loss := worker.loss_of_node) is not None:
            return WorkerDied.with_its_node(phase, **at, node=node, reason=loss)
        if self.end is not None and self.end.status is not None:
            return WorkerDied.during(phase, **at, node=node, status=self.end.status, output=self.output)
        return WorkerDied.with_its_worker(
            phase, worker=worker.pid, **at, node=node, status=worker.status, output=self.output
        )

    async def finish(self) -> None:
        """Let it close its trials and end."""
        await self._end(EndProcess(self.number, finish=not self._asking))

    async def kill(self, doom: TrialError | None = None, *, last_words: bool = False) -> None:
        """Kill it. See ``SlotProcess``. With ``last_words`` it first writes where it hangs."""
        self._doom = self._doom or doom
        await self._end(EndProcess(self.number, last_words=last_words, doom=Failed.of(doom) if doom else None))

    async def _end(self, request: EndProcess) -> None:
        if self._over and self.end is not None:
            return
        with anyio.move_on_after(KILL_PATIENCE, shield=True):
            try:
                answer = await self._call(request)
            except NodeGone:
                answer = Nothing()
            self.has_ended(answer.end if isinstance(answer, ProcessIs) else None)
        self.has_ended(None)

    def has_ended(self, end: ProcessEnded | None) -> None:
        """It is over; how, if that is known."""
        self._over = True
        self.end = self.end or end
        self._worker.forget(self)

    async def memory(self) -> int:
        """Bytes that it and all below it hold now."""
        try:
            answer = await self._call(Measure(self.number))
        except NodeGone:
            return 0
        return answer.bytes if isinstance(answer, Amount) else 0


def _opened(frame: bytes) -> Any:
    """What an answer of a trial process holds, or the error that it is."""
    decoder = Decoder()
    decoder.feed(frame)
    return value_of(decoder.next())
