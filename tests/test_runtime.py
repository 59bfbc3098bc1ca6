"""One trial driven from its start to its end, and every way in which its environment can break it."""

from __future__ import annotations

import gc
import math
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from corral.environment import Environment, build_environments
from corral.errors import (
    ConfigError,
    EnvStartError,
    NotFound,
    ScoringError,
    SerializationError,
    SubmissionError,
    ToolError,
)
from corral.runtime import TrialRuntime, describe, load
from corral.tasks import InputRef, TaskDefinition
from corral.tools import job_cancelled, tool
from corral.types import Action, TrialSpec


class NeedsTwo(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class Lab(Environment):
    """An environment whose every part can be made to break."""

    closed: ClassVar[list[str]] = []

    def __init__(self, task_id: str = "lab/1", **breaks: Any) -> None:
        super().__init__(task_id)
        self.breaks = breaks
        self._break("init")

    def _break(self, where: str) -> Any:
        value = self.breaks.get(where)
        if isinstance(value, BaseException):
            raise value
        return value

    def get_task_prompt(self) -> Any:
        return self._break("prompt") or "Weigh it."

    def configure_additional_apps(self) -> str:
        self._break("configure")
        return "scale is on"

    def score(self) -> Any:
        value = self._break("score")
        return 1.0 if value is None else value

    def close(self) -> None:
        self.closed.append(self.state.trial_id)
        self._break("close")

    @tool
    def weigh(self, sample: str, unit: Literal["g", "mg"] = "g") -> dict[str, Any]:
        """Weigh a sample.

        Args:
            sample: Which one.
        """
        return {"sample": sample, "unit": unit}

    @tool
    def fail(self, how: str) -> Any:
        """Break."""
        raise {
            "value": ValueError("too heavy"), "memory": MemoryError(), "two": NeedsTwo("one", "two"),
            "exit0": SystemExit(), "exit3": SystemExit(3), "interrupt": KeyboardInterrupt(),
            "serialization": SerializationError("the author's own"), "tool": ToolError("the author's own"),
        }[how]  # fmt: skip

    @tool
    def give(self) -> Any:
        """Give what the test wants."""
        return self.breaks.get("gives")

    @tool(hidden=("work_dir",))
    def write(self, work_dir: Path, name: str) -> str:
        """Write a file."""
        (work_dir / name).write_text("x")
        return str(work_dir)

    @tool(background=True)
    def slow(self, how: str = "ok") -> Any:
        """Take long."""
        if how == "exit":
            sys.exit(5)
        if how == "object":
            return object()
        if how == "wait":
            while not job_cancelled():
                self.breaks["tick"].wait(0.01)
        return how


def spec(**changes: Any) -> TrialSpec:
    return TrialSpec(**{"runtime_id": "tr_abc", "task_id": "lab/1", "seed": 5, **changes})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work"


def open_lab(root: Path, **breaks: Any) -> TrialRuntime:
    return TrialRuntime(Lab(**breaks), spec(), root)


@pytest.fixture
def lab(root: Path) -> Iterator[TrialRuntime]:
    runtime = open_lab(root)
    yield runtime
    runtime.close()


# The ordinary way.


def test_a_trial_from_start_to_end(root: Path) -> None:
    lab = open_lab(root)
    assert lab.workspace == root / "lab_1-0-abc"
    assert list(lab.workspace.iterdir()) == []
    assert lab.perform(Action.PROMPT) == "Weigh it."
    assert lab.perform(Action.CONFIGURE) == "scale is on"
    assert lab.perform(Action.EXECUTE, ("weigh", {"sample": "A"})).result == {"sample": "A", "unit": "g"}
    assert lab.perform(Action.EXECUTE, ("fail", {"how": "value"})).error == "ValueError: too heavy"
    assert lab.perform(Action.EXECUTE, ("write", {"name": "f"})).result == str(lab.workspace)
    assert lab.perform(Action.STATUS)["tool_calls"] == 3
    result = lab.perform(Action.SUBMIT, ("7 g",))
    assert (result.key, result.score, result.success) == (("lab/1", 0), 1.0, True)
    assert result.tool_statistics["fail"] == {"calls": 1, "errors": 1}
    assert result.state["submitted_answer"] == "7 g"
    assert result.state["trial_id"] == "lab/1#0"
    assert [call["tool"] for call in result.state["tool_calls"]] == ["weigh", "fail", "write"]
    assert lab.perform(Action.STATE)["is_attempted"] is True
    assert lab.close() == []
    assert not lab.workspace.exists()


def test_every_action_is_there(lab: TrialRuntime) -> None:
    for action in Action:
        assert callable(getattr(lab, action.value))
    with pytest.raises(ValueError, match="dance"):
        lab.perform("dance")  # type: ignore[arg-type]


def test_the_tools_and_the_guide(lab: TrialRuntime) -> None:
    names = [schema["function"]["name"] for schema in lab.tools()]
    assert names == ["weigh", "fail", "give", "write", "slow", "poll_job", "cancel_job"]
    text = lab.tools_guide()
    assert "- weigh(sample, unit?): Weigh a sample.\n    sample (string): Which one." in text
    assert 'unit (one of "g", "mg", default "g")' in text
    assert "Weigh a sample" not in lab.tools_guide("minimal")
    guide = lab.guide()
    assert guide.startswith("Weigh it.\n\nTools:\n- weigh")
    assert "Submit" in guide
    with pytest.raises(ConfigError, match="verbosity"):
        lab.tools("loud")  # type: ignore[arg-type]


def test_a_prompt_may_be_messages(root: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "user", "content": [{"type": "text", "text": "You"}]}]
    lab = open_lab(root, prompt=messages)
    assert lab.prompt() == messages
    assert lab.guide().startswith("Hello\n\nYou\n\nTools:")
    lab.close()


