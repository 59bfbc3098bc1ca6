"""What the supervisor keeps of an open trial's calls, for the record of an attempt that is lost."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from corral.hosts import TrialHost
from corral.open_trial import CALLS_KEPT, OpenTrial
from corral.types import TaskTrialResult, ToolCall, ToolResponse


def open_trial() -> OpenTrial:
    return OpenTrial("tr_1", "task", 0, cast(TrialHost, None))


def test_calls_are_remembered_as_they_passed() -> None:
    trial = open_trial()
    arguments: dict[str, Any] = {"volume": 1.5, "to": ["a", "b"]}
    trial.remember(ToolResponse(True, {"pH": 7.0}), ("titrate", arguments))
    trial.remember(ToolResponse(False, error="ValueError: empty"), ("titrate", arguments))
    arguments["to"].append("changed by its agent later")
    assert trial.calls == [
        ToolCall("titrate", {"volume": 1.5, "to": ["a", "b"]}, True, {"pH": 7.0}, None),
        ToolCall("titrate", {"volume": 1.5, "to": ["a", "b"]}, False, None, "ValueError: empty"),
    ]


def test_arrays_are_described_and_not_kept() -> None:
    trial, array = open_trial(), np.zeros((1000, 3))
    trial.remember(ToolResponse(True, {"field": array, "n": 3}), ("solve", {"start": array}))
    (call,) = trial.calls
    assert call.arguments == {"start": "<array float64 (1000, 3)>"}
    assert call.result == {"field": "<array float64 (1000, 3)>", "n": 3}


def test_a_chatty_trial_is_remembered_up_to_a_limit() -> None:
    trial = open_trial()
    for number in range(CALLS_KEPT + 5):
        trial.remember(ToolResponse(True, number), ("count", {}))
    assert [call.result for call in trial.calls] == list(range(CALLS_KEPT))


def test_what_submitting_gave_is_the_result() -> None:
    trial = open_trial()
    result: Any = TaskTrialResult("task", 0, score=0.5)
    trial.remember(result, ("an answer",))
    assert trial.result is result
    assert trial.calls == []
