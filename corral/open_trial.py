"""What the service keeps of a trial and of an episode while they are open.

Guarantees: calls of one trial, and of one episode on a slot, run one after the other; ``end_calls`` gives up those that
run and those that wait, and nobody gets their late answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio

from corral.data import to_data
from corral.errors import ErrorRecord, NotFound, SerializationError, SubmissionError, TrialError
from corral.hosts import TrialHost
from corral.pool.wire import ProcessEnded
from corral.types import Action, TaskTrialResult, ToolCall, ToolResponse, TrialKey, WorkerRef

CALLS_KEPT = 1000
"""Tool calls of one trial that the supervisor remembers, for the record of an attempt that is lost."""


@dataclass
class OpenTrial:
    """A trial that is open: where it runs, and what the supervisor saw pass."""

    runtime_id: str
    task_id: str
    trial_index: int
    host: TrialHost
    workspace: str = ""
    episode_id: str | None = None
    gated: bool = False
    phase: str = "set-up"
    """What runs, or ran last, in words."""
    calls: list[ToolCall] = field(default_factory=list)
    fault: TrialError | None = None
    """What broke it."""
    worker: WorkerRef | None = None
    output: str = ""
    """The tail of what its process printed, where that was killed."""
    result: TaskTrialResult | None = None
    """What submitting or surrendering gave."""
    turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    """Held by the call that runs. Trials of one episode on a slot share it, as they share the process."""
    calling: set[anyio.CancelScope] = field(default_factory=set)
    """The calls that run or wait for their turn."""

    async def take_turn(self) -> None:
        """Wait for a call's turn; at its end it releases ``turn``. NotFound if the trial is closed meanwhile."""
        if not self.turn.locked():
            self.turn.acquire_nowait()
            return
        with self._waiting() as scope:
            await self.turn.acquire()
        if scope.cancel_called:
            if not scope.cancelled_caught:
                self.turn.release()
            raise NotFound("trial", self.runtime_id)

    async def wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for the answer to a call. NotFound if the trial is closed meanwhile."""
        with self._waiting():
            return await answer
        raise NotFound("trial", self.runtime_id)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[anyio.CancelScope]:
        """What ``end_calls`` gives up. A call that is answered at once does without: this is half of what it costs."""
        with anyio.CancelScope() as scope:
            self.calling.add(scope)
            try:
                yield scope
            finally:
                self.calling.discard(scope)

    def end_calls(self) -> None:
        """Give up every call."""
        for scope in self.calling:
            scope.cancel()

    def end_of_process(self) -> ProcessEnded | None:
        """How its process ended, if that was its alone."""
        return self.host.end_of_process() if self.episode_id is None else None

    def remember(self, value: Any, arguments: tuple[Any, ...]) -> None:
        """What a call gave."""
        if isinstance(value, ToolResponse) and len(self.calls) < CALLS_KEPT:
            name, given = arguments[0], to_data(arguments[1], "a record", arrays="describe")
            result = to_data(value.result, "a record", arrays="describe")  # an array itself could be large
            self.calls.append(ToolCall(name, given, value.success, result, value.error))
        if isinstance(value, TaskTrialResult):
            self.result = value

    def refusal(self, action: Action, arguments: tuple[Any, ...]) -> ToolResponse | None:
        """A failed call for arguments that are no data; SubmissionError for such an answer; else None.

        In-process they could pass, but what an agent can do shall not depend on where its trial runs.
        """
        try:
            if action is Action.EXECUTE:
                to_data(arguments[1], f"the call of tool {arguments[0]!r}", arrays="describe")
            elif action is Action.SUBMIT:
                to_data(arguments[0], "the answer", arrays="describe")
        except SerializationError as error:
            if action is Action.EXECUTE:
                return ToolResponse(False, error=str(ErrorRecord.of(error)))
            key = TrialKey(self.task_id, self.trial_index)
            raise SubmissionError(f"the answer to {key} cannot be accepted: {error}") from error
        return None


@dataclass
class OpenEpisode:
    """The tasks of one trial round of a chain, and the lease that they share."""

    host: TrialHost | None = None
    turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    placing: anyio.Lock = field(default_factory=anyio.Lock)
    outputs: dict[str, Any] = field(default_factory=dict)
    open_trials: set[str] = field(default_factory=set)