def test_trials_do_not_see_each_other(root: Path) -> None:
    prototype = Lab()
    one = TrialRuntime(prototype, spec(), root)
    two = TrialRuntime(prototype, spec(runtime_id="tr_b", trial_index=1, seed=6), root)
    one.env.breaks["mark"] = 1  # type: ignore[attr-defined]
    one.execute("write", {"name": "f"})
    assert two.env.breaks == {}  # type: ignore[attr-defined]
    assert list(two.workspace.iterdir()) == []
    assert two.env.state.tool_calls == []
    assert (one.env.seed, two.env.seed) == (5, 6)
    one.close()
    two.close()


def test_a_kept_workspace(root: Path, tmp_path: Path) -> None:
    prototype = Lab()
    prototype.base_work_dir = tmp_path / "kept"
    lab = TrialRuntime(prototype, spec(), root)
    lab.execute("write", {"name": "f"})
    lab.close()
    assert (tmp_path / "kept" / "lab_1-0-abc" / "f").exists()
    assert not root.exists()


# Tool calls.


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("fail", {"how": "memory"}), "MemoryError"),
        (("fail", {"how": "two"}), "NeedsTwo: one"),
        (("fail", {"how": "serialization"}), "SerializationError: the author's own"),
        (("fail", {"how": "tool"}), "ToolError: the author's own"),
        (("wiegh", {}), "UnknownTool: there is no tool 'wiegh'; the tools are weigh, fail"),
        (("weigh", {}), "InvalidArguments: weigh: argument 'sample' is missing"),
        (("weigh", {"sample": "A", "size": 1}), "unknown argument 'size'; it takes sample, unit"),
        (("weigh", [1]), "must be an object"),
        (("poll_job", {"job_id": "job-7"}), "NoSuchJob: there is no job 'job-7'"),
    ],
)
def test_a_failed_call_is_answered_and_recorded_and_the_trial_goes_on(
    lab: TrialRuntime, call: tuple[str, Any], error: str
) -> None:
    response = lab.execute(*call)
    assert not response.success
    assert error in str(response.error)
    assert lab.env.state.tool_calls[-1].error == response.error
    assert lab.execute("weigh", {"sample": "A"}).success


@pytest.mark.parametrize(("how", "code"), [("exit0", "code 0"), ("exit3", "code 3")])
def test_a_request_to_exit_breaks_the_trial_not_the_process(lab: TrialRuntime, how: str, code: str) -> None:
    with pytest.raises(ToolError, match=f"tool 'fail' of task 'lab/1' requested to exit with {code}"):
        lab.execute("fail", {"how": how})
    assert lab.env.state.tool_calls[-1].success is False


