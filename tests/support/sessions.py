"""Sessions with everything that a report can show, and any result as a session on the disk."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corral import records
from corral.errors import FailureKind
from corral.header import Header
from corral.journal import FILE_NAME, Journal
from corral.records import line_of, to_record
from corral.report import BenchmarkResult
from corral.report.sessions import open_session
from corral.types import Attempt, TaskTrialResult, Timings, ToolCall, WorkerRef

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
START = NOW.timestamp()

HOSTILE = '</script><script>document.title="broken"</script><img src=x onerror=alert(1)> & \ud800 \x07'
"""What a model may say: markup, a lone surrogate, a control character."""


def _trial(task_id: str, index: int, at: float, slot: int | None, **more: Any) -> TaskTrialResult:
    where = None if slot is None else WorkerRef(slot, 100 + slot, 200 + index)
    usual = Attempt(
        1, worker=where, started_at=START + at, opened=0.5, seconds=3.0, peak_rss=50_000_000, cpu_seconds=1.0,
        output="" if slot is None else "balance on port 3\n",
    )  # fmt: skip
    attempts = more.pop("attempts", (usual,))
    values: dict[str, Any] = {
        "score": 1.0,
        "state": {
            "submitted_answer": f"answer {index}",
            "feedback": {"found": index},
            "tool_calls": [ToolCall("weigh", {"what": "salt"}, True, {"g": 2}, None, 1.25)],
        },
        "tool_statistics": {"weigh": {"calls": 1, "errors": 0}},
        "duration": 3.0,
        "token_usage": {"prompt_tokens": 100, "completion_tokens": 10, "details": {"cached": 40}},
        "messages": [
            {"role": "user", "content": f"task {task_id}"},
            {"role": "assistant", "content": "I weigh it.", "tool_calls": [
                {"id": "c1", "function": {"name": "weigh", "arguments": '{"what": "salt"}'}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "name": "weigh", "content": "2 g"},
            {"role": "assistant", "content": "2 g"},
        ],
        "agent_status": "success",
        "worker": where,
        "timings": Timings(at + 0.5, 0.25, 2.0, 0.25),
    }  # fmt: skip
    return TaskTrialResult(task_id, index, **{**values, **more, "attempts": attempts})


def everything() -> BenchmarkResult:
    """A session of three tasks: successes, a zero, a surrender, a crash after a repeated one, a hang, one not run."""
    crash = "the trial process (pid 201, slot 1) was killed by signal 11 (SIGSEGV) during tool weigh"
    died = Attempt(1, FailureKind.WORKER_DIED, crash, "tool weigh", WorkerRef(1, 101, 201), -11, opened=0.5)
    crashes = (
        replace(died, output="first", started_at=START, seconds=1.0),
        replace(died, number=2, peak_rss=60_000_000, traceback="Traceback: x", output=f"Segfault soon {HOSTILE}",
                started_at=START + 1.5, seconds=2.0),
    )  # fmt: skip

    def failed(kind: FailureKind, message: str) -> dict[str, Any]:
        return {"failure": kind, "error_message": message}

    lost = {"score": 0.0, "graded": False, "messages": []}
    trials = [
        _trial("salt/one", 0, 0.0, 0),
        _trial("salt/one", 1, 4.0, 0, score=0.0),
        _trial("salt/one", 2, 3.5, 1, score=0.25, state={"submitted_answer": HOSTILE}),
        _trial("crash", 0, 0.0, 1, **lost, **failed(FailureKind.WORKER_DIED, crash), attempts=crashes),
        _trial("crash", 1, 7.0, None, **lost, **failed(FailureKind.NOT_RUN, "its parent failed"), attempts=()),
        _trial("crash", 2, 6.5, 1, score=0.0, **failed(FailureKind.TRIAL_TIMEOUT, "did not end within 3 s")),
        _trial("calm", 0, 1.0, None, surrendered=True, score=0.0, warnings=("close raised OSError",)),
        _trial("calm", 1, 1.5, None),
        _trial("calm", 2, 5.0, None),
    ]  # fmt: skip
    slot = {"slot": 0, "pid": 100, "trials": 2, "restarts": 1, "busy_s": 7.0, "losses": [START + 3.2]}
    return BenchmarkResult.collect(
        "night", ["salt/one", "crash", "calm"], [records.recorded(trial)[1] for trial in trials],
        trials_per_task=3, k_values=(1, 3), run_name="a <night>", model="demo/one", seed=5, wall_seconds=12.5,
        settings={"max_concurrency": 3}, created=NOW,
        pool={"size": 2, "restarts": 1, "workers": [slot]},
    )  # fmt: skip


def record(result: BenchmarkResult, folder: Path, *, ended: bool = True) -> BenchmarkResult:
    """``result`` as its run would have recorded it, with its journal; ``ended``: whether the run came to its end."""
    plan = {"task_ids": list(result.task_results), "trials_per_task": result.trials_per_task, "seed": result.seed}
    header = Header.new(result.session_id, plan, {"model": result.model, "tasks": {}}, result.created)
    result.journal = folder / FILE_NAME
    journal = Journal.create(folder, header)
    try:
        journal.append([line_of(to_record(trial)) for trial in reversed(list(result.trials))])
        if ended:
            journal.append_run(result.closing_record())
    finally:
        journal.close()
    return result


def recorded(folder: Path, *, ended: bool = True) -> BenchmarkResult:
    """``everything`` as read from its journal in ``folder``."""
    record(everything(), folder, ended=ended)
    return open_session(folder)
