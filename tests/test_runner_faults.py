"""What goes wrong in a trial ends in one record that says what it was: in-process and on a pool alike."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from corral import BenchmarkResult, CorralRunner, Environment, TrialContext, tool
from corral.agents import AgentRunResult, BaseAgent, ScriptedAgent, ToolFailed
from corral.errors import FailureKind, InfrastructureError, JournalError, ProtocolError, TrialError
from corral.jobs import Jobs
from corral.journal import Journal
from corral.report import stable_bytes
from tests.support.benches import Bench, Mode, bench, benches, code, runner, sole
from tests.support.pool_waiting import lives

POOL = {"worker_pool": 1}
WHERE = pytest.mark.parametrize(
    ("mode", "options"), [("thread", {}), ("process", {}), ("process", POOL)], ids=["thread", "process", "pool"]
)
APART = pytest.mark.parametrize(("mode", "options"), [("thread", {}), ("process", POOL)], ids=["thread", "pool"])
"""For what takes its time: in-process, the class makes no difference to it."""

Options = dict[str, Any]


def answer(lab: Any, prompt: str) -> Any:
    return 1


def executions(folder: Path) -> list[str]:
    return (folder / "executions").read_text().splitlines()


def counting(folder: Path, lines: str = "") -> str:
    """Lines for a Bench that leave a mark of each execution first."""
    return f"open({str(folder / 'executions')!r}, 'a').write(f'{{env.state.trial_id}}\\n')\n{lines}"


KILL = "import os, signal\nprint('last words', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"


# ---- a trial process that dies ----


def test_a_killed_trial_is_attempted_again_and_the_others_are_not_charged(tmp_path: Path) -> None:
    once = f"""
import pathlib
mark = pathlib.Path({str(tmp_path / "killed")!r})
if env.state.trial_id == "b#1" and not mark.exists():
    mark.touch()