def test_an_interrupt_is_not_swallowed(lab: TrialRuntime) -> None:
    with pytest.raises(KeyboardInterrupt):
        lab.execute("fail", {"how": "interrupt"})
    assert lab.execute("weigh", {"sample": "A"}).success


@pytest.mark.parametrize("value", [object(), threading.Lock(), ValueError("returned"), ValueError, lambda: 1])
def test_a_result_that_is_no_data_names_tool_and_type(root: Path, value: Any) -> None:
    prototype = Lab()
    prototype.breaks = {"gives": value}
    lab = TrialRuntime(prototype, spec(), root)
    with pytest.raises(SerializationError, match="tool 'give' of task 'lab/1' gave a"):
        lab.execute("give")
    lab.close()


def test_arrays_and_nan_pass_and_the_record_stays_small(root: Path) -> None:
    numpy = pytest.importorskip("numpy")
    lab = open_lab(root, gives={"a": numpy.zeros((2, 2)), "n": math.nan, "s": numpy.float32(1)})
    result = lab.execute("give").result
    assert isinstance(result["a"], numpy.ndarray)
    assert math.isnan(result["n"])
    assert type(result["s"]) is float
    assert lab.state()["tool_calls"][0]["result"]["a"] == [[0.0, 0.0], [0.0, 0.0]]
    lab.close()


def test_a_scorer_sees_arrays_as_they_were_when_they_were_given(root: Path) -> None:
    numpy = pytest.importorskip("numpy")
    field = numpy.arange(2000.0)
    lab = open_lab(root, gives={"field": field})
    given = lab.execute("give").result["field"]
    field += 1  # as a solver does with its own
    assert numpy.array_equal(given, numpy.arange(2000.0))
    given[:] = 0  # as an agent may with what it was given
    (call,) = lab.env.state.tool_calls
    assert numpy.array_equal(call.result["field"], numpy.arange(2000.0))
    assert lab.state()["tool_calls"][0]["result"] == {"field": "<array float64 (2000,)>"}
    lab.close()


