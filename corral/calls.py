"""What a client of an environment server sends, and what it makes of the answers. Pure: no sockets, no clock.

The synchronous and the asynchronous router are thin shells over this: both send a ``Call``, repeat it as ``Patience``
says, and read the answer with it. Every call has an idempotency key, so repeating it is always harmless.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from corral.call_history import CallHistory
from corral.data import to_data
from corral.errors import ConfigError, InfrastructureError, OtherTask, SerializationError, SubmissionError, TrialError
from corral.lean import dataclass
from corral.protocol import KEY_HEADER, OWN_TYPE, WAIT_HEADER, decode, encode, to_error, to_worker
from corral.records import from_record, known_fields
from corral.types import TaskTrialResult, ToolCall, ToolResponse, TrialKey, Verbosity, WorkerRef

T = TypeVar("T")

WAIT = 20.0
"""Seconds in which a client waits for an answer before it asks again. So no proxy's limit cuts a long call, and the
server shows that it lives."""
SILENCE = 20.0
"""Seconds beyond WAIT after which a server that says nothing is taken for dead (or stopped, or cut off)."""
CONNECT_TIMEOUT = 10.0
DELAYS = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each further try, after a connection was refused or lost: about what a restart takes."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, whatever sends it."""

    method: str
    path: str
    read: Callable[[Any], T]
    """Makes the result of the answer's data."""
    query: Mapping[str, str] = field(default_factory=dict)
    data: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes | None:
        """The request's body."""
        return None if self.data is None else encode(self.data, strict=False)


def headers_of(token: str | None) -> dict[str, str]:
    """What every request of a client says."""
    headers = {"accept": f"{OWN_TYPE}, application/json"}
    return headers | ({"authorization": f"Bearer {token}"} if token else {})


def _call(method: str, path: str, read: Callable[[Any], T], data: Any = None, **query: Any) -> Call[T]:
    headers = {KEY_HEADER: secrets.token_hex(12), WAIT_HEADER: f"{WAIT:g}"}
    if data is not None:
        headers["content-type"] = OWN_TYPE
    return Call(method, path, read, {name: value for name, value in query.items() if value is not None}, data, headers)