"""
    lines = counting(tmp_path, once + "".join(f"    {line}\n" for line in KILL.splitlines()))
    limits = {"max_concurrency": 4, "max_concurrency_per_task": 3, "worker_pool": 2}
    result = bench(benches(a="process", b="process"), code(lines), tmp_path, trials_per_task=3, **limits)
    assert {trial.trial_id: len(trial.attempts) for trial in result.trials} == {
        "a#0": 1, "a#1": 1, "a#2": 1, "b#0": 1, "b#1": 2, "b#2": 1,
    }  # fmt: skip
    assert sorted(executions(tmp_path)) == ["a#0", "a#1", "a#2", "b#0", "b#1", "b#1", "b#2"]
    assert result.coverage.complete
    first, second = list(result.trials)[4].attempts
    assert (first.failure, first.exit_status, first.phase) == ("worker_died", -signal.SIGKILL, "tool python")
    assert "was killed by signal 9 (SIGKILL) during tool python" in str(first.message)
    assert "last words" in first.output
    assert first.worker is not None
    assert second.worker is not None
    assert first.worker.trial_pid != second.worker.trial_pid
    assert second.failure is None
    assert result.pool.restarts == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (1, 2), (3, 4)])
def test_a_trial_that_keeps_killing_its_process_ends_after_its_retries(
    retries: int, attempts: int, tmp_path: Path
) -> None:
    result = bench(benches(a="process"), code(counting(tmp_path, KILL)), tmp_path, retries=retries, **POOL)
    trial = sole(result)
    assert executions(tmp_path) == ["a#0"] * attempts
    assert [attempt.number for attempt in trial.attempts] == list(range(1, attempts + 1))
    assert {attempt.exit_status for attempt in trial.attempts} == {-9}
    assert (trial.failure, trial.graded, trial.score) == (FailureKind.WORKER_DIED, False, 0)
    assert result.coverage.not_graded == {"worker_died": 1}


def test_evidence_of_a_lost_attempt(tmp_path: Path) -> None:
    lines = "import os\nbytearray(30_000_000)\nprint('stdout', flush=True)\nos.write(2, b'stderr')\nos._exit(3)"
    trial = sole(bench(benches(a="process"), code(lines), tmp_path, retries=0, **POOL))
    (attempt,) = trial.attempts
    assert (attempt.exit_status, attempt.phase) == (3, "tool python")
    assert "stdout" in attempt.output
    assert "stderr" in attempt.output
    assert attempt.peak_rss is not None
    assert attempt.peak_rss > 30_000_000
    assert attempt.cpu_seconds is not None
    assert attempt.worker is not None
    assert attempt.worker.slot == 0
    assert not lives(attempt.worker.pid)
    assert attempt.worker.pid != os.getpid()
    assert attempt.worker == trial.worker


def test_the_calls_before_a_death_stay_in_the_record(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        lab.call("python", code="result = 6 * 7")
        lab.call("python", code=KILL)

    trial = sole(bench(benches(a="process"), policy, tmp_path, retries=0, **POOL))
    (call,) = trial.state["tool_calls"]
    assert (call["tool"], call["result"], call["success"]) == ("python", 42, True)
    assert trial.tool_statistics == {"python": {"calls": 1, "errors": 0}}


Ending = Callable[[], Any]


def give_up() -> Any:
    return AgentRunResult(None, "sdk_failure", "a tool broke")


def run_out() -> Any:
    return AgentRunResult(None, "max_iterations")


def surrender() -> Any:
    return AgentRunResult(None, "surrender")


@pytest.mark.parametrize("ending", [lambda: 1, give_up, run_out, surrender], ids=["answer", "error", "budget", "flee"])
def test_an_agent_that_swallows_the_death_of_its_worker_cannot_end_in_another_way(
    ending: Ending, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(TrialError):
            lab.call("python", code=counting(tmp_path, KILL))
        with pytest.raises(TrialError, match="SIGKILL"):
            lab.call("python", code="result = 1")
        return ending()

    trial = sole(bench(benches(a="process"), policy, tmp_path, **POOL))
    assert executions(tmp_path) == ["a#0", "a#0"]
    assert (trial.failure, trial.score, trial.graded) == ("worker_died", 0, False)


def test_nor_can_one_that_thinks_on_until_the_trial_s_limit(tmp_path: Path) -> None:
    async def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(TrialError):
            await lab.call("python", code=KILL)
        await anyio.sleep_forever()

    trial = sole(bench(benches(a="process"), policy, tmp_path, retries=0, trial_timeout=1, **POOL))
    assert trial.failure == "worker_died"


def test_a_trial_that_removes_the_temporary_folder_costs_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its worker then killed as well, so that there has to be a place for a new one."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    remove = f"""
import os, shutil, signal
if env.state.trial_id in ("a#1", "b#1"):
    for left in os.listdir({str(scratch)!r}):
        shutil.rmtree(os.path.join({str(scratch)!r}, left))