def test_what_arrays_take_in_a_trial_is_limited(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr("corral.runtime.ARRAY_ROOM", 40_000)
    lab = open_lab(root, gives=[numpy.zeros(2000), {"b": numpy.zeros(1)}])
    for _ in range(3):
        lab.execute("give")
    kept = [call.result[0] for call in lab.env.state.tool_calls]
    assert [type(each) for each in kept] == [numpy.ndarray, numpy.ndarray, str]
    lab.close()


def test_calls_are_serialised(root: Path) -> None:
    class Once(Lab):
        busy = False

        @tool
        def enter(self) -> int:
            assert not self.busy
            self.busy = True
            threading.Event().wait(0.002)
            self.busy = False
            return 1

    lab = TrialRuntime(Once(), spec(), root)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(lab.execute("enter").success)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 8
    lab.close()


# Background jobs.


def test_a_job_is_started_polled_and_cancelled(root: Path) -> None:
    lab = open_lab(root, tick=threading.Event())
    assert lab.execute("slow", {}).result == {"job_id": "job-1", "status": "started"}
    assert lab.execute("poll_job", {"job_id": "job-1", "wait_s": 10}).result["result"] == "ok"
    lab.execute("slow", {"how": "wait"})
    assert lab.execute("cancel_job", {"job_id": "job-2"}).result["status"] == "cancelled"
    assert lab.status()["jobs"]["cancelled"] == 1
    lab.close()


@pytest.mark.parametrize(("how", "error"), [("exit", ToolError), ("object", SerializationError)])
def test_a_job_that_breaks_the_trial_is_noticed_at_the_latest_when_it_is_scored(
    root: Path, how: str, error: type[Exception]
) -> None:
    lab = open_lab(root)
    lab.execute("slow", {"how": how})
    with pytest.raises(error):
        lab.execute("poll_job", {"job_id": "job-1", "wait_s": 10})
    with pytest.raises(error):
        lab.submit("x")
    lab.close()


def test_closing_ends_the_jobs(root: Path) -> None:
    lab = open_lab(root, tick=threading.Event())
    lab.execute("slow", {"how": "wait"})
    assert lab.close() == []
    assert not [t for t in threading.enumerate() if t.name.startswith("corral-job")]


# Start.


BREAKS = [ValueError("no scale"), SystemExit(2), NeedsTwo("no", "scale")]


@pytest.mark.parametrize("error", BREAKS)
@pytest.mark.parametrize("action", [Action.PROMPT, Action.CONFIGURE])
def test_a_phase_that_fails_names_itself_and_the_error(root: Path, action: Action, error: BaseException) -> None:
    lab = open_lab(root, **{action.value: error})
    with pytest.raises(EnvStartError, match=f"{action.value}.* of task 'lab/1' failed") as caught:
        lab.perform(action)
    assert caught.value.record is not None
    assert type(error).__name__ in caught.value.record.type
    lab.close()


@pytest.mark.parametrize("error", BREAKS)
def test_a_constructor_that_fails_for_the_trial_leaves_nothing(root: Path, error: BaseException) -> None:
    class OnlyOnce(Lab):
        made = 0

        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            OnlyOnce.made += 1
            if OnlyOnce.made > 1:
                raise error

    with pytest.raises(EnvStartError, match=r"constructor of task|no fresh OnlyOnce") as caught:
        TrialRuntime(OnlyOnce(), spec(), root)
    assert caught.value.record is not None
    assert type(error).__name__ in caught.value.record.type
    assert list(root.iterdir()) == []


def test_a_prompt_of_the_wrong_type(root: Path) -> None:
    lab = open_lab(root, prompt=42)
    with pytest.raises(EnvStartError, match="gave a int; it must give text"):
        lab.prompt()
    lab.close()


def define(**changes: Any) -> TaskDefinition:
    fields: dict[str, Any] = {
        "name": "b", "description": "Do.", "tools": [], "submission_format": "x",
        "scoring_fn": lambda answer, **more: 1.0,
    }  # fmt: skip
    return TaskDefinition(**{**fields, **changes})


def define_env(**changes: Any) -> Environment:
    return build_environments([define(**changes), define(name="a")])["b"]


def test_set_up_sees_inputs_and_workspace(root: Path) -> None:
    def set_up(env: Environment) -> None:
        (env.current_work_dir / "x").write_text(str(env.inputs["x"]))

    env = define_env(setup_fn=set_up, input_map={"x": InputRef("a", "answer.v")})
    runtime = TrialRuntime(env, spec(task_id="b", outputs={"a": {"answer": {"v": 3}, "score": 1.0}}), root)
    assert (runtime.workspace / "x").read_text() == "3"
    runtime.close()
    with pytest.raises(EnvStartError, match=r"the inputs of task 'b' failed.*no output of task 'a'"):
        TrialRuntime(env, spec(task_id="b"), root)


@pytest.mark.parametrize(
    ("task", "what"),
    [(define(name="lab/1", setup_fn=lambda env: 1 / 0), "setup_fn of task 'lab/1' failed: ZeroDivisionError"),
     (define(name="lab/1", input_map={"x": InputRef("a")}), "the inputs of task 'lab/1' failed")],
)  # fmt: skip
def test_a_set_up_that_fails_leaves_nothing_and_closes(root: Path, task: TaskDefinition, what: str) -> None:
    Lab.closed.clear()
    env = build_environments([task, define(name="a")], env_cls=Lab)["lab/1"]
    with pytest.raises(EnvStartError, match=what):
        TrialRuntime(env, spec(), root)
    assert Lab.closed == ["lab/1#0"]
    assert list(root.iterdir()) == []


def test_a_workspace_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvStartError, match="making the workspace"):
        TrialRuntime(Lab(), spec(), tmp_path / "file")


# End.


@pytest.mark.parametrize(
    ("given", "score"), [(True, 1.0), (2, 2.0), (Fraction(1, 2), 0.5), (Decimal("0.25"), 0.25), (-1.5, -1.5), (0, 0.0)]
)
def test_what_is_a_score(root: Path, given: Any, score: float) -> None:
    lab = open_lab(root, score=given)
    result = lab.submit("x").score
    assert (result, type(result)) == (score, float)
    lab.close()


