"""Sessions: what a killed or stopped run leaves behind, and what the same command makes of it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from corral import BenchmarkResult, CorralRunner, Environment, TrialContext
from corral.agents import ScriptedAgent
from corral.errors import ConfigError, JournalError, SessionMismatch
from corral.report import stable_bytes
from tests.support.benches import Bench, bench, benches, runner
from tests.support.chains import build_diamond, solve
from tests.support.scripts import python

KILLED_RUN = '''
import json, os, random, signal, sys
from pathlib import Path
from corral import CorralRunner, Environment, tool
from corral.agents import ScriptedAgent

class Counted(Environment):
    """Marks each execution, and kills the supervisor at the one that it is told."""

    def __init__(self, task_id, mode):
        super().__init__(task_id, concurrency=mode)

    def get_task_prompt(self):
        return self.task_id

    @tool
    def work(self) -> int:
        """Work."""
        with open("executions", "a") as file:
            file.write(f"{self.state.trial_id} of {os.environ['SUPERVISOR']}\\n")
        if len(Path("executions").read_text().splitlines()) >= int(os.environ.get("KILL_AT", "1000")):
            os.kill(int(os.environ["SUPERVISOR"]), int(os.environ["SIGNAL"]))
        return random.Random(self.seed).randrange(1000)

    def score(self):
        return self.state.submitted_answer % 2

def build():
    return {mode: Counted(mode, mode) for mode in ("thread", "process", "serial")}

def main():
    os.environ["SUPERVISOR"] = str(os.getpid())
    folder = os.getcwd()
    def policy(lab, prompt):
        return lab.call("work")
    runner = CorralRunner(build, agent_factory=lambda c: ScriptedAgent(policy), checkpoint_dir=Path(folder, "sessions"))
    result = runner.bench(trials_per_task=3, session_id="s", seed=3, **json.loads(sys.argv[1]))
    result.generate_report(Path(folder, "report.json"))

if __name__ == "__main__":
    main()
'''
"""In-process trials write into the script's folder, and those on a pool too: the file is named by its full path."""


def answer(lab: Any, prompt: str) -> Any:
    return 1


def killed_at(number: int, by: signal.Signals = signal.SIGKILL) -> dict[str, str]:
    """The variables that let a run kill itself at its ``number``th execution."""
    return {"KILL_AT": str(number), "SIGNAL": str(int(by))}


