"""Trial runtime: one isolated, live environment that executes one trial. The same code in-process and in a worker.

Guarantees
    * Calls are serialised; whatever the environment's code raises comes out as a failed tool call or as one TrialError
      that names the phase.
    * ``close`` is idempotent and never waits for a call that hangs: that call then cleans up after itself.
    * A closed runtime that nobody holds any more is gone at once, its environment with it: what a trial fills may be
      large, and the garbage collector, which counts objects, comes late.
Assumption: the caller runs this off its event loop, and enforces time limits from outside.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from corral.call_history import Statistics, count
from corral.catalogue import describe, failing_as, is_a_stop, load, warm_up
from corral.data import Arrays, array_bytes, to_data
from corral.environment import Environment
from corral.errors import (
    CorralError,
    EnvStartError,
    ErrorRecord,
    NotFound,
    ScoringError,
    SerializationError,
    SubmissionError,
    ToolError,
)
from corral.forks import OnlyHere
from corral.guide import message_text, tool_text
from corral.jobs import Fatal, Jobs
from corral.process_state import Lent, Owned
from corral.tools import Tool
from corral.types import (
    Action,
    TaskTrialResult,
    ToolCall,
    ToolResponse,
    TrialKey,
    TrialSpec,
    Verbosity,
    check_verbosity,
)

__all__ = ["TrialRuntime", "UnknownTool", "describe", "load", "warm_up"]

ARRAY_ROOM = 64 * 2**20
"""Bytes that the arrays in the results of one trial's tools may take, as its scorer sees them."""

