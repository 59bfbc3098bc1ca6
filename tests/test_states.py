"""A run that leaves states and transcripts on the disk: the same report, and the same trials when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.errors import ConfigError, JournalError
from corral.report import stable_bytes
from tests.support.benches import bench, benches
from tests.support.chains import build_diamond, solve


def test_the_report_is_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials_per_task": 2, "seed": 1, "session_id": "s"}
    here = bench(build_diamond("thread"), solve, tmp_path / "memory", **options)
    there = bench(build_diamond("thread"), solve, tmp_path / "disk", states="disk", **options)
    assert stable_bytes(there) == stable_bytes(here)
    assert there.average_score() == 1


def test_memory_holds_no_state_and_the_trial_is_there_when_asked_for(tmp_path: Path) -> None:
    result = bench(build_diamond("thread"), solve, tmp_path, states="disk", seed=1)
    assert {len(trial.messages) for trial in result.trials} == {0}
    assert all("submitted_answer" not in trial.state for trial in result.trials)
    whole = list(result.whole_trials)
    assert [trial.key for trial in whole] == [trial.key for trial in result.trials]
    assert all(trial.state["submitted_answer"] is not None and trial.messages for trial in whole)


@pytest.mark.parametrize(("first", "then"), [("memory", "disk"), ("disk", "disk"), ("disk", "memory")])
def test_outputs_reach_dependents_after_a_resume(first: Any, then: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def policy(lab: Any, prompt: str) -> Any:
        if prompt.startswith("add 1") and broken.exists():
            raise RuntimeError("broken")
        return solve(lab, prompt)

    options: dict[str, Any] = {"session_id": "s", "seed": 1}
    assert bench(build_diamond("thread"), policy, tmp_path, states=first, **options).coverage.not_graded == {
        "agent": 1,
        "not_run": 1,
    }
    broken.unlink()
    again = bench(build_diamond("thread"), policy, tmp_path, states=then, retry_errors=True, **options)
    whole = bench(build_diamond("thread"), policy, tmp_path / "whole", **options)
    assert again.average_score() == 1
    assert stable_bytes(again) == stable_bytes(whole)
    answers = [[trial.state["submitted_answer"] for trial in result.whole_trials] for result in (again, whole)]
    assert answers[0] == answers[1] == [{"value": value} for value in (10, 11, 20, 31)]


def test_files_of_the_result_are_whole(tmp_path: Path) -> None:
    result = bench(build_diamond("thread"), solve, tmp_path, states="disk", seed=1)
    result.generate_report(tmp_path / "report.html")
    assert "add 1" in (tmp_path / "report.html").read_text("utf-8")


def test_a_journal_that_is_gone_is_named(tmp_path: Path) -> None:
    result = bench(build_diamond("thread"), solve, tmp_path, states="disk", seed=1)
    assert result.journal is not None
    result.journal.unlink()
    with pytest.raises(JournalError, match=r"cannot read .*No such file"):
        list(result.whole_trials)


def test_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='states must be "memory" or "disk", not \'tape\''):
        bench(benches(a="thread"), solve, tmp_path, states="tape")
