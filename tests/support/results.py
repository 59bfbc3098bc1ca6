"""Results to report on: records made by hand, with the parts that differ from run to run set apart."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from corral.errors import FailureKind
from corral.report import BenchmarkResult
from corral.scheduler import Job
from corral.types import Attempt, TaskTrialResult, Timings, ToolCall, TrialKey, WorkerRef


def graded(task_id: str, index: int, score: float = 1.0, **more: Any) -> TaskTrialResult:
    """A trial that the scorer saw."""
    more.setdefault("state", {"submitted_answer": f"answer {index}"})
    return TaskTrialResult(task_id, index, score, **more)


def lost(
    task_id: str, index: int, failure: FailureKind = FailureKind.WORKER_DIED, message: str = "the worker died"
) -> TaskTrialResult:
    """A trial that failed."""
    return TaskTrialResult.not_graded(TrialKey(task_id, index), failure, message)


def run_on(machine: int) -> BenchmarkResult:
    """The same run on one or another machine: everything that may differ does."""
    where = WorkerRef(slot=machine, pid=1000 + machine, trial_pid=2000 + machine, node=f"node{machine}")
    workspace = f"/tmp/corral-{machine}/tr_{machine:02}/ws"
    parent_workspace = f"/tmp/corral-{machine}/tr_{machine:02}/ws-parent"
    died = f"the trial process (pid {2000 + machine}, slot {machine}) was killed by signal 9 (SIGKILL) during agent"
    attempt = Attempt(
        2 if machine else 1, worker=where, peak_rss=10**6 * machine, cpu_seconds=0.1 * machine, output=f"at {machine}"
    )
    earlier = (Attempt(1, FailureKind.WORKER_DIED, died, "agent", where, -9),) if machine else ()
    call = ToolCall("write", {"path": f"{workspace}/out.txt"}, True, f"<File at 0x7f{machine:08x}>", None, machine / 7)
    child = graded(
        "child", 0, 0.5,
        state={
            "submitted_answer": {"file": f"{workspace}/out.txt"}, "workspace": workspace, "trial_id": f"tr_{machine}",
            "tool_calls": [call], "outputs": {"parent": f"{parent_workspace}/in.txt"}, "files": {f"{workspace}/a": 1},
        },
        duration=1.5 * machine,
        token_usage={"input": 5},
        messages=[{"role": "tool", "content": f'{{"path": "{workspace}/out.txt"}}', "timestamp": machine}],
        attempts=(*earlier, attempt),
        worker=where,
        timings=Timings(machine, machine, machine, machine),
        warnings=(f"close of tr_{machine:016x} raised in pid {1000 + machine}",),
    )  # fmt: skip
    parent = graded("parent", 0, state={"submitted_answer": "x", "workspace": parent_workspace}, worker=where)
    final = Attempt(3, FailureKind.WORKER_DIED, died, "agent", where, -9, traceback=f"line {machine}")
    dead = TaskTrialResult.not_graded(
        TrialKey("parent", 1), FailureKind.WORKER_DIED, died, worker=where, attempts=(final,)
    )
    return BenchmarkResult.collect(
        f"session-{machine}",
        ["parent", "child"],
        [child, dead, parent, lost("child", 1, FailureKind.NOT_RUN, "its parent failed")],
        trials_per_task=2,
        k_values=(1, 2),
        run_name=f"run-{machine}",
        seed=machine,
        wall_seconds=12.5 + machine,
        settings={"global_trials": machine},
        pool={"size": machine, "workers": [{"slot": machine, "pid": 1000 + machine}]},
        journal=Path(f"/tmp/{machine}/journal"),
        created=datetime(2026, 1, 1 + machine, tzinfo=UTC),
    )


async def told(job: Job, result: TaskTrialResult, hurry: bool) -> TaskTrialResult:
    """What a scheduler does with a result that needs no journal."""
    return result