def test_numpys_numbers_are_scores(root: Path) -> None:
    numpy = pytest.importorskip("numpy")
    for given in (numpy.float32(0.5), numpy.array(0.5), numpy.longdouble(0.5)):
        lab = open_lab(root, score=given)
        assert lab.submit("x").score == 0.5
        lab.close()
    lab = open_lab(root, score=numpy.array([0.5]))
    with pytest.raises(ScoringError, match="no finite number"):
        lab.submit("x")
    lab.close()


@pytest.mark.parametrize("given", [math.nan, math.inf, "1", [1], 1j, 10**400, ValueError("x"), SystemExit(0)])
def test_what_is_no_score(root: Path, given: Any) -> None:
    lab = open_lab(root, score=given)
    with pytest.raises(ScoringError, match="the scorer of task 'lab/1'") as caught:
        lab.submit("x")
    assert (caught.value.record is not None) is isinstance(given, BaseException)
    with pytest.raises(SubmissionError, match="already"):
        lab.submit("x")
    lab.close()


def test_a_trial_ends_once(lab: TrialRuntime) -> None:
    lab.submit("x")
    with pytest.raises(SubmissionError, match="lab/1#0 cannot be submitted: the answer was submitted already"):
        lab.submit("y")
    with pytest.raises(SubmissionError, match="cannot be surrendered"):
        lab.surrender()
    response = lab.execute("weigh", {"sample": "A"})
    assert response.error is not None
    assert response.error.startswith("TrialOver")
    assert lab.state()["tool_calls"] == []


def test_surrender(lab: TrialRuntime) -> None:
    result = lab.surrender()
    assert (result.score, result.surrendered, result.success) == (0.0, True, False)
    assert result.state["surrendered"] is True
    with pytest.raises(SubmissionError, match="surrendered already"):
        lab.submit("x")


@pytest.mark.parametrize("answer", ["\ud800", {"a": [1]}, None, "", 3.5, ["x"]])
def test_answers_that_are_data_are_accepted_as_they_are(lab: TrialRuntime, answer: Any) -> None:
    assert lab.submit(answer).state["submitted_answer"] == answer


@pytest.mark.parametrize("answer", [object(), ValueError, ValueError("x"), {(1, 2): 3}])
def test_an_answer_that_is_no_data_is_refused_and_the_trial_stays_open(lab: TrialRuntime, answer: Any) -> None:
    with pytest.raises(SubmissionError, match="the answer to lab/1#0 cannot be accepted"):
        lab.submit(answer)
    assert lab.submit("x").score == 1.0


@pytest.mark.parametrize(("resolve", "seen"), [(True, {"pH": 7}), (False, '{"pH": 7}')])
def test_a_json_answer_is_resolved_before_it_is_scored(root: Path, resolve: bool, seen: Any) -> None:
    answers: list[Any] = []

    def score(answer: Any) -> float:
        answers.append(answer)
        return 1.0

    env = define_env(resolve_answer=resolve, scoring_fn=score)
    runtime = TrialRuntime(env, spec(task_id="b"), root)
    assert runtime.submit('{"pH": 7}').state["submitted_answer"] == seen
    assert answers == [seen]
    runtime.close()


# Close.


@pytest.mark.parametrize("error", [ValueError("stuck"), SystemExit(1)])
def test_a_close_that_fails_is_a_warning(root: Path, error: BaseException) -> None:
    prototype = Lab()
    prototype.breaks = {"close": error}
    lab = TrialRuntime(prototype, spec(), root)
    first = lab.close()
    assert len(first) == 1
    assert "close of task 'lab/1' failed" in first[0]
    assert lab.close() == first
    assert not lab.workspace.exists()
    with pytest.raises(NotFound):
        lab.prompt()


def test_the_authors_close_is_called_once(root: Path) -> None:
    Lab.closed.clear()
    lab = open_lab(root)
    lab.close()
    lab.close()
    assert Lab.closed == ["lab/1#0"]


