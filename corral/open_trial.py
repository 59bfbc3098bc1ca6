"""What the service keeps of a trial and of an episode while they are open.

Guarantees: calls of one trial, and of one episode on a slot, run one after the other; ``end_calls`` gives up those that
run and those that wait, and nobody gets their late answers.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import field
from typing import Any

import anyio

from corral.call_history import CallHistory
from corral.data import to_data
from corral.door import Door
from corral.errors import NotFound, SerializationError, SubmissionError, TrialError
from corral.hosts import TrialHost
from corral.lean import dataclass
from corral.pool.messages import ProcessEnded
from corral.types import Action, TaskTrialResult, ToolCall, ToolResponse, TrialKey, WorkerRef


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
    history: CallHistory = field(default_factory=CallHistory)
    """The tool calls that were answered."""
    fault: TrialError | None = None
    """What broke it."""
    worker: WorkerRef | None = None
    warnings: tuple[str, ...] = ()
    """What it began with that its record is to tell."""
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
        scope = anyio.CancelScope()
        await self._wait(scope, self.turn.acquire())
        if scope.cancel_called:
            if not scope.cancelled_caught:
                self.turn.release()
            raise NotFound("trial", self.runtime_id)

    async def wait(self, answer: Awaitable[Any]) -> Any:
        """Wait for the answer to a call. NotFound if the trial is closed meanwhile."""
        scope = anyio.CancelScope()
        value = await self._wait(scope, answer)
        if scope.cancelled_caught:
            raise NotFound("trial", self.runtime_id)
        return value

    async def _wait(self, scope: anyio.CancelScope, answer: Awaitable[Any]) -> Any:
        """What ``end_calls`` gives up. A call that is answered at once does without: this is half of what it costs."""
        with scope:
            self.calling.add(scope)
            try:
                return await answer
            finally:
                self.calling.discard(scope)

    def end_calls(self) -> None:
        """Give up every call."""
        for scope in self.calling:
            scope.cancel()

    def end_of_process(self) -> ProcessEnded | None:
        """How its process ended, if that was its alone."""
        return self.host.end_of_process() if self.episode_id is None else None

    def checked(self, action: Action, arguments: tuple[Any, ...]) -> Any:
        """The arguments of a tool call as its record shows them. SerializationError for what is no data.

        SubmissionError for such an answer. In-process they could pass, but what an agent can do shall not depend on
        where its trial runs.
        """
        if action is Action.EXECUTE:
            return to_data(arguments[1], f"the call of tool {arguments[0]!r}", arrays="describe")
        if action is Action.SUBMIT:
            try:
                to_data(arguments[0], "the answer", arrays="describe")
            except SerializationError as error:
                key = TrialKey(self.task_id, self.trial_index)
                raise SubmissionError(f"the answer to {key} cannot be accepted: {error}") from error
        return None

    def called(self, tool: str, given: Any, response: ToolResponse) -> None:
        """Remember a tool call: what the tool was ``given``, as it was checked."""
        if self.history.passed(tool, response.success):
            result = to_data(response.result, "a record", arrays="describe")  # an array itself could be large
            self.history.keep(ToolCall(tool, given, response.success, result, response.error))


@dataclass
class OpenEpisode:
    """The tasks of one trial round of a chain, and the lease that they share."""

    door: Door
    """By which its trials come in."""
    host: TrialHost | None = None
    turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    placing: anyio.Lock = field(default_factory=anyio.Lock)
    outputs: dict[str, Any] = field(default_factory=dict)
    open_trials: set[str] = field(default_factory=set)
