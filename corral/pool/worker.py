"""SUPERVISOR SIDE. One worker and its trial processes: start, request, kill, wait.

Purpose
    The one place where processes are killed. Everything above it sees requests that give a value or raise a TrialError.
Guarantees
    * A request gives its answer, or raises what ended the trial process: its own death with exit code or signal, the
      deadline or memory limit for which it was killed, or a lost connection. Never a bare end-of-file.
    * Every way out of a request in flight that leaves the stream spoiled, cancellation included, goes through one kill
      and one shielded wait.
    * After ``kill`` or ``finish`` returns, the trial process and what it started are gone.
Assumptions
    Requests of one trial process are made one at a time, by whoever holds its lease.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
from anyio import BrokenWorkerProcess
from anyio.abc import TaskGroup

from corral.errors import ConfigError, EnvStartError, ErrorRecord, ProtocolError, TrialError
from corral.pool.ahead import Ahead
from corral.pool.backend import Asked, SlotRef, result_of
from corral.pool.channel import Channel, Listener, Visitor
from corral.pool.ending import Ending, NoAnswer
from corral.pool.interpreter import Interpreter
from corral.pool.logs import as_text, tail
from corral.pool.nursery import Fork
from corral.pool.processes import descendants, find_process, is_stopped, see_off, signal_all, tree_rss
from corral.pool.starts import ENDED, LostStart, SlowStart, with_output
from corral.pool.wire import (
    Done,
    Failed,
    Finish,
    HostSpec,
    Imported,
    Load,
    Loaded,
    LoadFailed,
    Message,
    ProcessEnded,
    ProcessStarted,
    Refused,
    Serves,
    StartProcess,
)
from corral.threads import call_blocking
from corral.types import FreshMode

KILL_PATIENCE = 5.0
"""Seconds that a worker may take to report the end of a killed trial process, before it is killed itself."""
FINISH_PATIENCE = 10.0
"""Seconds that a trial process may take to close its trials and end."""
LAST_WORDS = 0.2
"""Seconds between the signal that makes a hung process write where it hangs, and its kill."""
REPORT_PATIENCE = 1.0
"""Seconds to wait for the report of how a trial process ended whose connection is gone."""
LOSS_PATIENCE = 3.0
"""Seconds to wait for it where the worker's connection is gone too, and it is being found out how that ended."""

STOPPED_AFTER = 1.0
"""Seconds after which a worker that does not answer is looked at: whether it was stopped."""

IMPORTING = "importing the main script"
LAST_OUTPUT = 4096
"""Bytes of a worker's output that the error of a failed start, or of its loss, keeps."""


