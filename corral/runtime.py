"""Trial runtime: one isolated, live environment that executes one trial. The same code in-process and in a worker.

Guarantees: calls are serialised; whatever the environment's code raises comes out as a failed tool call or as one
TrialError that names the phase; ``close`` is idempotent and never waits for a call that hangs (that call then cleans
up after itself). Assumption: the caller runs this off its event loop, and enforces time limits from outside.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import numbers
import os
import random
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from corral.data import to_data
from corral.environment import Environment
from corral.errors import (
    ConfigError,
    CorralError,
    EnvStartError,
    ErrorRecord,
    NotFound,
    ScoringError,
    SerializationError,
    SubmissionError,
    ToolError,
    TrialError,
)
from corral.jobs import Jobs
from corral.tools import Tool
from corral.types import (
    Action,
    TaskInfo,
    TaskTrialResult,
    ToolCall,
    ToolResponse,
    TrialKey,
    TrialSpec,
    Verbosity,
    check_verbosity,
)

__all__ = ["TrialRuntime", "UnknownTool", "describe", "load"]


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
        self._keep = environment.base_work_dir is not None
        self._env: Environment | None = None
        self.workspace = _make_workspace(environment.base_work_dir or Path(work_root), spec)
        lends = _Lent(spec.seed, self.workspace, generators=seed_globals, directory=change_dir)
        self._process = _Owned(spec.seed, self.workspace) if own_process else lends
        try:
            with self._process.during_call():
                self._env = self._start(environment)
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
            text = prompt if isinstance(prompt, str) else "\n\n".join(map(_message_text, prompt))
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
            with _as_error(EnvStartError, f"configure_additional_apps of task {self.spec.task_id!r}"):
                return str(self.env.configure_additional_apps())

    def execute(self, tool_name: str, arguments: Any = None) -> ToolResponse:
        """Call a tool. What it raises is a failed response; a request to exit, or no data, ends the trial."""
        with self._call():
            if self._over:
                return ToolResponse(False, error=f"TrialOver: {self._over}, so no tool can be called any more")
            started = time.perf_counter()
            try:
                response = ToolResponse(True, self._run_tool(tool_name, arguments))
            except (ToolError, SerializationError) as error:
                self._record(tool_name, arguments, ToolResponse(False, error=str(ErrorRecord.of(error))), started)
                raise
            except Exception as error:
                response = ToolResponse(False, error=str(ErrorRecord.of(error)))
            self._record(tool_name, arguments, response, started)
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
            return self._result(state.score)

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
        perform: Callable[..., Any] = getattr(self, Action(action).value)
        return perform(*arguments)

    def close(self) -> list[str]:
        """Cancel the jobs, close the environment, remove the workspace; return what went wrong. Idempotent.

        If a call is in flight, that call cleans up when it returns, and nobody gets its result.
        """
        self._closing = True
        self._clean_up_if_idle()
        return self.warnings

    # Starting.

    def _start(self, prototype: Environment) -> Environment:
        spec = self.spec
        with _as_error(EnvStartError, f"the constructor of task {spec.task_id!r}"):
            env = prototype.new_instance(spec.seed)
        env.state.task_id = env.task_id
        env.state.trial_id = str(self.key)
        env.state.workspace = self.workspace
        env.attach_jobs(self._jobs)
        with _as_error(EnvStartError, f"the inputs of task {spec.task_id!r}"):
            env.take_outputs(spec.outputs)
        if env.definition is not None and env.definition.setup_fn is not None:
            # Kept before set-up: an environment that was made is closed, even if its set-up fails.
            self._env = env
            with _as_error(EnvStartError, f"setup_fn of task {spec.task_id!r}"):
                env.definition.setup_fn(env)
        return env

    # Calls. The lock is held from here on.

    @contextmanager
    def _call(self) -> Iterator[None]:
        try:
            with self._lock:
                if self._closing:
                    raise NotFound("trial", self.spec.runtime_id)
                with self._process.during_call():
                    yield
        finally:
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
                with self._process.during_call():
                    self._env.close()
            except (Exception, SystemExit) as error:
                self.warnings.append(f"close of task {self.spec.task_id!r} failed: {ErrorRecord.of(error)}")
        self._process.leave()
        if not self._keep:
            shutil.rmtree(self.workspace, ignore_errors=True)
            if self.workspace.exists():
                self.warnings.append(f"the workspace {self.workspace} could not be removed whole")

    def _prompt(self) -> str | list[dict[str, Any]]:
        what = f"get_task_prompt of task {self.spec.task_id!r}"
        with _as_error(EnvStartError, what):
            prompt: Any = self.env.get_task_prompt()
        if isinstance(prompt, str):
            return prompt
        if isinstance(prompt, list) and all(isinstance(message, Mapping) for message in prompt):
            return to_data(prompt, what, arrays="list")  # type: ignore[no-any-return]
        raise EnvStartError(f"{what} gave a {type(prompt).__name__}; it must give text or a list of messages (dicts)")

    def _tools_guide(self, verbosity: Verbosity) -> str:
        check_verbosity(verbosity)
        tools = self.env.get_tools().values()
        return "Tools:\n" + "\n".join(_tool_text(tool, verbosity) for tool in tools) if tools else "There are no tools."

    def _run_tool(self, name: str, arguments: Any) -> Any:
        tools = self.env.get_tools()
        if name not in tools:
            known = ", ".join(tools) or "none"
            raise UnknownTool(f"there is no tool {name!r}; the tools are {known}")
        tool = tools[name]
        run = self._guarded(tool, tool.validate(arguments))
        if tool.background:
            return {"job_id": self._jobs.start(name, run), "status": "started"}
        result = run()
        self._check_jobs()
        return result

    def _guarded(self, tool: Tool, arguments: dict[str, Any]) -> Callable[[], Any]:
        """The call as the trial sees it: its result as data, a request to exit as a ToolError."""
        call = tool.prepare(arguments, self.env.hidden_argument, self.env.hidden_names())

        def run() -> Any:
            try:
                value = call()
            except SystemExit as request:
                code = request.code
                raise ToolError(
                    f"tool {tool.name!r} of task {self.spec.task_id!r} requested to exit with code "
                    f"{0 if code is None else code!r}",
                    record=ErrorRecord.of(request),
                ) from request
            return to_data(value, f"tool {tool.name!r} of task {self.spec.task_id!r}")

        return run

    def _check_jobs(self) -> None:
        if self._jobs.fatal is not None:
            raise self._jobs.fatal

    def _record(self, tool: str, arguments: Any, response: ToolResponse, started: float) -> None:
        shown = _for_record(arguments if arguments is not None else {})
        call = ToolCall(
            tool=str(tool),
            arguments=shown if isinstance(shown, dict) else {"(not an object)": shown},
            success=response.success,
            result=_for_record(response.result),
            error=response.error,
            duration=time.perf_counter() - started,
        )
        self.env.state.tool_calls.append(call)

    # Ending.

    def _check_open(self, action: str) -> None:
        if self._over:
            raise SubmissionError(f"trial {self.key} cannot be {action}: {self._over} already")

    def _accepted(self, answer: Any) -> Any:
        try:
            return self.env.resolve_answer(to_data(answer, "the answer", arrays="list"))
        except SerializationError as error:
            raise SubmissionError(f"the answer to {self.key} cannot be accepted: {error}") from error

    def _score(self) -> float:
        what = f"the scorer of task {self.spec.task_id!r}"
        with _as_error(ScoringError, what):
            given: Any = self.env.score()
        score = _finite(given)
        if score is None:
            raise ScoringError(f"{what} gave {given!r:.80} ({type(given).__name__}), which is no finite number")
        return score

    def _result(self, score: float) -> TaskTrialResult:
        statistics: dict[str, dict[str, int]] = {}
        for call in self.env.state.tool_calls:
            counts = statistics.setdefault(call.tool, {"calls": 0, "errors": 0})
            counts["calls"] += 1
            counts["errors"] += not call.success
        return TaskTrialResult(
            *self.key,
            score=score,
            state=self.env.state.to_dict(),
            tool_statistics=statistics,
            surrendered=self.env.state.surrendered,
        )


class UnknownTool(CorralError, LookupError):
    """The agent called a tool that the task does not have."""


class _Owned:
    """The process is the trial's alone: global generators and the current directory are its own for good.

    Trials of one episode follow each other in one process, so the first directory is the one to go back to.
    """

    _home: ClassVar[str | None] = None

    def __init__(self, seed: int, workspace: Path) -> None:
        self._seed = seed
        self._workspace = workspace
        self._numpy_seeded = False
        if _Owned._home is None:
            _Owned._home = os.getcwd()
        random.seed(seed)
        os.chdir(workspace)

    @contextmanager
    def during_call(self) -> Iterator[None]:
        # Asked again at each call, since a tool may be the first to load NumPy; what is not loaded is not loaded here.
        generators = _numpy_random()
        if generators is not None and not self._numpy_seeded:
            self._numpy_seeded = True
            generators.seed(self._seed % 2**32)
        yield

    def leave(self) -> None:
        """Go back to where the process was before its first trial, unless another trial has moved it already."""
        if Path.cwd().is_relative_to(self._workspace.resolve()):
            os.chdir(_Owned._home or self._workspace.parent)


class _Lent:
    """The process is shared: generators and directory are the trial's for the time of each call, then given back."""

    def __init__(self, seed: int, workspace: Path, *, generators: bool, directory: bool) -> None:
        self._seed = seed
        self._workspace = workspace
        self._generators = generators
        self._directory = directory
        self._python: Any = None
        self._numpy: Any = None

    @contextmanager
    def during_call(self) -> Iterator[None]:
        with self._lent_generators(), chdir(self._workspace) if self._directory else nullcontext():
            yield

    def leave(self) -> None:
        """Nothing is held between calls."""

    @contextmanager
    def _lent_generators(self) -> Iterator[None]:
        if not self._generators:
            yield
            return
        numpy = _numpy_random()
        python_before = random.getstate()
        numpy_before = numpy.get_state() if numpy is not None else None
        self._take_generators(numpy)
        try:
            yield
        finally:
            self._python = random.getstate()
            random.setstate(python_before)
            if numpy is not None:
                self._numpy = numpy.get_state()
                numpy.set_state(numpy_before)

    def _take_generators(self, numpy: Any) -> None:
        if self._python is None:
            random.seed(self._seed)
        else:
            random.setstate(self._python)
        if numpy is not None and self._numpy is None:
            numpy.seed(self._seed % 2**32)
        elif numpy is not None:
            numpy.set_state(self._numpy)