def recorded(folder: Path) -> list[str]:
    lines = (folder / "sessions" / "s" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    whole = [json.loads(line) for line in lines[1:] if line.endswith(b"\n")]
    return [f"{line['task_id']}#{line['trial_index']}" for line in whole if line["type"] == "trial"]


def executed(folder: Path) -> list[tuple[str, str]]:
    """Which trials were executed, each with the pid of the supervisor that wanted it."""
    lines = (folder / "executions").read_text().splitlines()
    return [(trial, supervisor) for trial, _, supervisor in (line.partition(" of ") for line in lines)]


@pytest.mark.parametrize(
    ("options", "kills"),
    [
        ({}, [1, 5]),
        ({"max_concurrency": 4, "max_concurrency_per_task": 3}, [2, 9]),
        ({"max_concurrency": 4, "max_concurrency_per_task": 3, "worker_pool": 2}, [1, 6]),
    ],
    ids=["serial", "threads", "pool"],
)
def test_a_killed_run_goes_on_where_it_was(options: dict[str, Any], kills: list[int], tmp_path: Path) -> None:
    text = KILLED_RUN.replace('"executions"', repr(str(tmp_path / "executions")))
    (tmp_path / "run.py").write_text(text)
    arguments = ("run.py", json.dumps(options))
    for number in kills:
        done = python(*arguments, folder=tmp_path, variables=killed_at(number))
        assert done.returncode == -signal.SIGKILL, done.stderr
        for trial in recorded(tmp_path):
            assert trial in dict(executed(tmp_path))
    settled = Counter(recorded(tmp_path))
    killed = {supervisor for _, supervisor in executed(tmp_path)}  # what is left of one may just begin the next trial
    done = python(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    again = Counter(trial for trial, supervisor in executed(tmp_path) if supervisor not in killed)
    everything = Counter({f"{mode}#{i}": 1 for mode in ("thread", "process", "serial") for i in range(3)})
    assert settled + again == everything
    resumed = json.loads((tmp_path / "report.json").read_text())

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "run.py").write_text(text)
    assert python(*arguments, folder=fresh).returncode == 0
    assert stable_bytes(resumed) == stable_bytes(fresh / "report.json")
    assert len(resumed["tasks"]) == 3


@pytest.mark.parametrize("pool", [False, 2])
def test_a_script_stopped_by_ctrl_c_ends_and_goes_on(pool: Any, tmp_path: Path) -> None:
    """With one traceback of one KeyboardInterrupt, and no process left (which the fixture of all tests sees)."""
    (tmp_path / "run.py").write_text(KILLED_RUN.replace('"executions"', repr(str(tmp_path / "executions"))))
    arguments = ("run.py", json.dumps({"max_concurrency": 3, "max_concurrency_per_task": 2, "worker_pool": pool}))
    done = python(*arguments, folder=tmp_path, variables=killed_at(4, signal.SIGINT))
    assert done.returncode in (-signal.SIGINT, 130), done.stderr
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert len(recorded(tmp_path)) < 9
    done = python(*arguments, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(recorded(tmp_path)) == 9


# ---- what the same command finds ----


def counted(folder: Path, score: float = 1) -> Any:
    """A policy that leaves a mark of each execution."""

    def policy(lab: Any, prompt: str) -> Any:
        with (folder / "executions").open("a") as file:
            file.write(f"{prompt}\n")
        return score

    return policy


def executions(folder: Path) -> int:
    path = folder / "executions"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("pool", [False, 1])
def test_a_finished_session_runs_nothing_and_reports_the_same(pool: Any, tmp_path: Path) -> None:
    options = {"trials_per_task": 2, "session_id": "s", "worker_pool": pool}
    first = bench(benches(a="process", b="thread"), counted(tmp_path), tmp_path, **options)
    again = bench(benches(a="process", b="thread"), counted(tmp_path), tmp_path, **options)
    assert executions(tmp_path) == 4
    assert stable_bytes(first) == stable_bytes(again)
    assert first.seed == again.seed


def test_resume_off_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    bench(benches(a="thread"), answer, tmp_path, session_id="s")
    files = {path: path.read_bytes() for path in (tmp_path / "sessions").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"session 's' has results in .* already, and resume is off"):
        bench(benches(a="thread"), counted(tmp_path), tmp_path, session_id="s", resume=False)
    assert {path: path.read_bytes() for path in (tmp_path / "sessions").rglob("*") if path.is_file()} == files
    assert executions(tmp_path) == 0


class Versioned(Bench):
    version = "1"


def versioned() -> dict[str, Environment]:
    return {"a": Versioned("a"), "b": Versioned("b")}


def run_versioned(folder: Path, task_ids: list[str] | None = None, model: str = "m", **options: Any) -> BenchmarkResult:
    hiring = CorralRunner(
        versioned, agent_factory=lambda c: ScriptedAgent(counted(folder), model=model), checkpoint_dir=folder
    )
    return hiring.bench(task_ids, session_id="s", **options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "other"}, "model was 'm' and is 'other' now"),
        ({"seed": 2}, "its seed is 1, and 2 is asked for now"),
        ({"task_ids": ["a"]}, "tasks that it has and that are not asked for now: 'b'"),
        ({"trials_per_task": 2}, "it has 3 trials per task, and 2 are asked for now"),
    ],
)
def test_a_session_is_not_gone_on_with_for_something_else(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    run_versioned(tmp_path, trials_per_task=3, seed=1)
    with pytest.raises(SessionMismatch, match=says):
        run_versioned(tmp_path, **{"trials_per_task": 3, "seed": 1, **change})
    assert executions(tmp_path) == 6


def test_another_version_of_an_environment_and_all_differences_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_versioned(tmp_path, seed=1)
    monkeypatch.setattr(Versioned, "version", "2")
    with pytest.raises(SessionMismatch) as mismatch:
        run_versioned(tmp_path, seed=2, model="other")
    assert len(mismatch.value.differences) == 3
    assert "the environment (its code, data, version or tools) has changed of: 'a', 'b'" in str(mismatch.value)
    assert executions(tmp_path) == 2


def test_a_resumed_session_keeps_its_own_seed(tmp_path: Path) -> None:
    first = run_versioned(tmp_path)
    assert run_versioned(tmp_path).seed == first.seed
    assert run_versioned(tmp_path, trials_per_task=2).seed == first.seed


def test_a_session_grows(tmp_path: Path) -> None:
    run_versioned(tmp_path, trials_per_task=3, seed=1)
    grown = run_versioned(tmp_path, trials_per_task=5, seed=1)
    assert executions(tmp_path) == 10
    assert [trial.trial_index for trial in grown.task_results["a"].trials] == [0, 1, 2, 3, 4]
    assert stable_bytes(grown) == stable_bytes(run_versioned(tmp_path / "at once", trials_per_task=5, seed=1))


@pytest.mark.parametrize("pool", [False, 2])
def test_retry_errors_runs_exactly_what_was_not_graded(
    pool: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the process-class task one trial is not graded; of the other one is graded with 0.

    The same run again runs nothing, and says what would run that one.
    """
    broken = tmp_path / "broken"
    broken.touch()

    def policy(lab: Any, prompt: str) -> Any:
        with (tmp_path / "executions").open("a") as file:
            file.write(f"{prompt}\n")
        if prompt == "task p" and broken.exists():
            broken.unlink()
            raise RuntimeError("broken")
        return 0 if prompt == "task zero" else 1

    options = {"trials_per_task": 2, "session_id": "s", "worker_pool": pool}
    tasks = benches(p="process", zero="thread")
    first = bench(tasks, policy, tmp_path, **options)
    assert first.coverage.not_graded == {"agent": 1}
    assert _hints(caplog) == []
    assert bench(tasks, policy, tmp_path, **options).coverage.not_graded == {"agent": 1}
    assert executions(tmp_path) == 4
    assert _hints(caplog) == [
        "session 's' has a record of every trial, and nothing was run; 1 of them was not graded: "
        "retry_errors=True (--retry-errors) runs that one again"
    ]
    caplog.clear()
    again = bench(tasks, policy, tmp_path, retry_errors=True, **options)
    assert executions(tmp_path) == 5
    assert again.coverage.complete
    assert again.task_results["p"].scores == [1, 1]
    assert bench(tasks, policy, tmp_path, **options).coverage.complete
    assert _hints(caplog) == []


def _hints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "retry_errors" in record.message]


def test_retried_errors_use_the_pool_as_far_as_they_can(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    def policy(lab: Any, prompt: str) -> Any:
        if broken.exists():
            raise RuntimeError("broken")
        lab.call("meet", folder=str(tmp_path / "place"), guests=2)
        return 1

    options = {"session_id": "s", "worker_pool": True, "max_concurrency": 2}
    bench(benches(a="process", b="process"), policy, tmp_path, **options)
    broken.unlink()
    again = bench(benches(a="process", b="process"), policy, tmp_path, retry_errors=True, **options)
    assert again.average_score() == 1


# ---- chains ----


@pytest.mark.parametrize("pool", [False, 1])
def test_outputs_of_recorded_parents_reach_dependents_after_a_resume(pool: Any, tmp_path: Path) -> None:
    """The first run breaks ``left`` and so ``end``; the second one runs these two, and nothing else."""
    broken = tmp_path / "broken"
    broken.touch()
    ran: list[str] = []

    def policy(lab: Any, prompt: str) -> Any:
        ran.append(prompt.split("\n")[0])
        if ran[-1] == "add 1" and broken.exists():
            raise RuntimeError("broken")
        return solve(lab, prompt)

    options = {"session_id": "s", "worker_pool": pool, "seed": 1}
    first = bench(build_diamond("process"), policy, tmp_path, **options)
    assert first.coverage.not_graded == {"agent": 1, "not_run": 1}
    ran.clear()
    broken.unlink()
    again = bench(build_diamond("process"), policy, tmp_path, retry_errors=True, **options)
    assert ran == ["add 1", "sum"]
    assert again.average_score() == 1
    whole = bench(build_diamond("process"), policy, tmp_path / "whole", **options)
    assert stable_bytes(again) == stable_bytes(whole)


# ---- stopped runs ----


@pytest.mark.anyio
@pytest.mark.parametrize("pool", [False, 2])
async def test_a_cancelled_run_keeps_what_was_finished_and_leaves_no_process(pool: Any, tmp_path: Path) -> None:
    """Two trials finish; two more are in the middle of a tool call that never returns when the run is cancelled."""
    stuck = anyio.Event()
    count = 0

    async def policy(lab: Any, prompt: str) -> Any:
        nonlocal count
        if prompt in ("task a", "task b"):
            return 1
        count += 1
        if count == 2:
            stuck.set()
        if blocking:
            await lab.call("python", code="import threading; threading.Event().wait(50)")
        return 1

    blocking = True
    tasks = benches(a="process", b="thread", c="process", d="thread")
    hiring = runner(tasks, policy, tmp_path)
    options = {"session_id": "s", "max_concurrency": 4, "worker_pool": pool}
    children = psutil.Process().children(recursive=True)
    recorded_keys: list[str] = []
    with anyio.move_on_after(30) as scope:
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                await stuck.wait()
                while len(recorded_keys) < 2:
                    await anyio.sleep(0.01)
                scope.cancel()

            group.start_soon(stop)
            await hiring.abench(progress=lambda event: recorded_keys.append(event["task_id"]), **options)
    assert scope.cancelled_caught
    assert sorted(recorded_keys) == ["a", "b"]
    assert psutil.Process().children(recursive=True) == children
    blocking = False
    result = await hiring.abench(**options)
    assert result.average_score() == 1
    assert count == 4


def test_two_runs_of_one_session_at_once(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(JournalError, match="is in use by a run of this very process"):
            bench(benches(a="thread"), answer, tmp_path, session_id="s")
        return 1

    assert bench(benches(a="thread"), policy, tmp_path, session_id="s").average_score() == 1


def test_an_agent_beside_a_factory_labels_the_run(tmp_path: Path) -> None:
    def run(label: str) -> BenchmarkResult:
        def hire(context: TrialContext) -> ScriptedAgent:
            return ScriptedAgent(answer, model="whatever")

        label_only = ScriptedAgent(answer, model=label)
        hiring = CorralRunner(benches(a="thread"), label_only, agent_factory=hire, checkpoint_dir=tmp_path)
        return hiring.bench(session_id="s", max_concurrency=2)

    run("one")
    with pytest.raises(SessionMismatch, match="model was 'one' and is 'two' now"):
        run("two")