if env.state.trial_id == "b#1":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
result = 1
"""
    result = bench(
        benches(a="process", b="process"), code(remove), tmp_path, trials_per_task=4, retries=0, worker_pool=1
    )
    failed = {trial.trial_id: trial.failure for trial in result.trials if trial.failure}
    assert failed == {"b#1": "worker_died"}
    assert list(scratch.iterdir()) == []


# ---- agents ----


@WHERE
def test_an_agent_that_raises(mode: Mode, options: Options, tmp_path: Path) -> None:
    def lose(lab: Any, prompt: str) -> NoReturn:
        raise KeyError("lost")

    trial = sole(bench(benches(a=mode), lose, tmp_path, **options))
    (attempt,) = trial.attempts
    assert (trial.failure, trial.graded) == ("agent", False)
    assert trial.error_message == "the agent raised: KeyError: 'lost'"
    assert "in lose" in attempt.traceback


@pytest.mark.parametrize("on_loop", [False, True], ids=["thread", "loop"])
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), ValueError(lambda: 0)],
    ids=lambda e: type(e).__name__,
)
def test_whatever_an_agent_raises_concerns_its_own_trial_only(
    error: BaseException, on_loop: bool, tmp_path: Path
) -> None:
    if on_loop and isinstance(error, KeyboardInterrupt | GeneratorExit):
        pytest.skip("on the loop these are the loop's own")

    class Leaver(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            if task_id == "a":
                raise error
            return 1

    class AsyncLeaver(BaseAgent):
        async def arun(self, interface: Any, task_id: str, **_: Any) -> Any:
            if task_id == "a":
                raise error
            return 1

    kind = AsyncLeaver if on_loop else Leaver
    tasks = benches(a="thread", b="thread")
    result = CorralRunner(tasks, agent_factory=lambda c: kind(), checkpoint_dir=tmp_path).bench(max_concurrency=2)
    first, second = result.trials
    assert (first.failure, second.score) == ("agent", 1)
    assert type(error).__name__ in str(first.error_message)


def test_a_cancellation_that_an_agent_makes_itself_is_its_own_failure(tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        raise asyncio.CancelledError

    async def on_loop(lab: Any, prompt: str) -> Any:
        raise asyncio.CancelledError

    for number, each in enumerate((policy, on_loop)):
        trial = sole(bench(benches(a="thread"), each, tmp_path / str(number)))
        assert trial.failure == "agent"
        assert "CancelledError" in str(trial.error_message)


ESCAPES: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("g", [KeyboardInterrupt()]),
}


class Escaping(Bench):
    """Raises ``error`` in one ``place``, and in the tasks called "a" only."""

    def __init__(self, task_id: str, mode: Mode, place: str, error: str) -> None:
        super().__init__(task_id, mode)
        self.place, self.error = place, error

    def escape(self, place: str) -> None:
        if (self.task_id, self.place) == ("a", place):
            raise ESCAPES[self.error]()

    def attach_jobs(self, jobs: Jobs) -> None:
        self.escape("jobs")
        super().attach_jobs(jobs)

    def get_task_prompt(self) -> str:
        self.escape("prompt")
        return "prompt"

    def hidden_arguments(self) -> dict[str, Any]:
        self.escape("hidden")
        return {"secret": 1}

    def configure_additional_apps(self) -> str:
        self.escape("configure")
        return ""

    @tool(hidden=("secret",))
    def work(self, secret: int) -> None:
        """Work."""
        self.escape("tool")

    def score(self) -> float:
        self.escape("score")
        return super().score()

    def close(self) -> None:
        self.escape("close")


@pytest.mark.parametrize("error", ESCAPES)
@pytest.mark.parametrize(
    ("place", "failure"),
    [
        ("jobs", "env_start"),
        ("prompt", "env_start"),
        ("hidden", None),
        ("configure", "env_start"),
        ("tool", None),
        ("score", "scoring"),
        ("close", None),
    ],
)
@WHERE
def test_what_is_no_exception_concerns_its_own_trial_only_too(
    mode: Mode, options: Options, place: str, failure: str | None, error: str, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with contextlib.suppress(ToolFailed):
            lab.call("work")
        return 1

    def build() -> dict[str, Environment]:
        return {task_id: Escaping(task_id, mode, place, error) for task_id in "ab"}

    first, second = bench(build, policy, tmp_path, **options).trials
    assert (first.failure, second.failure, second.score) == (failure, None, 1)
    said = [first.error_message, *first.warnings, *(call["error"] for call in first.state.get("tool_calls", ()))]
    assert any(error in str(text) for text in said)


@pytest.mark.parametrize("error", ESCAPES)
def test_nor_does_what_a_factory_of_agents_raises(error: str, tmp_path: Path) -> None:
    def hire(context: TrialContext) -> Any:
        if context.task_id == "a":
            raise ESCAPES[error]()
        return ScriptedAgent(answer)

    runner = CorralRunner(benches(a="thread", b="thread"), agent_factory=hire, checkpoint_dir=tmp_path)
    first, second = runner.bench(retries=0).trials
    assert (first.failure, second.score) == ("agent", 1)
    assert str(first.error_message).startswith(f"the agent factory failed: {error}")


class Throttled(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("gone"), Throttled(429), Throttled(503), Throttled(402), InfrastructureError("quota")],
    ids=repr,
)
def test_what_an_agent_depends_on_is_given_a_second_chance(error: Exception, tmp_path: Path) -> None:
    calls: list[str] = []

    def policy(lab: Any, prompt: str) -> Any:
        calls.append(prompt)
        if len(calls) == 1:
            try:
                raise error
            except Exception as cause:
                raise RuntimeError("the model cannot be reached") from cause
        return 1

    def bare(lab: Any, prompt: str) -> NoReturn:
        raise error

    if not isinstance(error, InfrastructureError):
        trial = sole(bench(benches(a="thread"), policy, tmp_path / "once"))
        assert ([a.failure for a in trial.attempts], trial.score) == (["infrastructure", None], 1)
    trial = sole(bench(benches(a="thread"), bare, tmp_path / "always"))
    assert [attempt.failure for attempt in trial.attempts] == ["infrastructure"] * 2
    assert (trial.failure, trial.graded) == ("infrastructure", False)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_request_that_is_refused_for_good_is_the_agent_s_own_failure(status: int, tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> NoReturn:
        raise Throttled(status)

    trial = sole(bench(benches(a="thread"), policy, tmp_path))
    assert (trial.failure, len(trial.attempts)) == ("agent", 1)


@WHERE
@pytest.mark.parametrize("status", ["max_iterations", "timeout"])
def test_no_answer_within_the_budget_is_graded_with_0(
    status: str, mode: Mode, options: Options, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        lab.call("python", code="result = 1")
        return AgentRunResult("never submitted", status, token_usage={"input": 3}, messages=[{"role": "user"}])

    trial = sole(bench(benches(a=mode), policy, tmp_path, **options))
    assert (trial.score, trial.graded, trial.failure, trial.agent_status) == (0, True, None, status)
    assert not trial.success
    assert trial.error_message == "the agent gave no answer"
    assert (trial.token_usage, trial.messages) == ({"input": 3}, [{"role": "user"}])
    assert trial.state["submitted_answer"] is None
    assert [call["tool"] for call in trial.state["tool_calls"]] == ["python"]


def test_an_agent_that_could_not_work_is_not_graded(tmp_path: Path) -> None:
    trial = sole(bench(benches(a="thread"), lambda lab, prompt: give_up(), tmp_path))
    assert (trial.failure, trial.graded, trial.agent_status) == ("agent", False, "sdk_failure")
    assert trial.error_message == "the agent ended as 'sdk_failure': a tool broke"


@WHERE
def test_surrender(mode: Mode, options: Options, tmp_path: Path) -> None:
    class Coward(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            self.surrender("too hard")

    hiring = CorralRunner(benches(a=mode), agent_factory=lambda c: Coward(), checkpoint_dir=tmp_path)
    trial = sole(hiring.bench(**options))
    assert (trial.surrendered, trial.graded, trial.score, trial.success) == (True, True, 0, False)
    assert (trial.failure, trial.error_message, trial.agent_status) == (None, None, "surrender")
    assert trial.state["surrendered"] is True


@WHERE
@pytest.mark.parametrize(("given", "score"), [("", 0.5), ([], 0.5), (0, 0.0), (None, 0.0)])
def test_empty_answers_are_graded_and_none_is_none(
    given: Any, score: float, mode: Mode, options: Options, tmp_path: Path
) -> None:
    trial = sole(bench(benches(a=mode), lambda lab, prompt: given, tmp_path, **options))
    assert (trial.score, trial.graded, trial.failure) == (score, True, None)
    assert trial.state["is_attempted"] is (given is not None)


@WHERE
def test_an_answer_that_is_no_data_is_graded_with_0(mode: Mode, options: Options, tmp_path: Path) -> None:
    trial = sole(bench(benches(a=mode), lambda lab, prompt: threading.Lock(), tmp_path, **options))
    assert (trial.failure, trial.graded, trial.score) == ("submission", True, 0)
    assert "lock" in str(trial.error_message)


@WHERE
def test_a_call_with_arguments_that_are_no_data_fails_and_the_trial_goes_on(
    mode: Mode, options: Options, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(
            ToolFailed, match=r"SerializationError: the call of tool 'python' gave a value of type _thread.lock"
        ):
            lab.call("python", code=threading.Lock())
        return 1

    trial = sole(bench(benches(a=mode), policy, tmp_path, **options))
    assert (trial.score, trial.failure) == (1, None)


@WHERE
def test_an_agent_that_submits_by_itself(mode: Mode, options: Options, tmp_path: Path) -> None:
    class Hasty(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            return interface.submit_answer(task_id, 0.75).score * 100

    hiring = CorralRunner(benches(a=mode), agent_factory=lambda c: Hasty(), checkpoint_dir=tmp_path)
    trial = sole(hiring.bench(**options))
    assert (trial.score, trial.failure, trial.error_message) == (0.75, None, None)
    assert trial.state["submitted_answer"] == 0.75


@WHERE
def test_an_agent_that_makes_many_calls_at_once(mode: Mode, options: Options, tmp_path: Path) -> None:
    class Many(BaseAgent):
        async def arun(self, interface: Any, task_id: str, **_: Any) -> Any:
            results: list[int] = []

            async def call(number: int) -> None:
                response = await interface.execute_tool(task_id, "python", {"code": f"result = {number} ** 2"})
                results.append(response.result)

            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(call, number)
            return float(sorted(results) == [number**2 for number in range(20)])

    hiring = CorralRunner(benches(a=mode), agent_factory=lambda c: Many(), checkpoint_dir=tmp_path)
    trial = sole(hiring.bench(**options))
    assert (trial.score, trial.error_message) == (1, None)


@pytest.mark.parametrize("error", [ValueError("no model"), SystemExit(1)])
def test_a_factory_that_raises(error: BaseException, tmp_path: Path) -> None:
    def hire(context: TrialContext) -> ScriptedAgent:
        if context.task_id == "a":
            raise error
        return ScriptedAgent(answer)

    hiring = CorralRunner(benches(b="thread", a="thread"), agent_factory=hire, checkpoint_dir=tmp_path)
    good, bad = hiring.bench().trials
    assert (good.score, bad.failure) == (1, "agent")
    assert f"the agent factory failed: {type(error).__name__}" in str(bad.error_message)


def test_a_factory_that_gives_no_agent(tmp_path: Path) -> None:
    hiring = CorralRunner(benches(a="thread"), agent_factory=lambda c: "gpt", checkpoint_dir=tmp_path)
    assert "gave 'gpt', which is no agent" in str(sole(hiring.bench()).error_message)


# ---- environments ----


class Faulty(Bench):
    """Fails where its task's id says."""

    def __init__(self, task_id: str, mode: Mode) -> None:
        super().__init__(task_id, mode)
        if task_id == "constructor":
            self.handle = threading.Lock()  # so that a copy of the first instance is no way out
            if self.seed:
                raise LookupError("no data")

    def get_task_prompt(self) -> str:
        if self.task_id == "prompt":
            raise LookupError("no data")
        return super().get_task_prompt()

    def configure_additional_apps(self) -> str:
        if self.task_id == "configure":
            raise LookupError("no data")
        if self.task_id == "configure-kills":
            os.kill(os.getpid(), signal.SIGKILL)
        return "ready"

    @tool
    def leave(self) -> int:
        """Leave."""
        raise SystemExit(4)

    @tool
    def lock(self) -> Any:
        """Give something that is no data."""
        return threading.Lock()

    def score(self) -> float:
        if self.task_id == "score":
            raise LookupError("no data")
        if self.task_id == "score-nan":
            return float("nan")
        if self.task_id == "score-text":
            return "good"  # type: ignore[return-value]
        if self.task_id == "score-exits":
            raise SystemExit(2)
        return 1.0

    def close(self) -> None:
        if self.task_id == "close":
            raise LookupError("no data")


