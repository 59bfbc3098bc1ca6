"""SUPERVISOR SIDE. One worker: its start, its loading, its trial processes, its end.

Guarantees
    * A start that fails says at what: at the main script, at building the environments, at a new interpreter.
    * After ``kill`` or ``stop`` returns, the worker and all that it started are gone, and each of its trial processes
      has been told.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator

import anyio
from anyio import BrokenWorkerProcess
from anyio.abc import TaskGroup

from corral.errors import ConfigError, EnvStartError, ErrorRecord, ProtocolError
from corral.pool.ahead import Ahead
from corral.pool.backend import SlotRef
from corral.pool.channel import Channel, Listener, Visitor
from corral.pool.ending import NoAnswer
from corral.pool.exits import Exits
from corral.pool.interpreter import Interpreter
from corral.pool.logs import as_text, tail
from corral.pool.messages import (
    Finish,
    HostSpec,
    Imported,
    Load,
    Loaded,
    LoadFailed,
    Message,
    ProcessEnded,
    ProcessStarted,
    StartProcess,
)
from corral.pool.nursery import Fork
from corral.pool.processes import descendants, find_process, is_stopped, is_there, see_off, signal_all
from corral.pool.starts import ENDED, InWorker, LostStart, SlowStart, with_output
from corral.pool.trial_handle import LAST_WORDS, TrialProcess
from corral.types import FreshMode

STOP_PATIENCE = 5.0
"""Seconds that a worker, and before it a trial process of its, may take to end when it is told to."""
STOPPED_AFTER = 1.0
"""Seconds after which a worker that does not answer is looked at: whether it was stopped."""

IMPORTING = "importing the main script"
LAST_OUTPUT = 4096
"""Bytes of a worker's output that the error of a failed start, or of its loss, keeps."""


