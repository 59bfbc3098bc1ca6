"""The bodies that an environment server takes and gives, as pydantic models. No I/O."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from corral.types import ConcurrencyMode

# ---- what is sent ----


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is a whole one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class Body(BaseModel):
    """What is sent. An unknown name is an error: it would be a misspelt one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewTrial(Body):
    """A trial runtime to open."""

    benchmark_run_id: str | None = Field(None, description="whose trial it is: runs share the slots fairly")
    episode_id: str | None = Field(None, description="trials of one episode share a slot and their outputs")
    trial_index: Whole | None = Field(None, ge=0, lt=2**31)
    tool_jobs_per_trial: Whole | None = Field(None, ge=1, lt=2**31, description="background jobs at once")
    seed: Whole | None = Field(None, ge=0, lt=2**64, description="where the trial's random state starts")
    outputs: dict[str, Any] | None = Field(None, description="outputs of its parents, by task id")


class ExecuteTool(Body):
    """A tool call."""

    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Submit(Body):
    """An answer: text or any data."""

    answer: Any


class Configure(Body):
    """Configuring takes nothing."""


# ---- what is answered ----


class Answer(BaseModel):
    """What is answered. More names may come in later versions."""


class TaskList(Answer):
    """The ids of all tasks."""

    tasks: list[str]


class Supported(Answer):
    """Whether tasks can use other tasks' outputs."""

    supported: bool


class TrialWorker(Answer):
    """Whether process-class trials run on a pool, and of how many slots."""

    active: bool
    size: int


class Health(Answer):
    """How the server is. ``draining``: it finishes what runs and takes no new trials."""

    status: str = Field(pattern="^(ok|draining)$")
    server_id: str
    tasks: int
    open_trials: int
    waiting: int = Field(description="trials that wait for a place")
    running_calls: int
    pool: dict[str, Any] | None = None


class Prompt(Answer):
    """Text, or a list of message parts."""

    prompt: str | list[dict[str, Any]]


class Guide(Answer):
    """Readable text."""

    guide: str


class ToolList(Answer):
    """OpenAI function schemas."""

    tools: list[dict[str, Any]]


class ToolResult(Answer):
    """What a tool gave; ``error`` says why it gave nothing."""

    success: bool
    result: Any = None
    error: str | None = None


class Problem(Answer):
    """What went wrong. ``kind`` is a failure kind, or one of not_found, config, protocol, pending, draining, ..."""

    kind: str
    detail: str
    what: str | None = None
    name: str | None = None
    record: dict[str, str] | None = Field(None, description="the original exception: type, message, traceback")
    exit_status: int | None = None
    output: str | None = Field(None, description="the tail of what the trial's process printed")
    phase: str | None = None
    worker: dict[str, Any] | None = None


class TrialResult(Answer):
    """The final record of a trial."""

    model_config = ConfigDict(extra="allow")
    task_id: str
    trial_index: int
    score: float
    state: dict[str, Any]
    tool_statistics: dict[str, dict[str, int]]
    surrendered: bool


class Configured(Answer):
    """What ``configure_additional_apps`` said."""

    message: str


class OpenedTrial(Answer):
    """An open trial runtime."""

    trial_runtime_id: str
    task_id: str
    workspace: str = Field(description="its own directory, on the server")
    mcp_url: str = Field(description="where MCP clients reach its tools")
    worker: dict[str, Any] | None = None


class ClosedTrial(Answer):
    """A trial that is closed: what went wrong in closing, and what its process used (bytes, seconds)."""

    warnings: list[str]
    peak_rss: int
    cpu_seconds: float
    exit_status: int | None = Field(None, description="of its process, if that was its alone; negative: the signal")
    output: str = Field("", description="the tail of what it printed, where it has a process")


class SeenCall(Answer):
    """A tool call that was answered."""

    tool: str
    arguments: dict[str, Any]
    success: bool
    result: Any = None
    error: str | None = None


class CallList(Answer):
    """Tool calls, oldest first: the first 1000, and their values as long as these have 16 Mi characters together."""

    calls: list[SeenCall]
    statistics: dict[str, dict[str, int]] = Field(description="by tool, all its calls, and those that were errors")


class History(Answer):
    """What the server saw pass of a trial, whichever way it came."""

    phase: str = Field(description="what runs, or ran last, in words")
    running: int = Field(description="calls that run or wait for their turn")
    calls: int = Field(description="tool calls that were answered")
    fault: Problem | None = Field(None, description="what broke it")
    result: TrialResult | None = Field(None, description="its record, once it is submitted or surrendered")


class ClosedEpisode(Answer):
    """An episode that is closed."""

    episode_id: str


Modes = dict[str, ConcurrencyMode]
Graph = dict[str, list[str]]