def faulty(task_id: str, mode: Mode) -> Callable[[], dict[str, Environment]]:
    return lambda: {task_id: Faulty(task_id, mode)}


@WHERE
@pytest.mark.parametrize(
    ("where", "kind", "attempts", "says"),
    [
        ("constructor", "env_start", 2, "LookupError: no data"),
        ("configure", "env_start", 2, "configure_additional_apps of task 'configure' failed: LookupError: no data"),
        ("prompt", "env_start", 2, "get_task_prompt of task 'prompt' failed: LookupError: no data"),
        ("score", "scoring", 1, "the scorer of task 'score' failed: LookupError: no data"),
        ("score-nan", "scoring", 1, "gave nan"),
        ("score-text", "scoring", 1, "gave 'good' (str), which is no finite number"),
        ("score-exits", "scoring", 1, "SystemExit: 2"),
    ],
)
def test_environments_that_fail(
    where: str, kind: str, attempts: int, says: str, mode: Mode, options: Options, tmp_path: Path
) -> None:
    trial = sole(bench(faulty(where, mode), answer, tmp_path, **options))
    assert (trial.failure, trial.graded, len(trial.attempts)) == (kind, False, attempts)
    assert says in str(trial.error_message)
    assert "_" in str(trial.attempts[-1].traceback) or where in ("score-nan", "score-text")


