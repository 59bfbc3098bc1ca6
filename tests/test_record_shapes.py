"""The shapes of a journal's lines: those that Corral writes have them, what others give is put into them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from corral import CorralRunner
from corral.agents import AgentRunResult
from corral.errors import FailureKind
from corral.record_shapes import ATTEMPT, RUN, TIMINGS, TRIAL, WORKER, fitted, misfit_of_trial
from corral.records import from_record, recorded, to_record
from corral.report import open_session
from corral.report.exports import FORMATS
from corral.types import Attempt, TaskTrialResult, Timings, WorkerRef
from tests.support.benches import benches

WHOLE = TaskTrialResult(
    "a", 0, score=0.5, state={"task_id": "a"}, tool_statistics={"weigh": {"calls": 1, "errors": 0}}, duration=1.5,
    token_usage={"tokens": 3}, messages=[{"role": "user"}], agent_status="success", error_message="late",
    failure=FailureKind.AGENT, worker=WorkerRef(0, 7, 8, "node"), warnings=("odd",),
    attempts=(Attempt(1, FailureKind.AGENT, "late", "agent", WorkerRef(0, 7), -9, 1000, 0.1, "t", "o", 1.0, 0.1, 0.2),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "kind"), [(TRIAL, TaskTrialResult), (ATTEMPT, Attempt), (TIMINGS, Timings), (WORKER, WorkerRef)]
)
def test_a_shape_has_all_that_its_class_has(shape: dict[str, Any], kind: Any) -> None:
    assert set(shape) == {field.name for field in fields(kind)}


@pytest.mark.parametrize("result", [WHOLE, TaskTrialResult("a", 0)])
def test_what_is_written_fits(result: TaskTrialResult) -> None:
    line, again = recorded(result)
    record = json.loads(line.data)
    assert misfit_of_trial(record) is None
    assert fitted(record) is record
    assert again == result


def test_the_closing_line_of_a_run_fits(tmp_path: Path) -> None:
    class Solver:
        def run_agent(self, interface: Any, task_id: str) -> AgentRunResult:
            return AgentRunResult(1)

    CorralRunner(benches(a="thread"), Solver(), checkpoint_dir=tmp_path).bench(session_id="s", progress=False)
    last = json.loads((tmp_path / "s" / "journal.jsonl").read_text().splitlines()[-1])
    assert set(last) - {"type", "session", "seed"} == set(RUN)
    assert [name for name in RUN if not isinstance(last[name], RUN[name])] == []


# ---- what agents and routers give ----

GIVEN: list[tuple[str, Any, Any]] = [
    ("messages", None, []),
    ("messages", 3, [3]),
    ("messages", "said", ["said"]),
    ("messages", {"role": "user"}, [{"role": "user"}]),
    ("token_usage", None, {}),
    ("token_usage", 3, {}),
    ("token_usage", [1], {}),
    ("state", [1], {}),
    ("tool_statistics", "many", {}),
    ("agent_status", 3, "3"),
    ("error_message", {"a": 1}, "{'a': 1}"),
    ("surrendered", 0, False),
]


@pytest.mark.parametrize(("name", "given", "kept"), GIVEN)
def test_what_has_no_place_in_a_record_is_put_into_shape(name: str, given: Any, kept: Any) -> None:
    record = to_record(WHOLE) | {name: given}
    result = from_record(record)
    assert getattr(result, name) == kept
    told = () if given is None else (f"{name} was given as {given!r}",)
    assert result.warnings == ("odd", *told)
    line, again = recorded(result)
    assert from_record(json.loads(line.data)) == again == result


@pytest.mark.parametrize(
    "odd",
    [{"messages": 3}, {"messages": None}, {"messages": "said"}, {"token_usage": 3}, {"token_usage": None},
     {"messages": [3, None, {"role": 3}, {"role": "assistant", "tool_calls": [3, {"function": 3}]}]}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("raises", [False, True], ids=["gives", "raises"])
def test_an_agent_that_gives_odd_things_costs_no_report(odd: dict[str, Any], raises: bool, tmp_path: Path) -> None:
    class Odd:
        messages = odd.get("messages")
        token_usage = odd.get("token_usage")

        def run_agent(self, interface: Any, task_id: str) -> AgentRunResult:
            if raises:
                raise ValueError("odd")
            return AgentRunResult(1, **odd)

    runner = CorralRunner(benches(a="thread"), Odd(), checkpoint_dir=tmp_path)
    result = runner.bench(session_id="s", progress=False)
    (trial,) = result.trials
    assert (trial.score, trial.failure) == ((0, "agent") if raises else (1, None))
    for form in FORMATS.values():
        result.export(tmp_path / f"report{form.suffix}")
    open_session(tmp_path / "s").generate_report(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "report.json").read_text()
    assert runner.bench(session_id="s", progress=False).average_score() == result.average_score()