_METHODS = {action: action.value for action in Action}
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class TrialRuntime:
    """Drives a fresh instance of ``environment`` through the trial of ``spec``. EnvStartError if it cannot start.

    The workspace is made under ``work_root``, or under the environment's ``base_work_dir`` and then kept.
    ``own_process``: the process is the trial's alone, so its global generators start from the seed and its current
    directory is the workspace. Beside other trials, ``seed_globals`` and ``change_dir`` lend the same for the time of
    each call and give them back after it; ``change_dir`` is unsafe while other threads use relative paths.
    """

    def __init__(
        self,
        environment: Environment,
        spec: TrialSpec,
        work_root: str | Path,
        *,
        own_process: bool = False,
        seed_globals: bool = False,
        change_dir: bool = False,
    ) -> None:
        self.spec = spec
        self.key = TrialKey(spec.task_id, spec.trial_index)
        self.warnings: list[str] = []
        self._lock = threading.Lock()
        self._closing = False
        self._cleaned = False
        self._over: str | None = None
        self._jobs = Jobs(spec.tool_jobs)
        # A process sends an array off before anything else runs; here its owner may change it under the agent's hands.
        self._arrays: Arrays = "keep" if own_process else "copy"
        self._array_room = ARRAY_ROOM
        self._keep = environment.base_work_dir is not None
        self._env: Environment | None = None
        self.workspace = _make_workspace(environment.base_work_dir or Path(work_root), spec)
        self._process: Owned | Lent = Lent(spec.seed, self.workspace, generators=seed_globals, directory=change_dir)
        try:
            if own_process:
                self._process = Owned(spec.seed, self.workspace)
            with self._process.during_call():
                self._env = self._make(environment)  # kept before its set-up: if that fails, it is closed all the same
                self._set_up(self._env)
        except BaseException:
            self.close()
            raise

    @property
    def env(self) -> Environment:
        """The trial's own environment."""
        if self._env is None:
            raise NotFound("trial", self.spec.runtime_id)
        return self._env

    # Reads.

    def prompt(self) -> str | list[dict[str, Any]]:
        """The task's prompt."""
        with self._call():
            return self._prompt()

    def guide(self, verbosity: Verbosity = "brief") -> str:
        """Prompt, tools and how to submit, as one text."""
        with self._call():
            prompt = self._prompt()
            text = prompt if isinstance(prompt, str) else "\n\n".join(map(message_text, prompt))
            return f"{text}\n\n{self._tools_guide(verbosity)}\n\n{_HOW_TO_SUBMIT}"

    def tools(self, verbosity: Verbosity = "brief") -> list[dict[str, Any]]:
        """The tools as OpenAI function schemas."""
        with self._call():
            check_verbosity(verbosity)
            return [tool.schema(verbosity) for tool in self.env.get_tools().values()]

    def tools_guide(self, verbosity: Verbosity = "brief") -> str:
        """The tools as readable text."""
        with self._call():
            return self._tools_guide(verbosity)

    def status(self) -> dict[str, Any]:
        """A few words on where the trial stands."""
        with self._call():
            state = self.env.state
            return {
                "task_id": state.task_id, "trial_id": state.trial_id,
                "attempted": bool(state.tool_calls) or state.is_attempted, "submitted": state.is_attempted,
                "surrendered": state.surrendered, "score": state.score, "tool_calls": len(state.tool_calls),
                "jobs": self._jobs.counts(),
            }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The whole state as plain data."""
        with self._call():
            return self.env.state.to_dict()

    # Actions.

    def configure(self) -> str:
        """Run ``configure_additional_apps``; what it says, as text."""
        with self._call():
            with failing_as(EnvStartError, f"configure_additional_apps of task {self.spec.task_id!r}"):
                return str(self.env.configure_additional_apps())

    def execute(self, tool_name: str, arguments: Any = None) -> ToolResponse:
        """Call a tool. What it raises is a failed response; a request to exit, or no data, ends the trial."""
        with self._call():
            if self._over:
                return ToolResponse(False, error=f"TrialOver: {self._over}, so no tool can be called any more")
            started = time.perf_counter()
            try:
                response = ToolResponse(True, self._run_tool(tool_name, arguments))
            except Fatal as fatal:
                text = str(ErrorRecord.of(fatal.error))
                self._record(tool_name, arguments, ToolResponse(False, error=text), started)
                raise fatal.error from fatal.error.__cause__
            except BaseException as error:
                if is_a_stop(error):
                    raise
                response = ToolResponse(False, error=str(ErrorRecord.of(error)))
            self._record(tool_name, arguments, response, started)
            self._check_jobs()
            return response

    def submit(self, answer: Any) -> TaskTrialResult:
        """Score the answer and end the trial."""
        with self._call():
            self._check_open("submitted")
            self._check_jobs()
            state = self.env.state
            state.submitted_answer = self._accepted(answer)
            state.is_attempted = True
            self._over = "the answer was submitted"
            state.score = self._score()
            return self._result(state.score, self._output() if state.score > 0 else {})

    def surrender(self) -> TaskTrialResult:
        """End the trial without an answer: score 0."""
        with self._call():
            self._check_open("surrendered")
            state = self.env.state
            state.surrendered = True
            state.score = 0.0
            self._over = "the trial was surrendered"
            return self._result(0.0)

    def perform(self, action: Action, arguments: tuple[Any, ...] = ()) -> Any:
        """One action by its name, with positional arguments: the whole of a runtime for a router or a worker."""
        perform: Callable[..., Any] = getattr(self, _METHODS.get(action) or Action(action).value)
        return perform(*arguments)

    def close(self) -> list[str]:
        """Cancel the jobs, close the environment, remove the workspace; return what went wrong. Idempotent.

        If a call is in flight, that call cleans up when it returns, and nobody gets its result.
        """
        self._closing = True
        self._clean_up_if_idle()
        return self.warnings

    # Starting.

    def _make(self, prototype: Environment) -> Environment:
        with failing_as(EnvStartError, f"the constructor of task {self.spec.task_id!r}"):
            return prototype.new_instance(self.spec.seed)

    def _set_up(self, env: Environment) -> None:
        spec = self.spec
        with failing_as(EnvStartError, f"opening a trial of task {spec.task_id!r}"):
            env.state.task_id = env.task_id
            env.state.trial_id = str(self.key)
            env.state.workspace = self.workspace
            env.state.tool_calls = list(spec.tool_calls)
            env.attach_jobs(self._jobs)
        with failing_as(EnvStartError, f"the inputs of task {spec.task_id!r}"):
            env.take_outputs(spec.outputs)
        if env.definition is not None and env.definition.setup_fn is not None:
            with failing_as(EnvStartError, f"setup_fn of task {spec.task_id!r}"):
                env.definition.setup_fn(env)

    # Calls. The lock is held from here on.

    def _call(self) -> _Call:
        return _Call(self)

    def _begin_call(self) -> AbstractContextManager[None]:
        self._lock.acquire()
        try:
            if self._closing:
                raise NotFound("trial", self.spec.runtime_id)
            lent = self._process.during_call()
            lent.__enter__()
        except BaseException:
            self._end_call()
            raise
        return lent

    def _end_call(self) -> None:
        self._lock.release()
        if self._closing:
            self._clean_up_if_idle()

    def _clean_up_if_idle(self) -> None:
        # Whoever holds the lock now sees _closing when it lets go, and comes here too: no clean-up is lost.
        if self._lock.acquire(blocking=False):
            try:
                if not self._cleaned:
                    self._cleaned = True
                    self._clean_up()
            finally:
                self._lock.release()

    def _clean_up(self) -> None:
        still = self._jobs.close()
        if still:
            self.warnings.append(f"background jobs that ignored their cancellation still run: {', '.join(still)}")
        if self._env is not None:
            try:
                with self._process.during_call(), OnlyHere():
                    self._env.close()
            except BaseException as error:
                if is_a_stop(error):
                    raise
                self.warnings.append(f"close of task {self.spec.task_id!r} failed: {ErrorRecord.of(error)}")
            Environment.let_go(self._env)  # a tool of its own may have this name
        self._jobs.let_go()
        self._process.leave()
        if not self._keep:
            self._remove_workspace()

    def _remove_workspace(self) -> None:
        try:
            self.workspace.rmdir()  # most are empty, and a tree takes a dozen steps more
        except OSError:
            shutil.rmtree(self.workspace, ignore_errors=True)
            if self.workspace.exists():
                self.warnings.append(f"the workspace {self.workspace} could not be removed whole")

    def _prompt(self) -> str | list[dict[str, Any]]:
        what = f"get_task_prompt of task {self.spec.task_id!r}"
        with failing_as(EnvStartError, what):
            prompt: Any = self.env.get_task_prompt()
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, list) and all(isinstance(message, Mapping) for message in prompt):
            return to_data(prompt, what, arrays="list")  # type: ignore[no-any-return]
        raise EnvStartError(f"{what} gave a {type(prompt).__name__}; it must give text or a list of messages (dicts)")

    def _tools_guide(self, verbosity: Verbosity) -> str:
        check_verbosity(verbosity)
        tools = self.env.get_tools().values()
        return "Tools:\n" + "\n".join(tool_text(tool, verbosity) for tool in tools) if tools else "There are no tools."

    def _run_tool(self, name: str, arguments: Any) -> Any:
        tools = self.env.get_tools()
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise UnknownTool(f"there is no tool {name!r}; the tools are {known}")
        tool = tools[name]
        run = self._guarded(tool, tool.validate(arguments))
        if tool.background:
            return {"job_id": self._jobs.start(name, run), "status": "started"}
        return run()

    def _guarded(self, tool: Tool, arguments: dict[str, Any]) -> Callable[[], Any]:
        """The call as the trial sees it: its result as data, a request to exit as a ToolError."""
        env = self.env
        supply = (env.hidden_argument, env.hidden_names()) if tool.hidden else ()
        return partial(self._run, tool.name, tool.prepare(arguments, *supply))

    def _run(self, name: str, call: Callable[[], Any]) -> Any:
        where = f"tool {name!r} of task {self.spec.task_id!r}"
        try:
            with OnlyHere():
                value = call()
        except SystemExit as request:
            code = request.code
            error = ToolError(
                f"{where} requested to exit with code {0 if code is None else code!r}",
                record=ErrorRecord.of(request),
            )
            error.__cause__ = request
            raise Fatal(error) from request
        try:
            return to_data(value, where, arrays=self._arrays)
        except SerializationError as refused:
            raise Fatal(refused) from refused

    def _check_jobs(self) -> None:
        if self._jobs.fatal is not None:
            raise self._jobs.fatal

    def _record(self, tool: str, arguments: Any, response: ToolResponse, started: float) -> None:
        shown = _for_record(arguments if arguments is not None else {})
        call = ToolCall(
            tool=str(tool),
            arguments=shown if isinstance(shown, dict) else {"(not an object)": shown},
            success=response.success,
            result=self._kept(response.result),
            error=response.error,
            duration=time.perf_counter() - started,
        )
        self.env.state.tool_calls.append(call)

    def _kept(self, result: Any) -> Any:
        """A tool's result for the scorer: with arrays of its own, where there is room for them."""
        size = array_bytes(result)
        if not size or size > self._array_room:
            return _for_record(result)
        self._array_room -= size
        return to_data(result, "a record", arrays="copy")

    # Ending.

    def _check_open(self, action: str) -> None:
        if self._over:
            raise SubmissionError(f"trial {self.key} cannot be {action}: {self._over} already")

    def _accepted(self, answer: Any) -> Any:
        try:
            given = to_data(answer, "the answer", arrays="list")
            with failing_as(ScoringError, f"resolve_answer of task {self.spec.task_id!r}"):
                return self.env.resolve_answer(given)
        except SerializationError as error:
            raise SubmissionError(f"the answer to {self.key} cannot be accepted: {error}") from error

    def _score(self) -> float:
        what = f"the scorer of task {self.spec.task_id!r}"
        with failing_as(ScoringError, what):
            given: Any = self.env.score()
        score = _finite(given)
        if score is None:
            raise ScoringError(f"{what} gave {given!r:.80} ({type(given).__name__}), which is no finite number")
        return score

    def _output(self) -> dict[str, Any]:
        what = f"get_task_output of task {self.spec.task_id!r}"
        with failing_as(ScoringError, what):
            given: Any = self.env.get_task_output()
        if not isinstance(given, Mapping):
            raise ScoringError(f"{what} gave a {type(given).__name__}; it must give a mapping by name")
        return to_data(given, what, arrays="list")  # type: ignore[no-any-return]

    def _result(self, score: float, output: Mapping[str, Any] | None = None) -> TaskTrialResult:
        statistics: Statistics = {}
        for call in self.env.state.tool_calls:
            count(statistics, call.tool, call.success)
        return TaskTrialResult(
            *self.key,
            score=score,
            # Only here, not in the state that agents can ask for: the output may hold hidden parts.
            state=self.env.state.to_dict() | ({"output": dict(output)} if output else {}),
            tool_statistics=statistics,
            surrendered=self.env.state.surrendered,
        )


