"""What is kept of a trial's tool calls has a limit, whatever they give; all are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral import call_history
from corral.call_history import BRIEF, CALLS_KEPT, ROOM, CallHistory, Room
from corral.environment import CorralState
from corral.errors import FailureKind
from corral.records import encode
from corral.types import ToolCall
from tests.support.benches import bench, benches, sole

LONG = "x" * (ROOM + 1)


def call(result: Any = None, **more: Any) -> ToolCall:
    return ToolCall(**{"tool": "look", "arguments": {}, "success": True, "result": result, **more})


DESCRIBED: list[tuple[ToolCall, ToolCall]] = [
    (call(LONG), call(f"<text of {len(LONG)} characters>")),
    (call([1.5, LONG]), call("<list of 2 items>")),
    (call({"a": LONG, "b": 1}), call("<object of 2 names>")),
    (call(arguments={"code": LONG, "n": 3}), call(arguments={"code": f"<text of {len(LONG)} characters>", "n": 3})),
    (call(1, arguments={f"a{n}": "y" * 100 for n in range(2 * 10**5)}),
     call(1, arguments={"(not kept)": "<object of 200000 names>"})),
    (call(success=False, error=f"ValueError: {LONG}"),
     call(success=False, error=f"ValueError: {LONG}"[:BRIEF] + " ...")),
]  # fmt: skip


@pytest.mark.parametrize(("large", "kept"), DESCRIBED, ids=["text", "list", "object", "argument", "many", "error"])
def test_a_value_for_which_there_is_no_room_is_described(large: ToolCall, kept: ToolCall) -> None:
    assert Room().fit(large) == kept


def test_what_an_agent_gave_may_be_no_data_yet() -> None:
    """A scripted agent tells of its calls as it made them."""
    odd = call((1, 2), arguments={"of": {1: "one", None: {2.5: ["x"]}}, "array": np.zeros(3), "kind": ToolCall})
    assert Room().fit(odd) is odd


def test_what_comes_first_is_kept_and_what_is_short_always() -> None:
    history = CallHistory()
    megabyte = "y" * 2**20
    for _ in range(40):
        history.add(call(megabyte))
        history.add(call("short"))
    results = [one.result for one in history.kept]
    whole = results.count(megabyte)
    assert whole in (14, 15)
    assert results[: 2 * whole] == [megabyte, "short"] * whole
    assert results[2 * whole :] == ["<text of 1048576 characters>", "short"] * (40 - whole)


def test_all_calls_are_counted() -> None:
    history = CallHistory()
    for number in range(CALLS_KEPT + 5):
        history.add(call(number, tool="a" if number % 2 else "b", success=number < CALLS_KEPT))
    assert (len(history.kept), history.made) == (CALLS_KEPT, CALLS_KEPT + 5)
    assert history.statistics == {"b": {"calls": 503, "errors": 3}, "a": {"calls": 502, "errors": 2}}
    again = CallHistory.told(history.kept, history.statistics)
    assert (again.kept, again.made, again.statistics) == (history.kept, history.made, history.statistics)


VALUES = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(max_size=300) | st.integers(0, 3000).map("z".__mul__),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=20), inner, max_size=9),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.dictionaries(st.text(max_size=20), VALUES, max_size=3), VALUES), max_size=9))
def test_the_limit_holds_for_any_data(passed: list[tuple[dict[str, Any], Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_history, "ROOM", 2000)
        history = CallHistory()
        for arguments, result in passed:
            history.add(call(result, arguments=arguments))
    size = sum(len(encode({"c": [one.arguments, one.result]}).decode()) for one in history.kept)
    assert size <= 6 * 2000 + len(passed) * 6 * (11 * BRIEF + 100)  # six: how JSON may write a character


def test_a_state_tells_of_large_results_in_few_words() -> None:
    state = CorralState("t", "t#0", tool_calls=[call("y" * 10**7) for _ in range(5)])
    results = [one["result"] for one in state.to_dict()["tool_calls"]]
    assert results == ["y" * 10**7, *["<text of 10000000 characters>"] * 4]
    assert state.tool_calls[4].result == "y" * 10**7  # for the scorer


def read_much(lab: Any, prompt: str) -> Any:
    for _ in range(40):
        assert len(lab.call("python", code="result = 'y' * 2**20")) == 2**20
    return 1.0


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_the_record_of_a_trial_of_large_results_is_small(mode: Any, tmp_path: Path) -> None:
    """As such a trial ends by itself, and as its attempt is lost."""
    pool = 1 if mode == "process" else False
    result = bench(benches(a=mode), read_much, tmp_path, worker_pool=pool, session_id="s")
    trial = sole(result)
    assert (trial.score, trial.tool_statistics) == (1.0, {"python": {"calls": 40, "errors": 0}})
    assert result.journal is not None
    assert ROOM < result.journal.stat().st_size < 2.1 * ROOM  # the calls, and what its agent tells of them

    def lose(lab: Any, prompt: str) -> Any:
        read_much(lab, prompt)
        raise RuntimeError("lost")

    lost = bench(benches(a=mode), lose, tmp_path, worker_pool=pool, session_id="t")
    assert (sole(lost).failure, sole(lost).tool_statistics) == (FailureKind.AGENT, trial.tool_statistics)
    seen = [one["result"] for one in sole(lost).state["tool_calls"]]
    assert seen == [one["result"] for one in trial.state["tool_calls"]]


def test_a_trial_of_many_calls_is_counted_whole_where_it_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_history, "CALLS_KEPT", 10)

    def many(lab: Any, prompt: str) -> Any:
        for _ in range(25):
            lab.call("python", code="result = 1")
        raise RuntimeError("lost")

    trial = sole(bench(benches(a="thread"), many, tmp_path))
    assert len(trial.state["tool_calls"]) == 10
    assert trial.tool_statistics == {"python": {"calls": 25, "errors": 0}}
