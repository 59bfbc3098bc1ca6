"""SUPERVISOR SIDE. One trial process: ask it, end it, learn how it ended.

Purpose
    Everything above it sees requests that give a value or raise a TrialError.
Guarantees
    * A request gives its answer, or raises what ended the trial process: its own death with exit code or signal, the
      deadline or memory limit for which it was killed, or a lost connection. Never a bare end-of-file.
    * Every way out of a request in flight that leaves the stream spoiled, cancellation included, goes through one kill
      and one shielded wait.
    * After ``kill`` or ``finish`` returns, the trial process and what it started are gone.
Assumptions
    Requests are made one at a time, by whoever holds its lease.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import anyio

from corral.errors import ProtocolError, TrialError
from corral.pool.backend import Asked, result_of
from corral.pool.channel import Visitor
from corral.pool.ending import Ending, NoAnswer
from corral.pool.messages import Close, Done, Finish, Message, ProcessEnded, value_of
from corral.pool.processes import is_undisturbed, tree_rss
from corral.threads import call_blocking

if TYPE_CHECKING:
    from corral.pool.worker import Worker


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


class TrialProcess:
    """A trial process, for as long as its lease lasts."""

    def __init__(self, worker: Worker, visitor: Visitor) -> None:
        self._worker = worker
        self.visitor = visitor
        self.number = visitor.ticket.number
        self.pid: int = 0
        self.ended = anyio.Event()
        self.end: ProcessEnded | None = None
        self.doom: TrialError | None = None
        """Why it was killed, where its requests are to say so."""
        self._killing = False
        self._asking = False
        self._leaving = False
        """Whether it ends by itself now: its last trial was closed."""
        self.unheard = False
        """Whether it was gone before it had read its last request, and so did nothing for it."""
        self.clean = True
        """Whether no trial has left anything behind in it."""
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

    def is_seen(self) -> bool:
        """Whether it is there, with no thread but the one that answers."""
        return is_undisturbed(self.pid)

    async def request(self, message: Message, phase: str) -> Any:
        """Send a request and wait for its answer; ``phase`` says in words what it does."""
        is_last = type(message) is Close and message.last
        if is_last and not self.ended.is_set():
            await self._worker.exits.turn(self.ended)
        value = await result_of(self.ask(message, phase))
        self._leaving = is_last
        return value

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
            self.unheard = gone.unheard and self.doom is None
            raise await self.reason(phase, gone) from None
        return value_of(answer)

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
            raise NoAnswer(unheard=True)
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
            said = str(error) if isinstance(error, ProtocolError) else ""
            raise NoAnswer(said, unheard=self.visitor.channel.unread) from None
        except BaseException:  # cancelled: an answer may still come, so the stream is spoiled
            await self.kill(last_words=True)
            raise
        finally:
            self._asking = False

    async def reason(self, phase: str, gone: NoAnswer) -> TrialError:
        """Why there is no answer."""
        ending, output = await self.ending(gone), self.output
        if self.doom is not None:
            self.doom.output = self.doom.output or output
            return self.doom
        return ending.error(phase, output)

    async def ending(self, gone: NoAnswer) -> Ending:
        """Have it end, if it has not, and tell how it did."""
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
        worker = self._worker
        return Ending(self.pid, worker.ref, end, worker.status, lost=lost, said=gone.said, unheard=gone.unheard)

    async def finish(self, patience: float = FINISH_PATIENCE) -> None:
        """Let it close its trials and end; kill it if it does not, within ``patience`` seconds."""
        channel = self.visitor.channel
        if self.alive and channel is not None and not self._asking:  # with a call in flight it would not listen
            with anyio.move_on_after(patience, shield=True) as limit:
                try:
                    if not self._leaving:
                        await channel.send(Finish())
                except anyio.EndOfStream:  # it may just have ended by itself, and is about to be reported
                    limit.deadline = anyio.current_time() + REPORT_PATIENCE
                await self.ended.wait()
        await self.kill()

    async def kill(self, doom: TrialError | None = None, *, last_words: bool = False) -> None:
        """Kill it and wait until nothing of it is left.

        ``doom`` becomes the reason that its requests raise. With ``last_words`` it first writes where it hangs.
        """
        if not self.ended.is_set():
            with anyio.CancelScope(shield=True):
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
        self._worker.exits.has_gone(self.ended)
        self.visitor.give_up()
        if not self._asking:  # its answer may have come just before its end
            self._close()

    def _close(self) -> None:
        if self.visitor.channel is not None:
            self.visitor.channel.close()