class UnknownTool(CorralError, LookupError):
    """The agent called a tool that the task does not have."""


def _make_workspace(root: Path, spec: TrialSpec) -> Path:
    task = _NO_FILE_NAME.sub("_", spec.task_id)[:60] or "task"
    short = "".join(filter(str.isalnum, spec.runtime_id.removeprefix("tr_")))[:12]
    path = root.absolute() / f"{task}-{spec.trial_index}-{short}"
    with failing_as(EnvStartError, f"making the workspace of task {spec.task_id!r}"):
        path.mkdir(parents=True)
    return path


def _finite(value: Any) -> float | None:
    """``value`` as a float, if it is a real, finite number: NumPy's scalars and booleans too."""
    item = value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value
    if type(item) not in (float, int, bool) and not _is_real(item):
        return None
    try:
        number = float(item)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _is_real(value: Any) -> bool:
    from decimal import Decimal  # late: what a score hardly ever is
    from numbers import Real

    return isinstance(value, Real | Decimal)


class _Call:
    """``with`` this, a call has the runtime for itself. An object, not a generator: it is on the path of every call."""

    __slots__ = ("_lent", "_runtime")

    def __init__(self, runtime: TrialRuntime) -> None:
        self._runtime = runtime
        self._lent: AbstractContextManager[None]

    def __enter__(self) -> None:
        # Written only by the one call that holds the lock.
        self._lent = self._runtime._begin_call()

    def __exit__(self, *error: Any) -> None:
        try:
            self._lent.__exit__(*error)
        finally:
            self._runtime._end_call()


def _for_record(value: Any) -> Any:
    try:
        return to_data(value, "a record", arrays="describe")
    except SerializationError:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


_HOW_TO_SUBMIT = "Submit the final answer once; it ends the trial."