@WHERE
@pytest.mark.parametrize(
    ("which", "kind", "says"),
    [("leave", "tool", "requested to exit with code 4"), ("lock", "serialization", "_thread.lock")],
)
def test_tools_that_break_the_trial(
    which: str, kind: str, says: str, mode: Mode, options: Options, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(TrialError):
            lab.call(which)
        return 1

    trial = sole(bench(faulty("a", mode), policy, tmp_path, **options))
    assert (trial.failure, trial.graded, len(trial.attempts)) == (kind, False, 1)
    assert says in str(trial.error_message)
    assert trial.attempts[0].phase == f"tool {which}"


@WHERE
def test_a_tool_that_raises_is_a_failed_call_and_the_trial_goes_on(
    mode: Mode, options: Options, tmp_path: Path
) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(ToolFailed, match="ZeroDivisionError: division by zero"):
            lab.call("python", code="1 / 0")
        with pytest.raises(ToolFailed, match="there is no tool 'saw'"):
            lab.call("saw")
        with pytest.raises(ToolFailed):
            lab.call("python", codes=1)
        return 1

    trial = sole(bench(benches(a=mode), policy, tmp_path, **options))
    assert (trial.score, trial.failure) == (1, None)
    assert trial.tool_statistics["python"] == {"calls": 2, "errors": 2}


@WHERE
def test_a_close_that_raises_costs_nothing_but_a_warning(mode: Mode, options: Options, tmp_path: Path) -> None:
    trial = sole(bench(faulty("close", mode), answer, tmp_path, **options))
    assert (trial.score, trial.graded, trial.failure) == (1, True, None)
    assert trial.warnings == ("close of task 'close' failed: LookupError: no data",)


class SlowToClose(Bench):
    def close(self) -> None:
        threading.Event().wait(20)


@WHERE
def test_a_close_that_hangs_costs_nothing_but_a_warning(mode: Mode, options: Options, tmp_path: Path) -> None:
    began = time.monotonic()
    trial = sole(bench(lambda: {"a": SlowToClose("a", mode)}, answer, tmp_path, close_timeout=0.5, **options))
    assert time.monotonic() - began < 15
    assert (trial.score, trial.graded, trial.failure) == (1, True, None)
    assert "close did not end within" in trial.warnings[0]


def test_a_death_while_configuring_and_while_setting_up(tmp_path: Path) -> None:
    trial = sole(bench(faulty("configure-kills", "process"), answer, tmp_path / "1", retries=0, **POOL))
    assert (trial.failure, trial.attempts[0].phase, trial.attempts[0].exit_status) == ("worker_died", "configure", -9)

    def build() -> dict[str, Environment]:
        from corral import TaskDefinition, build_environments

        def set_up(env: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        task = TaskDefinition("a", "x", [], lambda answer: 1.0, "text", setup_fn=set_up)
        return build_environments([task], concurrency="process")

    trial = sole(bench(build, answer, tmp_path / "2", **POOL))
    assert [(a.failure, a.phase, a.exit_status) for a in trial.attempts] == [("worker_died", "set-up", -9)] * 2
    assert trial.worker is not None
    assert trial.worker.trial_pid is not None


def test_a_builder_that_fails_ends_the_run(tmp_path: Path) -> None:
    from corral.errors import EnvStartError

    def build() -> NoReturn:
        raise ImportError("no chemistry")

    for options in ({}, POOL):
        with pytest.raises(EnvStartError, match="ImportError: no chemistry"):
            bench(build, answer, tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_environments_are_built_once_in_process_however_many_ask(tmp_path: Path) -> None:
    built = tmp_path / "built"

    def build() -> dict[str, Environment]:
        with built.open("a") as file:
            file.write(f"{os.getpid()}\n")
        threading.Event().wait(0.1)
        return {"t": Bench("t")}

    result = bench(build, answer, tmp_path, trials_per_task=8, max_concurrency=8, max_concurrency_per_task=8, **POOL)
    assert result.average_score() == 1
    pids = built.read_text().split()
    assert len(pids) == len(set(pids)) == 2
    assert str(os.getpid()) in pids


# ---- time limits ----

HANG = "import threading\nthreading.Event().wait(30)"
HOLD_THE_GIL = "import re\nre.match(r'(a+)+$', 'a' * 64 + 'b')"


def timed(began: float, limit: float) -> None:
    """The record comes soon after the limit: well before the 10 s that a patient close would take."""
    assert limit * 0.9 <= time.monotonic() - began < limit + 6


@APART
def test_a_tool_call_has_a_limit(mode: Mode, options: Options, tmp_path: Path) -> None:
    began = time.monotonic()
    trial = sole(bench(benches(a=mode), code(HANG), tmp_path, tool_timeout=0.7, **options))
    timed(began, 0.7)
    assert (trial.failure, trial.graded, len(trial.attempts)) == ("tool_timeout", False, 1)
    assert trial.error_message == "tool python did not end within its limit of 0.7 s"
    assert trial.attempts[0].phase == "tool python"


@APART
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_trial_has_a_limit(on_loop: bool, mode: Mode, options: Options, tmp_path: Path) -> None:
    async def policy(lab: Any, prompt: str) -> Any:
        await lab.call("python", code=HANG)

    began = time.monotonic()
    used = policy if on_loop else code(HANG)
    trial = sole(bench(benches(a=mode), used, tmp_path, trial_timeout=0.8, **options))
    timed(began, 0.8)
    assert (trial.failure, trial.graded, trial.score, len(trial.attempts)) == ("trial_timeout", True, 0, 1)
    assert trial.error_message == "the trial did not end within its limit of 0.8 s"
    assert trial.attempts[0].phase == "tool python"
    assert trial.duration < 5


@APART
def test_an_agent_that_only_thinks_has_the_trial_s_limit_too(mode: Mode, options: Options, tmp_path: Path) -> None:
    def policy(lab: Any, prompt: str) -> Any:
        threading.Event().wait(30)

    began = time.monotonic()
    trial = sole(bench(benches(a=mode), policy, tmp_path, trial_timeout=0.8, **options))
    timed(began, 0.8)
    assert (trial.failure, trial.graded) == ("trial_timeout", True)


def test_a_tool_that_holds_the_interpreter_is_ended_all_the_same(tmp_path: Path) -> None:
    """The others, on the same slot, come next and are not touched."""
    began = time.monotonic()

    def policy(lab: Any, prompt: str) -> Any:
        lab.call("python", code=HOLD_THE_GIL if prompt == "task a" else "result = 1")
        return 1

    options = {"max_concurrency": 2, "trial_timeout": 1.0, **POOL}
    result = bench(benches(a="process", b="process"), policy, tmp_path, **options)
    timed(began, 1.0)
    first, second = result.trials
    assert (first.failure, second.score, second.failure) == ("trial_timeout", 1, None)
    assert "most recent call first" in first.attempts[0].output
    assert first.attempts[0].peak_rss is not None


class SlowToConfigure(Bench):
    def configure_additional_apps(self) -> str:
        threading.Event().wait(30)
        return "ready"


@APART
def test_configuring_has_a_limit(mode: Mode, options: Options, tmp_path: Path) -> None:
    began = time.monotonic()
    result = bench(lambda: {"a": SlowToConfigure("a", mode)}, answer, tmp_path, configure_timeout=0.7, **options)
    timed(began, 0.7)
    trial = sole(result)
    assert (trial.failure, trial.graded, trial.attempts[0].phase) == ("configure_timeout", False, "configure")


class SlowToStart(Bench):
    def __init__(self, task_id: str, mode: Mode) -> None:
        super().__init__(task_id, mode)
        if self.seed:
            threading.Event().wait(30)


@APART
def test_a_constructor_that_hangs_is_ended_by_the_trial_s_limit(mode: Mode, options: Options, tmp_path: Path) -> None:
    began = time.monotonic()
    hung = {"trial_timeout": 0.7, "retries": 0, **options}
    trial = sole(bench(lambda: {"a": SlowToStart("a", mode)}, answer, tmp_path, **hung))
    timed(began, 0.7)
    assert (trial.failure, trial.graded, trial.attempts[0].phase) == ("env_start", False, "set-up")


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_late_answer_never_lands_in_the_next_trial(mode: Mode, tmp_path: Path) -> None:
    """The first trial's agent goes on after its time and tries to act; the second trial sees nothing of it."""
    second_has_begun, first_has_ended = threading.Event(), threading.Event()
    late: list[str] = []

    class Late(BaseAgent):
        def run(self, interface: Any, task_id: str, **_: Any) -> Any:
            if task_id == "a":
                second_has_begun.wait(20)
                try:
                    interface.execute_tool(task_id, "python", {"code": "env.state.feedback = 'late'"})
                    interface.submit_answer(task_id, 1)
                except LookupError as error:
                    late.append(str(error))
                first_has_ended.set()
                return 1
            second_has_begun.set()
            first_has_ended.wait(20)
            return 0.25

    hiring = CorralRunner(benches(a=mode, b=mode), agent_factory=lambda c: Late(), checkpoint_dir=tmp_path)
    first, second = hiring.bench(trial_timeout=0.7).trials
    assert first.failure == "trial_timeout"
    assert (second.score, second.state["tool_calls"]) == (0.25, [])
    assert len(late) == 1
    assert "trial" in late[0]


# ---- the same record everywhere ----


def test_failures_are_the_same_with_and_without_a_pool_but_for_where_they_were(tmp_path: Path) -> None:
    def run(name: str, **options: Any) -> BenchmarkResult:
        def policy(lab: Any, prompt: str) -> Any:
            lab.call("leave")

        return bench(faulty("a", "process"), policy, tmp_path / name, seed=1, **options)

    assert stable_bytes(run("in-process")) == stable_bytes(run("pool", **POOL))


def test_progress_is_told_of_every_record_and_may_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def progress(event: dict[str, Any]) -> None:
        seen.append(event["task_id"])
        raise RuntimeError("no screen")

    result = runner(benches(a="thread", b="thread"), answer, tmp_path).bench(progress=progress)
    assert (seen, result.average_score()) == (["a", "b"], 1)
    assert "the run goes on" in caplog.text


@WHERE
@pytest.mark.parametrize("calls", [0, 1])
def test_an_agent_s_own_failure_is_the_agent_s_phase(mode: Mode, options: Options, calls: int, tmp_path: Path) -> None:
    """Whatever call of its went by before: a tool that was answered has nothing to do with it."""

    def policy(lab: Any, prompt: str) -> NoReturn:
        for _ in range(calls):
            lab.call("python", code="result = 1")
        raise LookupError("mine")

    (attempt,) = sole(bench(benches(a=mode), policy, tmp_path, **options)).attempts
    assert (attempt.failure, attempt.phase) == ("agent", "agent")


class Silent(BaseAgent):
    """Gives nothing."""

    def run(self, interface: Any, task_id: str, **_: Any) -> None:
        return None


def test_an_agent_that_gives_nothing_has_given_no_answer(tmp_path: Path) -> None:
    made = CorralRunner(benches(a="thread"), agent_factory=lambda context: Silent(), checkpoint_dir=tmp_path)
    (trial,) = made.bench(progress=False).trials
    assert (trial.graded, trial.score, trial.agent_status) == (True, 0.0, "no_answer")
    assert trial.error_message == "the agent gave no answer"


class Submitter(BaseAgent):
    """Hands in by itself, and gives nothing."""

    def run(self, interface: Any, task_id: str, **_: Any) -> None:
        interface.submit_answer(task_id, 1)


def test_an_agent_that_submitted_by_itself_has_given_an_answer(tmp_path: Path) -> None:
    made = CorralRunner(benches(a="thread"), agent_factory=lambda context: Submitter(), checkpoint_dir=tmp_path)
    (trial,) = made.bench(progress=False).trials
    assert (trial.graded, trial.score, trial.agent_status) == (True, 1.0, "success")


class Meeting(BaseAgent):
    """Ends when all have come."""

    def __init__(self, table: threading.Barrier) -> None:
        super().__init__()
        self._table = table

    def run(self, interface: Any, task_id: str, **_: Any) -> str:
        self._table.wait(30)
        return "done"


@pytest.mark.parametrize("fault", [JournalError("cannot write it: no space"), MemoryError("a page")])
def test_a_journal_that_fails_under_many_trials_is_one_error(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its class, and not in a group."""
    table = threading.Barrier(8)

    def broken(journal: Journal, lines: Any) -> None:
        raise fault

    monkeypatch.setattr(Journal, "append", broken)
    made = CorralRunner(benches(a="thread"), agent_factory=lambda context: Meeting(table), checkpoint_dir=tmp_path)
    expected = JournalError if isinstance(fault, JournalError) else ProtocolError
    with pytest.raises(expected, match=r"no space|MemoryError") as caught:
        made.bench(trials_per_task=8, max_concurrency=8, max_concurrency_per_task=8, progress=False)
    assert getattr(caught.value, "__notes__", []) == []