def describe(environments: Any) -> dict[str, TaskInfo]:
    """What the supervisor needs to know of each task; ConfigError where this is no mapping of environments."""
    if not isinstance(environments, Mapping):
        raise ConfigError(f"environments must be a mapping of task id to Environment, not {environments!r:.80}")
    sources: dict[type, str] = {}
    found = {}
    for task_id, env in environments.items():
        if not isinstance(task_id, str) or not isinstance(env, Environment):
            raise ConfigError(
                f"environments must map text ids to Environments; {task_id!r:.80} is mapped to a {type(env).__name__}"
            )
        if env.task_id != task_id:
            raise ConfigError(f"the environment under {task_id!r} has the task id {env.task_id!r}")
        found[task_id] = TaskInfo(
            task_id, env.concurrency, tuple(env.parents), env.configures, env.fresh, _digest(env, sources)
        )
    return found


def load(build: Callable[[], Any]) -> dict[str, Environment]:
    """Call a builder and check what it made; EnvStartError if it fails."""
    name = f"{getattr(build, '__module__', '?')}.{getattr(build, '__qualname__', repr(build))}"
    with _as_error(EnvStartError, f"the builder {name}"):
        environments = build()
        describe(environments)
    return dict(environments)


def _digest(env: Environment, sources: dict[type, str]) -> str:
    cls = type(env)
    if cls not in sources:
        try:
            sources[cls] = inspect.getsource(cls)
        except (OSError, TypeError):
            sources[cls] = ""
    definition = env.definition
    facts = {
        # A script is __main__ in the supervisor and __mp_main__ in a spawned worker.
        "class": f"{cls.__module__}.{cls.__qualname__}".replace("__mp_main__.", "__main__."),
        "source": sources[cls],
        "version": str(env.version),
        "tools": [tool.schema("full") for tool in env.get_tools().values()],
        "task": [definition.name, definition.description, definition.submission_format] if definition else [],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@contextmanager
def _as_error(error_class: type[EnvStartError] | type[ScoringError], what: str) -> Iterator[None]:
    """Turn what the environment's code raises into one error of the trial. A stop of the whole run passes."""
    try:
        yield
    except TrialError:
        raise
    except (Exception, SystemExit) as error:
        record = ErrorRecord.of(error)
        raise error_class(f"{what} failed: {record}", record=record) from error


def _make_workspace(root: Path, spec: TrialSpec) -> Path:
    task = re.sub(r"[^A-Za-z0-9_-]+", "_", spec.task_id)[:60] or "task"
    short = re.sub(r"[^A-Za-z0-9]", "", spec.runtime_id.removeprefix("tr_"))[:12]
    path = root.absolute() / f"{task}-{spec.trial_index}-{short}"
    with _as_error(EnvStartError, f"making the workspace of task {spec.task_id!r}"):
        path.mkdir(parents=True)
    return path


def _numpy_random() -> Any:
    """``numpy.random`` if NumPy is loaded; never loads it."""
    numpy = sys.modules.get("numpy")
    return getattr(numpy, "random", None) if numpy is not None else None


def _finite(value: Any) -> float | None:
    """``value`` as a float, if it is a real, finite number: NumPy's scalars and booleans too."""
    item = value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0 else value
    if not isinstance(item, numbers.Real | Decimal):
        return None
    try:
        number = float(item)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _for_record(value: Any) -> Any:
    try:
        return to_data(value, "a record", arrays="describe")
    except SerializationError:
        return f"<{type(value).__module__}.{type(value).__qualname__}>"


_HOW_TO_SUBMIT = "Submit the final answer once; it ends the trial."


def _tool_text(tool: Tool, verbosity: Verbosity) -> str:
    function = tool.schema(verbosity)["function"]
    parameters = function["parameters"]
    required = parameters.get("required", [])
    lines = [f"- {tool.name}({', '.join(n if n in required else f'{n}?' for n in parameters['properties'])})"]
    if "description" in function:
        lines[0] += ": " + function["description"].replace("\n", "\n    ")
    for name, schema in parameters["properties"].items():
        text = f": {schema['description']}" if "description" in schema else ""
        lines.append(f"    {name} ({_type_text(schema)}){text}")
    return "\n".join(lines)


def _type_text(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        text = "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    elif "anyOf" in schema:
        text = " or ".join(_type_text(option) for option in schema["anyOf"])
    elif "$ref" in schema:
        text = str(schema["$ref"]).rpartition("/")[2]
    else:
        text = str(schema.get("type", "any"))
        text += f" of {_type_text(schema['items'])}" if "items" in schema else ""
    if "default" in schema:
        text += f", default {json.dumps(schema['default'], ensure_ascii=False)}"
    return text


def _message_text(message: Mapping[str, Any]) -> str:
    content = message.get("content", "")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(p.get("text", "")) if isinstance(p, Mapping) else str(p) for p in parts)