class Worker:
    """A worker process, which connects back: one long call of ``anyio.to_process``, or a fork of the nursery."""

    def __init__(
        self,
        spec: HostSpec,
        visitor: Visitor,
        listener: Listener,
        interpreter: Interpreter | Fork,
        exits: Exits,
        node: str | None = None,
    ) -> None:
        """``node``: the name of this machine, where there are others."""
        self.slot = spec.slot
        self.node = node
        self.exits = exits
        """When its trial processes may end."""
        self.gone = anyio.Event()
        self._spec = spec
        self._visitor = visitor
        self._listener = listener
        self._interpreter = interpreter
        # Both are ended by ``kill`` and what follows from it alone: a cancelled pool still needs them to end in order.
        self._scope = anyio.CancelScope(shield=True)
        self._listening = anyio.CancelScope(shield=True)
        self._patience = 0.0
        self._what = ""
        self._cause: BaseException | None = None
        self._output = b""
        """The last that it, or a trial process of its, printed, once it is gone."""
        self._channel: Channel | None = None
        self.is_lost = False
        """Whether its connection is gone."""
        self.fell_with_node = False
        """It would not be here to tell."""
        self._finishing = False
        """Whether it was told to end what it started, close its connection and wait for its kill."""
        self._processes: dict[int, TrialProcess] = {}
        self._ahead = Ahead(self, 0)  # until it has loaded

    @property
    def pid(self) -> int:
        """0 until it is spawned."""
        return self._interpreter.pid

    @property
    def status(self) -> int | None:
        """How it ended: exit code, or minus signal. None before, and where that is not known."""
        return self._interpreter.status

    @property
    def ref(self) -> SlotRef:
        """Which one it is."""
        return SlotRef(self.slot, self.pid, self.node)

    @property
    def processes(self) -> tuple[TrialProcess, ...]:
        """Its trial processes that have not ended."""
        return tuple(self._processes.values())

    async def spawn(self, tasks: TaskGroup, patience: float) -> None:
        """Let it be there, within ``patience`` seconds. EnvStartError, and it is gone, if it cannot."""
        self._tasks, self._patience = tasks, patience
        async with self._patiently(patience):
            tasks.start_soon(self._call)
            await self._visitor.arrived.wait()
            if self._visitor.channel is None:
                raise self._failed_start()
            self._channel = self._visitor.channel

    async def load(self, load: Load, patience: float, what: str, *, used: float = 0.0) -> Loaded:
        """Let it load, which is ``what`` it does then. EnvStartError, and it is gone, if it cannot.

        ``used``: how much of the seconds have passed already.
        """
        assert self._channel is not None
        self._load, self._patience = load, patience
        self._ahead = Ahead(self, 0 if load.reused else load.renewed_after)
        self._what = IMPORTING if self._spec.main is not None else what
        async with self._patiently(patience - used):
            await self._channel.send(load)
            answer = await self._channel.receive()
            if isinstance(answer, Imported):
                self._what = what
                answer = await self._channel.receive()
        if isinstance(answer, Loaded):
            self._usual = answer.fresh
            self._tasks.start_soon(self._listen)
            self._tasks.start_soon(self._ahead.prepare, answer.fresh, self.gone)
            return answer
        await self.kill()
        if isinstance(answer, LoadFailed):
            if answer.refused:
                raise ConfigError(answer.record.message)
            kind = LostStart if answer.record.type == "ProcessEnded" else EnvStartError
            at = IMPORTING if answer.of_main else what
            error = with_output(kind.because(f"{at}, in a worker,", answer.record), as_text(self._output))
            raise error from InWorker(answer.record.traceback)
        raise ProtocolError(f"a worker answered with a {type(answer).__name__}")

    @contextlib.asynccontextmanager
    async def _patiently(self, seconds: float) -> AsyncIterator[None]:
        """A part of its start: it is gone if that fails, or takes longer."""
        try:
            with anyio.fail_after(seconds):
                yield
        except TimeoutError:
            raise await self._slow_start() from None
        except anyio.EndOfStream:
            await self._end()
            raise self._failed_start() from None
        except BaseException:
            await self.kill()
            raise

    async def _call(self) -> None:
        try:
            with self._scope:
                await self._interpreter.live(self._spec)
        except BrokenWorkerProcess as error:
            self._cause = error.__cause__ or error
        except Exception as error:
            self._cause = error
        finally:
            with anyio.CancelScope(shield=True):
                await self._lose()

    async def _lose(self) -> None:
        # Read at once: the next worker of the slot empties the log.
        self._output, log_end = tail(self._spec.log_path, self._interpreter.log_start, LAST_OUTPUT)
        self._ahead.close()
        self._visitor.give_up()
        for process in self._processes.values():
            process.signal(signal.SIGKILL)
        await see_off([found for process in self._processes.values() if (found := find_process(process.pid))])
        for process in list(self._processes.values()):
            self._listener.forget(process.visitor)
            process.has_ended(ProcessEnded(process.number, None, output=self._output, log_end=log_end))
        self._processes.clear()
        self._listening.cancel()
        if self._visitor.channel is not None:
            self._visitor.channel.close()
        self.gone.set()

    def _failed_start(self) -> EnvStartError:
        if self._cause is None or isinstance(self._cause, ENDED):
            return LostStart.at(self._phase(), status=self.status, output=as_text(self._output))
        return EnvStartError.because("starting an interpreter", ErrorRecord.of(self._cause))

    async def _slow_start(self) -> SlowStart:
        # Its new interpreter, if it has one, comes last: there the environments are loaded, and the tail is shown.
        own = find_process(self.pid)
        for processes in ([own] if own else [], descendants(self.pid)):
            signal_all(processes, signal.SIGUSR1)
            await anyio.sleep(LAST_WORDS)
        await self.kill()
        return SlowStart.at(self._phase(), seconds=self._patience, output=as_text(self._output))

    def _phase(self) -> str:
        """What it is at, or was."""
        return f"{self._what}, in a worker," if self._what else "starting an interpreter"

    async def _slow_birth(self, process: TrialProcess) -> SlowStart:
        """A trial process was made and did not come: what it does then is no fault of this worker."""
        await process.kill(last_words=True)
        return SlowStart.at("starting a trial process", seconds=self._patience, output=process.output)

    async def _listen(self) -> None:
        """Take the worker's reports until it is gone."""
        assert self._channel is not None
        try:
            with self._listening:
                while True:
                    self._take(await self._channel.receive())
        except (anyio.EndOfStream, ProtocolError):
            self.is_lost = True
            await self._end()

    def _take(self, report: Message) -> None:
        match report:
            case ProcessStarted(number, pid):
                if process := self._processes.get(number):
                    process.has_started(pid)
            case ProcessEnded() as end:
                if process := self._processes.pop(end.number, None):
                    self._listener.forget(process.visitor)
                    process.has_ended(end)
            case other:
                raise ProtocolError(f"a worker reported a {type(other).__name__}")

    async def start_process(self, fresh: FreshMode) -> TrialProcess | None:
        """A trial process for a lease: the one that was made ahead, or a new one.

        None if this worker was gone before it could be made, EnvStartError if it could not be.
        """
        fresh = self._usual if fresh == "auto" else fresh
        process = await self._ahead.take(fresh) or await self._make(fresh)
        if process is not None:
            self._tasks.start_soon(self._ahead.prepare, fresh, process.ended)
        return process

    async def _make(self, fresh: FreshMode) -> TrialProcess | None:
        if self.gone.is_set():
            return None
        process = await self.order(fresh)
        return process if await self.has_come(process) else None

    async def order(self, fresh: FreshMode, *, ahead: bool = False) -> TrialProcess:
        """Have a trial process made: it comes, or ends, later. ``ahead``: before there is a lease for it."""
        visitor = self._listener.expect()
        process = self._processes[visitor.ticket.number] = TrialProcess(self, visitor)
        try:
            await self.tell(StartProcess(visitor.ticket, fresh, ahead))
        except BaseException:
            await process.kill()
            raise
        return process

    async def tell(self, message: Message) -> None:
        """Send something that needs no answer. Where the worker is gone, that is noticed elsewhere."""
        assert self._channel is not None
        with contextlib.suppress(anyio.EndOfStream):
            await self._channel.send(message)

    async def has_come(self, process: TrialProcess) -> bool:
        """Wait for one that was ordered; False if this worker is gone. EnvStartError if it could not be made."""
        visitor = process.visitor
        try:
            if not visitor.arrived.is_set():
                with anyio.fail_after(self._patience):  # a new interpreter may still have to load
                    await self._brought(visitor.arrived, process)
        except TimeoutError:
            raise await (self._slow_birth(process) if process.pid else self._slow_start()) from None
        except BaseException:
            await process.kill()
            raise
        finally:
            self._listener.forget(visitor)
        process.pid = process.pid or visitor.pid
        if visitor.channel is not None:
            return True
        if self.gone.is_set():
            return False
        raise await process.reason("start of the trial process", NoAnswer())

    async def is_there(self) -> bool:
        """Whether this worker could do something now. One that was stopped is killed: it never would."""
        there = is_there(self.pid)
        if not there and not self.gone.is_set():
            await self.kill()
        return there

    async def _brought(self, event: anyio.Event, process: TrialProcess) -> None:
        """Wait for what this worker or the process brings about. One that was stopped never would, and is killed."""
        while not event.is_set():
            with anyio.move_on_after(STOPPED_AFTER):
                await event.wait()
            if not event.is_set():
                if is_stopped(self.pid):
                    await self.kill()
                elif is_stopped(process.pid):
                    await process.kill()

    async def stop(self) -> None:
        """End it with all that it started: ask, then kill."""
        with anyio.CancelScope(shield=True):
            waiting = self._ahead.close()  # they have nothing to finish
            for process in [process for process in self._processes.values() if process not in waiting]:
                await process.finish(STOP_PATIENCE)
            if self._channel is not None and not self.gone.is_set():
                self._finishing = True
                with anyio.move_on_after(STOP_PATIENCE), contextlib.suppress(anyio.EndOfStream):
                    await self._channel.send(Finish())
                    await self.gone.wait()
            await self.kill()

    async def _end(self) -> None:
        """Its connection is gone: let it end, so that it is known how; kill it if it does not, or was told to wait."""
        if not self._finishing:
            with anyio.move_on_after(LAST_WORDS, shield=True):
                await self.gone.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill it at once and wait until it is reaped."""
        with anyio.CancelScope(shield=True):
            below = [] if self.gone.is_set() else descendants(self.pid)
            self._scope.cancel()
            await self.gone.wait()
            await see_off(below)  # what it would have ended itself, had it been asked
