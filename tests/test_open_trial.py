"""What the supervisor keeps of an open trial's calls, for the record of an attempt that is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import numpy as np
import pytest

from corral.call_history import CALLS_KEPT
from corral.errors import NotFound, SerializationError, SubmissionError
from corral.hosts import TrialHost
from corral.open_trial import OpenTrial
from corral.types import Action, ToolCall, ToolResponse


def open_trial() -> OpenTrial:
    return OpenTrial("tr_1", "task", 0, cast(TrialHost, None))


def call(trial: OpenTrial, tool: str, arguments: dict[str, Any], response: ToolResponse) -> None:
    trial.called(tool, trial.checked(Action.EXECUTE, (tool, arguments)), response)


def test_calls_are_remembered_as_they_passed() -> None:
    trial = open_trial()
    arguments: dict[str, Any] = {"volume": 1.5, "to": ["a", "b"]}
    call(trial, "titrate", arguments, ToolResponse(True, {"pH": 7.0}))
    call(trial, "titrate", arguments, ToolResponse(False, error="ValueError: empty"))
    arguments["to"].append("changed by its agent later")
    assert trial.history.kept == [
        ToolCall("titrate", {"volume": 1.5, "to": ["a", "b"]}, True, {"pH": 7.0}, None),
        ToolCall("titrate", {"volume": 1.5, "to": ["a", "b"]}, False, None, "ValueError: empty"),
    ]


def test_arrays_are_described_and_not_kept() -> None:
    trial, array = open_trial(), np.zeros((1000, 3))
    call(trial, "solve", {"start": array}, ToolResponse(True, {"field": array, "n": 3}))
    (kept,) = trial.history.kept
    assert kept.arguments == {"start": "<array float64 (1000, 3)>"}
    assert kept.result == {"field": "<array float64 (1000, 3)>", "n": 3}


def test_a_chatty_trial_is_remembered_up_to_a_limit() -> None:
    trial = open_trial()
    for number in range(CALLS_KEPT + 5):
        call(trial, "count", {}, ToolResponse(True, number))
    assert [kept.result for kept in trial.history.kept] == list(range(CALLS_KEPT))
    assert trial.history.statistics == {"count": {"calls": CALLS_KEPT + 5, "errors": 0}}


def test_what_is_no_data_is_refused() -> None:
    trial = open_trial()
    with pytest.raises(SerializationError, match="the call of tool 'solve'"):
        trial.checked(Action.EXECUTE, ("solve", {"by": object()}))
    with pytest.raises(SubmissionError, match="the answer to task#0"):
        trial.checked(Action.SUBMIT, (object(),))
    assert trial.checked(Action.STATUS, ()) is None


async def give_up(trial: OpenTrial, wait: Callable[[], Awaitable[Any]]) -> None:
    """One waits, and the trial is closed meanwhile."""
    async with anyio.create_task_group() as tasks:

        async def one() -> None:
            with pytest.raises(NotFound, match="tr_1"):
                await wait()

        tasks.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        assert len(trial.calling) == 1
        trial.end_calls()
    assert not trial.calling


@pytest.mark.anyio
async def test_a_call_that_waits_for_its_turn_is_given_up() -> None:
    trial = open_trial()
    await trial.take_turn()
    await give_up(trial, trial.take_turn)
    trial.turn.release()
    await trial.take_turn()  # it was not lost with the one that was given up


@pytest.mark.anyio
async def test_a_call_that_gets_its_turn_as_the_trial_is_closed_gives_it_back() -> None:
    trial = open_trial()
    await trial.take_turn()

    async with anyio.create_task_group() as tasks:

        async def other() -> None:
            with contextlib.suppress(NotFound):
                await trial.take_turn()
                trial.turn.release()

        tasks.start_soon(other)
        await anyio.wait_all_tasks_blocked()
        trial.turn.release()  # now it is the other's, which has yet to run
        trial.end_calls()
    assert not trial.turn.locked()


@pytest.mark.anyio
async def test_a_call_that_waits_for_its_answer_is_given_up() -> None:
    trial = open_trial()
    await give_up(trial, lambda: trial.wait(anyio.sleep_forever()))