def test_closing_does_not_wait_for_a_call_that_hangs(root: Path) -> None:
    entered, go, outcome = threading.Event(), threading.Event(), []

    class Hangs(Lab):
        @tool
        def hang(self) -> int:
            entered.set()
            go.wait()
            return 1

    lab = TrialRuntime(Hangs(), spec(), root)
    thread = threading.Thread(target=lambda: outcome.append(lab.execute("hang")))
    thread.start()
    entered.wait()
    lab.close()
    assert lab.workspace.exists()
    go.set()
    thread.join()
    assert not lab.workspace.exists()


# Process state.


class Draws(Lab):
    """Uses global generators and the current directory, as careless authors do."""

    def __init__(self, task_id: str = "lab/1") -> None:
        super().__init__(task_id)
        self.first = random.random()

    @tool
    def draw(self) -> list[float]:
        import numpy

        return [self.first, random.random(), float(numpy.random.random())]

    @tool
    def where(self) -> str:
        return os.getcwd()


def draws(runtime: TrialRuntime) -> list[Any]:
    found = [runtime.execute("draw").result for _ in range(2)]
    runtime.close()
    return found


def test_lent_generators_are_given_back_and_equal_those_of_an_own_process(root: Path) -> None:
    pytest.importorskip("numpy")
    random.seed(1)
    expected = [random.random() for _ in range(3)]
    random.seed(1)
    prototype = Draws()
    random.seed(1)
    lent = TrialRuntime(prototype, spec(), root, seed_globals=True)
    seen = [random.random()]
    other = TrialRuntime(prototype, spec(runtime_id="tr_o", seed=9), root, seed_globals=True)
    one, two = [lent.execute("draw").result], [other.execute("draw").result]
    seen.append(random.random())
    one += [lent.execute("draw").result]
    two += [other.execute("draw").result]
    seen.append(random.random())
    assert seen == expected
    assert one != two
    lent.close()
    other.close()
    again = TrialRuntime(prototype, spec(runtime_id="tr_p"), root, seed_globals=True)
    assert draws(again) == one
    assert _draws_in_own_process(root) == one


OWN = """
import json, sys
from tests.test_runtime import Draws, spec, draws
from corral.runtime import TrialRuntime
print(json.dumps(draws(TrialRuntime(Draws(), spec(), sys.argv[1], own_process=True))))
"""


def _draws_in_own_process(root: Path) -> Any:
    import json

    project = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", OWN, str(root / "own")], cwd=project, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def test_an_own_process_is_in_its_workspace_and_comes_back(root: Path) -> None:
    home = os.getcwd()
    state = random.getstate()
    try:
        one = TrialRuntime(Draws(), spec(), root, own_process=True)
        assert one.execute("where").result == os.getcwd() == str(one.workspace)
        two = TrialRuntime(Draws(), spec(runtime_id="tr_2"), root, own_process=True)
        one.close()
        assert two.execute("where").result == str(two.workspace)
        two.close()
        assert os.getcwd() == home
    finally:
        os.chdir(home)
        random.setstate(state)


def test_a_tool_that_removes_the_current_directory_does_not_break_the_next_trial(root: Path) -> None:
    class Removes(Lab):
        @tool
        def remove(self) -> None:
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")

    home = os.getcwd()
    state = random.getstate()
    try:
        one = TrialRuntime(Removes(), spec(), root, own_process=True)
        assert one.execute("remove").success
        assert one.close() == []
        two = TrialRuntime(Draws(), spec(runtime_id="tr_2"), root, own_process=True)
        assert two.execute("where").result == str(two.workspace)
        two.close()
        assert os.getcwd() == home
    finally:
        os.chdir(home)
        random.setstate(state)


def test_a_lent_directory_is_given_back(root: Path) -> None:
    home = os.getcwd()
    lab = TrialRuntime(Draws(), spec(), root, change_dir=True)
    assert lab.execute("where").result == str(lab.workspace)
    assert os.getcwd() == home
    lab.close()


# describe and load


def test_describe() -> None:
    envs = build_environments([define(input_map={"x": InputRef("a")}), define(name="a")], concurrency="process")
    info = describe({**envs, "lab": Lab("lab")})
    assert info["b"].parents == ("a",)
    assert info["a"].mode == "process"
    assert (info["lab"].configures, info["a"].configures) == (True, False)
    assert len(info["a"].digest) == 16