class Place:
    """What the calls are about: a task's shared surface, or one trial."""

    def __init__(self, trial_runtime_id: str | None, task_id: str = "") -> None:
        """``task_id``: that of the trial."""
        self.trial_runtime_id = trial_runtime_id
        self._task_id = task_id

    def _path(self, task_id: str, end: str) -> str:
        if self.trial_runtime_id is not None:
            if task_id != self._task_id:
                raise OtherTask(task_id, self._task_id)
            return f"/trials/{_quoted(self.trial_runtime_id)}/{end}"
        return f"/tasks/{_quoted(task_id)}/{end}"

    def prompt(self, task_id: str) -> Call[Any]:
        """The prompt."""
        return _call("GET", self._path(task_id, "prompt"), lambda data: data["prompt"])

    def guide(self, task_id: str, verbosity: Verbosity) -> Call[str]:
        """Prompt, tools and how to submit."""
        return _call("GET", self._path(task_id, "guide"), lambda data: str(data["guide"]), verbosity=verbosity)

    def tools_guide(self, task_id: str, verbosity: Verbosity) -> Call[str]:
        """The tools as text."""
        return _call("GET", self._path(task_id, "tools/guide"), lambda data: str(data["guide"]), verbosity=verbosity)

    def tools(self, task_id: str, verbosity: Verbosity) -> Call[dict[str, Any]]:
        """The tools as schemas."""
        return _call("GET", self._path(task_id, "tools"), lambda data: {"tools": data["tools"]}, verbosity=verbosity)

    def status(self, task_id: str) -> Call[dict[str, Any]]:
        """Where the trial stands."""
        return _call("GET", self._path(task_id, "status"), dict)

    def state(self, task_id: str) -> Call[dict[str, Any]]:
        """The environment's state."""
        return _call("GET", self._path(task_id, "state"), dict)

    def history(self) -> Call[dict[str, Any]]:
        """What the server saw pass of the trial."""
        return _call("GET", self._path(self._task_id, "history"), dict)

    def seen_calls(self) -> Call[CallHistory]:
        """The tool calls that it saw."""
        return _call("GET", self._path(self._task_id, "history/calls"), _seen_calls)

    def execute(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> Call[ToolResponse]:
        """A tool call. SerializationError for arguments that are no data."""
        data = to_data(arguments, f"the call of tool {tool_name!r}", arrays="list")
        body = {"tool_name": tool_name, "arguments": data}
        return _call("POST", self._path(task_id, "tools/execute"), _tool_response, body)

    def submit(self, task_id: str, trial_index: int, answer: Any) -> Call[TaskTrialResult]:
        """The answer. SubmissionError for one that is no data."""
        try:
            data = to_data(answer, "the answer", arrays="list")
        except SerializationError as error:
            key = TrialKey(task_id, trial_index)
            raise SubmissionError(f"the answer to {key} cannot be accepted: {error}") from error
        return _call("POST", self._path(task_id, "submit"), from_record, {"answer": data})

    def surrender(self, task_id: str) -> Call[TaskTrialResult]:
        """Giving up."""
        return _call("POST", self._path(task_id, "surrender"), from_record)

    def configure(self, task_id: str) -> Call[str]:
        """Configuring."""
        return _call("POST", self._path(task_id, "configure"), lambda data: str(data["message"]))


def tasks() -> Call[list[str]]:
    """The ids of all tasks."""
    return _call("GET", "/tasks", lambda data: list(data["tasks"]))


def modes() -> Call[Any]:
    """How each task's trials may run."""
    return _call("GET", "/concurrency", dict)


def supports_chains() -> Call[bool]:
    """Whether tasks can use others' outputs."""
    return _call("GET", "/dependency_chain", lambda data: bool(data["supported"]))


def graph() -> Call[dict[str, list[str]]]:
    """Which tasks use which."""
    return _call("GET", "/dependency_graph", dict)


def trial_worker() -> Call[tuple[bool, int]]:
    """Whether there is a pool, and its size."""
    return _call("GET", "/trial_worker", lambda data: (bool(data["active"]), int(data["size"])))


def episode_name(run_id: str | None, episode_id: str) -> str:
    """An episode's name on the server: two runs of the same plan name theirs alike."""
    return episode_id if run_id is None else f"{run_id}:{episode_id}"


def open_trial(task_id: str, run_id: str | None, episode_id: str | None, **wanted: Any) -> Call[dict[str, Any]]:
    """A trial runtime to open."""
    body = {name: value for name, value in wanted.items() if value is not None}
    if body.get("outputs"):
        body["outputs"] = to_data(body["outputs"], "the outputs of its parents", arrays="list")
    if run_id is not None:
        body["benchmark_run_id"] = run_id
    if episode_id is not None:
        body["episode_id"] = episode_name(run_id, episode_id)
    return _call("POST", f"/tasks/{_quoted(task_id)}/trials", _opened, body)


def close_trial(trial_runtime_id: str) -> Call[dict[str, Any]]:
    """A trial to close."""
    return _call("DELETE", f"/trials/{_quoted(trial_runtime_id)}", dict)


def close_episode(name: str) -> Call[None]:
    """An episode to close, by its name on the server."""
    return _call("DELETE", f"/episodes/{_quoted(name)}", lambda data: None)


def _opened(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"worker": to_worker(data.get("worker"))}


def _tool_response(data: Mapping[str, Any]) -> ToolResponse:
    return ToolResponse(bool(data["success"]), data.get("result"), data.get("error"))


def _seen_calls(data: Mapping[str, Any]) -> CallHistory:
    made = [ToolCall(**known_fields(ToolCall, call)) for call in data["calls"]]
    return CallHistory.told(made, data.get("statistics"))


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


# ---- answers ----


class Pending(Exception):
    """The call goes on at the server: ask again."""


def read_answer(call: Call[T], status: int, body: bytes) -> T:
    """The call's result. Pending; or the error that was raised on the server."""
    if status == 202:
        raise Pending
    try:
        data = decode(body)
    except ConfigError:
        data = body[:300].decode("utf-8", "replace")
    if status != 200:
        raise to_error(status, data)
    try:
        return call.read(data)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InfrastructureError(
            f"the environment server's answer to {call.method} {call.path} cannot be understood "
            f"({type(error).__name__}: {error}): {str(data)[:300]}"
        ) from error


class Patience:
    """How often one call is tried again, and when it is given up."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._tries = 0
        self._reached = False

    def after(self, error: Exception, *, silent: bool = False, reached: bool = True) -> float:
        """Seconds to wait before the next try; InfrastructureError when it is over.

        ``silent``: the server took the request and then said nothing, in all the time that it had. ``reached``:
        there was a connection.
        """
        self._reached = self._reached or reached
        if isinstance(error, Pending):
            self._tries = 0  # the server lives
            return 0.0
        if self._tries >= len(DELAYS) or (silent and self._tries):
            # Without its cause: two libraries' tracebacks say no more than the sentence, and stand above it.
            raise InfrastructureError.no_answer(self._address, error, reached=self._reached) from None
        self._tries += 1
        return DELAYS[self._tries - 1]


# ---- what a client saw of a trial ----


@dataclass
class SeenTrial:
    """An open trial as its client saw it: the counterpart of the service's OpenTrial."""

    runtime_id: str
    task_id: str
    trial_index: int
    worker: WorkerRef | None
    mcp_url: str | None
    phase: str = "set-up"
    history: CallHistory = field(default_factory=CallHistory)
    """The tool calls that were answered."""
    fault: TrialError | None = None
    result: TaskTrialResult | None = None
    output: str = ""
    calling: int = 0
    """Calls that run."""

    def reviewed(self, history: dict[str, Any]) -> bool:
        """The server told what it saw. Whether its calls are others than those that came this way."""
        self.phase = history["phase"]
        self.calling = max(self.calling, history["running"])
        if (fault := history.get("fault")) is not None and isinstance(error := to_error(500, fault), TrialError):
            self.broke(error)
        if (record := history.get("result")) is not None:
            self.result = from_record(record)
        return bool(history["calls"] != self.history.made)

    def broke(self, error: TrialError) -> None:
        """The server said that the trial is broken."""
        if isinstance(error, SubmissionError) or error.phase is None:
            return
        self.fault = self.fault or error
        self.output = error.output

    def called(self, tool: str, arguments: Mapping[str, Any], response: ToolResponse) -> None:
        """A tool call came back."""
        self.history.add(ToolCall(tool, dict(arguments), response.success, response.result, response.error))