class TrialProcess:
    """A trial process, for as long as its lease lasts."""

    def __init__(self, worker: Worker, visitor: Visitor) -> None:
        self._worker = worker
        self.visitor = visitor
        self.number = visitor.ticket.number
        self.pid: int = 0
        self.confirmed = anyio.Event()
        """Its worker knows that it serves; or it has ended."""
        self.ended = anyio.Event()
        self.end: ProcessEnded | None = None
        self.doom: TrialError | None = None
        """Why it was killed, where its requests are to say so."""
        self._killing = False
        self._asking = False
        self.log_start = 0
        """Where the output of the trial that it serves begins in its slot's log."""

    @property
    def output(self) -> str:
        """The tail of what it printed for the trial that it served last, once it has ended."""
        return self.end.printed_since(self.log_start) if self.end else ""

    @property
    def alive(self) -> bool:
        """Whether it can be asked something."""
        return self.pid != 0 and not self.ended.is_set() and self.doom is None

    async def request(self, message: Message, phase: str) -> Any:
        """Send a request and wait for its answer; ``phase`` says in words what it does."""
        return await result_of(self.ask(message, phase))

    def ask(self, message: Message, phase: str) -> Asked:
        """Send a request: Done, if it is answered at once, else what waits for its answer, to be awaited next."""
        try:
            answer = self._put(message)
        except NoAnswer as gone:
            return self._answer(gone, phase)
        return answer if type(answer) is Done else self._answer(answer, phase)

    async def _answer(self, answer: Message | NoAnswer | None, phase: str) -> Any:
        try:
            if isinstance(answer, NoAnswer):
                raise answer
            answer = answer or await self._next()
        except NoAnswer as gone:
            raise await self.reason(phase, gone.said) from None
        match answer:
            case Done(value):
                return value
            case Failed() | Refused():
                raise answer.error()
            case _:
                raise ProtocolError(f"a trial process answered with a {type(answer).__name__}")

    def pass_on(self) -> None:
        """Its answers are for somebody else: give them unread, as frames."""
        if self.visitor.channel is not None:
            self.visitor.channel.pass_on()

    async def exchange(self, message: Message) -> Message:
        """Send a message and wait for the next one. NoAnswer where there will be none."""
        return self._put(message) or await self._next()

    def _put(self, message: Message) -> Message | None:
        """Send a message, and look whether the next one comes at once: None where ``_next`` is to wait for it."""
        channel = self.visitor.channel
        if channel is None or self.doom is not None or self.ended.is_set():
            raise NoAnswer
        answer = None
        self._asking = True
        try:
            answer = channel.ask(message)
        except TrialError:  # it could not be sent, and nothing of it was: the process is as it was
            self._asking = False
            raise
        except ProtocolError as error:
            self._asking = False
            raise NoAnswer(str(error)) from None
        self._asking = answer is None
        return answer

    async def _next(self) -> Message:
        assert self.visitor.channel is not None
        try:
            return await self.visitor.channel.receive()
        except (anyio.EndOfStream, ProtocolError) as error:
            raise NoAnswer(str(error) if isinstance(error, ProtocolError) else "") from None
        except BaseException:  # cancelled: an answer may still come, so the stream is spoiled
            await self.kill(last_words=True)
            raise
        finally:
            self._asking = False

    async def reason(self, phase: str, said: str = "") -> TrialError:
        """Why there is no answer. ``said``: what is wrong with what came instead."""
        ending, output = await self.ending(said), self.output
        if self.doom is not None:
            self.doom.output = self.doom.output or output
            return self.doom
        return ending.error(phase, output)

    async def ending(self, said: str = "") -> Ending:
        """Have it end, if it has not, and tell how it did. ``said``: what is wrong with what came from it."""
        with anyio.move_on_after(REPORT_PATIENCE):
            await self.ended.wait()
        if self._worker.is_lost and not self.ended.is_set():
            with anyio.move_on_after(LOSS_PATIENCE):
                await self.ended.wait()
        lost = not self.ended.is_set()
        await self.kill()
        end = self.end
        if end is not None and end.status not in (None, -signal.SIGKILL):
            lost = False  # it ended by itself after all; on a busy machine the report took its time
        return Ending(self.pid, self._worker.ref, end, self._worker.status, lost=lost, said=said)

    async def finish(self, patience: float = FINISH_PATIENCE) -> None:
        """Let it close its trials and end; kill it if it does not, within ``patience`` seconds."""
        channel = self.visitor.channel
        with anyio.CancelScope(shield=True):
            if self.alive and channel is not None and not self._asking:  # with a call in flight it would not listen
                with anyio.move_on_after(patience) as limit:
                    try:
                        await channel.send(Finish())
                    except anyio.EndOfStream:  # it may just have ended by itself, and is about to be reported
                        limit.deadline = anyio.current_time() + REPORT_PATIENCE
                    await self.ended.wait()
            await self.kill()

    async def kill(self, doom: TrialError | None = None, *, last_words: bool = False) -> None:
        """Kill it and wait until nothing of it is left.

        ``doom`` becomes the reason that its requests raise. With ``last_words`` it first writes where it hangs.
        """
        with anyio.CancelScope(shield=True):
            if not self.ended.is_set():
                self.doom, self._killing = self.doom or doom, True
                if last_words:
                    await self._ask_for_last_words()
                self.signal(signal.SIGKILL)
                with anyio.move_on_after(KILL_PATIENCE):
                    await self.ended.wait()
            if not self.ended.is_set():
                await self._worker.kill()
            self._close()

    async def _ask_for_last_words(self) -> None:
        with anyio.move_on_after(LAST_WORDS):
            self.signal(signal.SIGUSR1, group=False)
            await self.ended.wait()

    async def memory(self) -> int:
        """Bytes that it and all below it hold now."""
        return await call_blocking(tree_rss, self.pid)

    def signal(self, number: int, *, group: bool = True) -> None:
        """Send a signal to it and its group. Nothing happens while its pid is not known."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)
            if group:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def has_started(self, pid: int) -> None:
        """The worker's report."""
        self.pid = pid
        if self._killing:  # it was given up before its pid was known
            self.signal(signal.SIGKILL)

    def has_ended(self, end: ProcessEnded) -> None:
        """The worker's report, or its loss."""
        self.end = end
        self.ended.set()
        self.confirmed.set()
        self.visitor.give_up()
        if not self._asking:  # its answer may have come just before its end
            self._close()

    def _close(self) -> None:
        if self.visitor.channel is not None:
            self.visitor.channel.close()


class Worker:
    """A worker process, which connects back: one long call of ``anyio.to_process``, or a fork of the nursery."""

    def __init__(
        self,
        spec: HostSpec,
        visitor: Visitor,
        listener: Listener,
        interpreter: Interpreter | Fork,
        node: str | None = None,
    ) -> None:
        """``node``: the name of this machine, where there are others."""
        self.slot = spec.slot
        self.node = node
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
            raise with_output(kind.because(f"{at}, in a worker,", answer.record), as_text(self._output))
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
            case Serves(number):
                if process := self._processes.get(number):
                    process.confirmed.set()
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
        raise await process.reason("start of the trial process")

    async def confirms(self, process: TrialProcess) -> bool:
        """Whether this worker was there after it was told that the process serves."""
        await self._brought(process.confirmed, process)
        return not process.ended.is_set()

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
                await process.finish(KILL_PATIENCE)
            if self._channel is not None and not self.gone.is_set():
                self._finishing = True
                with anyio.move_on_after(KILL_PATIENCE), contextlib.suppress(anyio.EndOfStream):
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