class Asked(Environment):
    """Nobody says how it is scored."""

    def get_task_prompt(self) -> str:
        return "p"


def test_the_digest_tells_another_task_from_the_same() -> None:
    def digest(env: Environment) -> str:
        return describe({env.task_id: env})[env.task_id].digest

    class Newer(Lab):
        version = "2"

    assert digest(Lab("x")) == digest(Lab("x"))
    changed = Lab("x")
    changed.add_tool(tool(name="more")(lambda: 1))
    assert len({digest(Lab("x")), digest(changed), digest(Newer("x")), digest(Environment("x", define(name="x")))}) == 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([Lab("a")], "must be a mapping"),
        ({"t": Environment("t")}, r"task 't': Environment has no get_task_prompt\(\) of its own and no TaskDefinition"),
        ({"t": Asked("t")}, r"task 't': Asked has no score\(\) of its own and no TaskDefinition: give it one"),
        ({1: Lab("a")}, "must map text ids"),
        ({"a": 1}, "'a' is mapped to a int"),
        ({"b": Lab("a")}, "under 'b' has the task id 'a'"),
    ],
)
def test_what_is_no_set_of_environments(given: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        describe(given)


def test_load() -> None:
    assert list(load(lambda: {"lab": Lab("lab")})) == ["lab"]

    def broken() -> Any:
        raise ImportError("no module named solver")

    with pytest.raises(EnvStartError, match=r"the builder .*broken failed: ImportError: no module named solver"):
        load(broken)
    with pytest.raises(ConfigError, match="must be a mapping"):
        load(lambda: None)


@pytest.mark.parametrize("ending", ["submitted", "a scorer that raises", "a tool that raises", "a job"])
def test_a_closed_trial_is_gone_without_the_garbage_collector(ending: str, tmp_path: Path) -> None:
    """What it holds may be large, and the collector counts objects only."""
    gc.collect()
    gc.disable()
    try:
        environment, runtime = _end_a_trial(ending, tmp_path)
        assert (environment(), runtime()) == (None, None)
    finally:
        gc.enable()


class _Closing(Environment):
    """Its tools are made in all ways, and hold it."""

    def __init__(self) -> None:
        super().__init__("a")
        self.add_tool(self.added)
        self.add_tool(lambda_tool(self))

    def added(self, fails: bool) -> int:
        """A method that is added."""
        return 1 // (not fails)

    @tool
    def method(self) -> int:
        """A method that is a tool."""
        return 1

    @tool
    def let_go(self, what: str) -> str:
        """A tool with a name that Corral uses too, as a gripper may have it."""
        return what

    @tool(background=True)
    def later(self) -> int:
        """A job."""
        return 1

    def get_task_prompt(self) -> str:
        return "a"

    def score(self) -> float:
        return 1.0 / self.state.submitted_answer  # type: ignore[no-any-return]


def lambda_tool(env: Environment) -> Any:
    def inner() -> str:
        """A function that closes over it."""
        return env.task_id

    return inner


def _end_a_trial(ending: str, tmp_path: Path) -> tuple[weakref.ref[Any], weakref.ref[Any]]:
    runtime = TrialRuntime(_Closing(), TrialSpec("tr_1", "a"), tmp_path)
    for name in ("method", "inner"):
        assert runtime.execute(name, {}).success
    assert runtime.execute("added", {"fails": ending == "a tool that raises"}).success != (
        ending == "a tool that raises"
    )
    if ending == "a job":
        assert runtime.execute("later", {}).success
    try:
        runtime.submit(0 if ending == "a scorer that raises" else 1)
    except ScoringError:
        assert ending == "a scorer that raises"
    runtime.close()
    return weakref.ref(runtime.env), weakref.ref(runtime)


def test_a_method_that_is_added_says_the_types_of_its_arguments(tmp_path: Path) -> None:
    """Its annotations are text in this module."""
    runtime = TrialRuntime(_Closing(), TrialSpec("tr_1", "a"), tmp_path)
    (added,) = [tool["function"] for tool in runtime.tools() if tool["function"]["name"] == "added"]
    assert added["parameters"]["properties"] == {"fails": {"type": "boolean"}}
    assert runtime.execute("added", {"fails": False}).result == 1
