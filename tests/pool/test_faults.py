"""The table of faults: whatever goes wrong, wherever user code runs, has its kind, within its limit, and costs the next
trial on the slot nothing. docs/faults.md is this table."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from corral import BenchmarkResult, CorralRunner, TaskTrialResult, TrialContext
from corral.agents import ScriptedAgent, ToolFailed
from corral.pool import WorkerPoolConfig
from tests.support import faults
from tests.support.fault_table import LIMITS, OUTCOMES, PHASES, START_PHASES, page
from tests.support.pool_waiting import remain

ROOT = Path(__file__).resolve().parents[2]
GRACE = 5.0
"""Seconds that an outcome may take beyond its limit."""


class Range:
    """A place for faults: it arms them, runs a benchmark on a pool of one that meets them, and says what came of it."""

    def __init__(self, folder: Path, phase: str, wanted: list[str]) -> None:
        self.folder = folder
        self.phase = phase
        self.names = list(faults.FAULTS)
        self.wanted = {f"{self.names.index(fault):02}" for fault in wanted}
        self.starts: dict[str, int] = {}

    def run(self) -> BenchmarkResult:
        chosen = [task for task in faults.task_ids() if task[:2] in self.wanted or task == "99-after"]
        renew = 1 if self.phase in START_PHASES else None
        pool = WorkerPoolConfig(
            size=1, start_timeout=LIMITS["start_timeout"], memory_limit="300MB", max_trials_per_worker=renew,
            reuse="worker" if self.phase == "between leases" else "trial",
        )  # fmt: skip
        runner = CorralRunner(faults.build, agent_factory=self.agent, checkpoint_dir=self.folder / "sessions")
        limits: dict[str, Any] = {
            name: LIMITS[name] for name in ("tool_timeout", "trial_timeout", "setup_timeout", "close_timeout")
        }
        progress = self.let_strike if self.phase == "between leases" else False
        return runner.bench(task_ids=chosen, worker_pool=pool, retries=0, progress=progress, **limits)

    def agent(self, context: TrialContext) -> ScriptedAgent:
        number, _, role = context.task_id.partition("-")

        def policy(lab: Any, prompt: str) -> str:
            self.starts[context.task_id] = len((self.folder / "starts").read_text().split())
            early = self.phase in (*START_PHASES, "fork", "hello", "set-up")
            if role == ("before" if early else "struck"):
                (self.folder / "armed").write_text(f"{self.phase}\n{self.names[int(number)]}")
            try:
                lab.call("linger" if (self.phase, role) == ("between leases", "struck") else "work")
            except ToolFailed:
                return "a call failed"
            return "done"

        return ScriptedAgent(policy)

    def let_strike(self, event: dict[str, Any]) -> None:
        """While the supervisor is here nothing goes on but what a trial left behind."""
        if event["task_id"].endswith("struck"):
            (self.folder / "go").touch()
            deadline = time.monotonic() + 5
            while (self.folder / "armed").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.7)  # the fault itself takes a moment; what it does to a later trial is what is looked at
            fills = self.names[int(event["task_id"][:2])] == "fills the memory"
            while fills and not (self.folder / "filled").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            (self.folder / "go").unlink()

    def outcome(self, trial: TaskTrialResult, after: TaskTrialResult) -> str:
        """In the words of the table. ``after`` is the next trial on the slot."""
        attempt = trial.attempts[0]
        if trial.failure is None:
            before = self.starts[trial.task_id.replace("struck", "before")]
            if self.phase in START_PHASES and self.starts[trial.task_id] - before > 1:
                return "started again"
            assert trial.worker is not None
            assert after.worker is not None
            if self.phase == "between leases" and trial.worker.trial_pid != after.worker.trial_pid:
                return "a new process"
            failed = any(not call["success"] for call in trial.state["tool_calls"])
            return "graded, a failed call" if failed else "graded, a warning" if trial.warnings else "graded"
        if trial.failure != "worker_died":
            return str(trial.failure)
        lost = "was lost" in str(trial.error_message)
        return f"worker_died: {'connection lost' if lost else attempt.exit_status}"


def measure(folder: Path, phase: str, wanted: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Let the faults strike in the phase, one after the other; the outcomes."""
    monkeypatch.setenv(faults.FOLDER, str(folder))
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", str(ROOT / "tests" / "support" / "faults_main.py"), raising=False
    )
    (folder / "starts").touch()
    place = Range(folder, phase, wanted)
    trials = list(place.run().trials)
    outcomes = {}
    for trial, after in pairwise(trials):
        if trial.task_id.endswith("struck"):
            name = place.names[int(trial.task_id[:2])]
            outcomes[name] = place.outcome(trial, after)
            assert trial.duration < LIMITS[PHASES[phase]] + GRACE, name
    for trial in trials:
        if not trial.task_id.endswith("struck"):
            assert (trial.graded, trial.score, trial.failure, len(trial.attempts)) == (True, 1.0, None, 1), (
                trial.task_id
            )
    grandchildren = folder / "grandchildren"
    assert remain(map(int, grandchildren.read_text().split() if grandchildren.exists() else [])) == []
    return outcomes


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("phase", PHASES)
def test_every_fault_in(phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure(tmp_path, phase, list(faults.FAULTS), monkeypatch) == OUTCOMES[phase]


@pytest.mark.parametrize(
    ("phase", "wanted"),
    [
        ("spawn", ["garbage on descriptors 1 and 2", "10 MB on standard error", "raises"]),
        ("load", ["os._exit(9)", "raises what cannot be rebuilt"]),
        ("fork", ["SIGSEGV", "raises"]),
        ("set-up", ["hangs and holds the GIL", "SIGKILL"]),
        ("tool", ["raises what cannot be rebuilt", "SIGSTOP", "fills the memory", "closes all descriptors"]),
        ("scoring", ["a result that cannot be sent", "SIGSEGV"]),
        ("close", ["hangs in Python", "os._exit(9)", "leaves a grandchild"]),
        ("between leases", ["SIGKILL", "fills the memory"]),
    ],
)
def test_some_faults_in(phase: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick ones, and one of each sort."""
    assert measure(tmp_path, phase, wanted, monkeypatch) == {name: OUTCOMES[phase][name] for name in wanted}


def test_the_page_is_the_table() -> None:
    assert {tuple(row) for row in OUTCOMES.values()} == {tuple(faults.FAULTS)}
    assert (ROOT / "docs" / "faults.md").read_text("utf-8") == page()
