"""Frozen data that every part of Corral shares. Pure: no clock, no files, no processes."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, get_args

from corral.errors import ConfigError, FailureKind
from corral.lean import dataclass

__all__ = [
    "Action", "ConcurrencyConfig", "ConcurrencyMode", "FailureKind", "Attempt", "TaskInfo", "TaskTrialResult",
    "Timings", "ToolCall", "ToolResponse", "TrialContext", "TrialKey", "TrialSpec", "Verbosity", "WorkerRef",
    "check_count", "check_flag", "check_mode", "check_path", "check_seconds", "check_verbosity", "derive_seed", "shown",
]  # fmt: skip

ConcurrencyMode = Literal["thread", "process", "serial"]
"""How a task's trials may run: "thread" in-process beside others, "process" one per interpreter, "serial" alone."""

FreshMode = Literal["auto", "fork", "spawn"]
"""How fresh process state is made: by a fork of a loaded clean worker, or by a new interpreter."""

Verbosity = Literal["minimal", "brief", "full"]
"""How much of a tool's docstring its description shows: none of it, its first paragraph, or all."""


MAX_TRIALS = 10_000_000
"""Trials of one run: each is planned ahead and kept in memory, 5 kB of it when it has ended."""

SHOWN = 200
"""Characters of a value that a sentence shows."""


def shown(value: object) -> str:
    """What a user gave, for the sentence that refuses it: short, and in words of ours where it cannot show itself."""
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def check_mode(mode: object, where: str) -> ConcurrencyMode:
    """Return ``mode`` if it is a concurrency mode; raise ConfigError naming ``where`` otherwise."""
    for known in get_args(ConcurrencyMode):
        if mode == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f'{where}: concurrency must be "thread", "process" or "serial", not {shown(mode)}')


def check_verbosity(verbosity: object) -> Verbosity:
    """Return ``verbosity`` if it is one; raise ConfigError otherwise."""
    for known in get_args(Verbosity):
        if verbosity == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f'verbosity must be "minimal", "brief" or "full", not {shown(verbosity)}')


def check_count(value: Any, name: str, *, least: int = 1) -> int:
    """``value`` if it is a whole number of at least ``least``, NumPy's too; ConfigError naming ``name`` otherwise."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ConfigError(f"{name} must be a whole number of at least {least}, not {shown(value)}")
    return number


def check_seconds(value: Any, name: str) -> float | None:
    """``value`` if it is None or a positive, finite number of seconds; raise ConfigError otherwise."""
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, bool | str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds) or seconds <= 0:
        raise ConfigError(f"{name} must be a positive number of seconds (or None for no limit), not {shown(value)}")
    return seconds


def check_flag(value: object, name: str) -> bool:
    """``value`` if it is True or False: text such as "no" would count as True. ConfigError otherwise."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {shown(value)}")
    return value


def check_path(value: Any, name: str) -> str:
    """``value`` as text if it can be the path of a file or a folder; raise ConfigError otherwise."""
    path = value.__fspath__() if hasattr(value, "__fspath__") else value
    if not isinstance(path, str) or "\0" in path:
        raise ConfigError(f"{name} must be a path, not {shown(value)}")
    return path


class TrialKey(NamedTuple):
    """Which trial: the task's id and the trial's index, from 0."""

    task_id: str
    trial_index: int

    def __str__(self) -> str:
        """``task-id#0``."""
        return f"{self.task_id}#{self.trial_index}"


@lru_cache(maxsize=256)  # a trial asks for it more than once
def derive_seed(seed: int, task_id: str, trial_index: int) -> int:
    """The seed of one trial (63 bits), from the session's seed and the trial's key alone.

    So random state depends neither on the schedule nor on which other trials run.
    """
    import hashlib  # it loads OpenSSL: nothing for a worker, which draws no seeds

    text = f"{seed}\x00{task_id}\x00{trial_index}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class ConcurrencyConfig:
    """How much may run at once. Every limit is at least 1, else ConfigError (a ValueError) naming the field."""

    global_trials: int = 1
    """Trials of the whole benchmark."""
    per_task: int = 1
    """Trials of one task."""
    per_model: Mapping[str, int] | None = None
    """Trials by the agent's ``model``; a model that is not named is bounded by ``global_trials`` only."""
    tool_jobs_per_trial: int = 4
    """Background jobs that run at once inside one trial; further ones wait."""
    configure_apps: int | None = None
    """Trials inside ``configure_additional_apps`` at once; None for no limit of its own."""

    def __post_init__(self) -> None:
        for name in ("global_trials", "per_task", "tool_jobs_per_trial", "configure_apps"):
            if (value := getattr(self, name)) is not None or name != "configure_apps":
                object.__setattr__(self, name, check_count(value, name))
        if self.per_model is not None:
            object.__setattr__(self, "per_model", MappingProxyType(_checked_limits(self.per_model)))


def _checked_limits(per_model: Any) -> dict[str, int]:
    if not isinstance(per_model, Mapping) or not all(isinstance(model, str) for model in per_model):
        raise ConfigError(f"per_model must map a model's name to a number, not {shown(per_model)}")
    return {model: check_count(limit, f"per_model[{model!r}]") for model, limit in per_model.items()}


@dataclass(frozen=True)
class TrialContext:
    """What an agent factory is told about the trial that its agent is for."""

    task_id: str
    trial_index: int
    session_id: str
    benchmark_run_id: str
    seed: int


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """What the supervisor knows of a task without loading its environment."""

    task_id: str
    mode: ConcurrencyMode = "thread"
    parents: tuple[str, ...] = ()
    """The tasks whose outputs this one needs."""
    configures: bool = False
    """Whether its environment has a ``configure_additional_apps`` of its own."""
    fresh: FreshMode = "auto"
    digest: str = ""
    """A short hash of the task's code, data, version and tools: a session is refused to go on with another one."""


class Action(StrEnum):
    """What can be asked of a trial runtime, in-process or in a worker. Arguments in brackets."""

    PROMPT = "prompt"
    """() -> the task's prompt: text, or a list of message parts."""
    GUIDE = "guide"
    """(verbosity) -> prompt, tools and how to submit, as one text."""
    TOOLS = "tools"
    """(verbosity) -> list of OpenAI function schemas."""
    TOOLS_GUIDE = "tools_guide"
    """(verbosity) -> the tools as readable text."""
    EXECUTE = "execute"
    """(tool name, arguments) -> ToolResponse."""
    SUBMIT = "submit"
    """(answer) -> TaskTrialResult."""
    SURRENDER = "surrender"
    """() -> TaskTrialResult."""
    CONFIGURE = "configure"
    """() -> what ``configure_additional_apps`` answered."""
    STATUS = "status"
    """() -> a small dict: attempted, submitted, surrendered, score."""
    STATE = "state"
    """() -> the environment's state as plain data."""


@dataclass(frozen=True, slots=True)
class TrialSpec:
    """What a trial runtime is opened with. ``outputs`` holds the parents' outputs by task id, ``tool_calls`` those that
    were made before, of a trial that is only to be scored again.
    """

    runtime_id: str
    task_id: str
    trial_index: int = 0
    seed: int = 0
    outputs: Mapping[str, Any] = field(default_factory=dict)
    tool_jobs: int = 4
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the trial's state remembers it."""

    tool: str
    arguments: dict[str, Any]
    success: bool
    result: Any = None
    error: str | None = None
    duration: float = 0.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What an agent gets from a tool call. ``error`` is ``TypeName: message`` when ``success`` is False."""

    success: bool
    result: Any = None
    error: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # It is in every answer of a worker: a dataclass's own way of pickling takes three times as long.
        return ToolResponse, (self.success, self.result, self.error)


@dataclass(frozen=True, slots=True)
class WorkerRef:
    """Where a trial ran: the slot, the pid of its worker, the pid of its trial process, and the node."""

    slot: int
    pid: int
    trial_pid: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds that a trial spent in each phase, by a monotonic clock."""

    queued: float = 0.0
    """From the time it was planned until it was admitted and its slot was ready."""
    configured: float = 0.0
    """Building the environment and ``configure_additional_apps``."""
    agent: float = 0.0
    """The agent at work, its tool calls included."""
    scored: float = 0.0
    """Submitting and scoring."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Evidence of one attempt."""

    number: int
    """From 1."""
    failure: FailureKind | None = None
    message: str | None = None
    phase: str | None = None
    """What ran when it failed, such as ``tool titrate``."""
    worker: WorkerRef | None = None
    exit_status: int | None = None
    """Of the trial process: 0 for an ordinary end, negative is the signal's number, Corral's own kills included. None
    where the process was not the trial's alone, or went on."""
    peak_rss: int | None = None
    """Bytes."""
    cpu_seconds: float | None = None
    traceback: str = ""
    output: str = ""
    """The tail of what the trial printed in its process, Python and C level. Empty for trials in the supervisor's."""
    started_at: float | None = None
    """Its admission, in seconds since 1970 UTC by the supervisor's clock."""
    opened: float | None = None
    """Seconds from its admission until its environment was open; None if it never was."""
    seconds: float = 0.0
    """From its admission to its end."""


@dataclass(frozen=True)
class TaskTrialResult:
    """The one final record of a trial."""

    task_id: str
    trial_index: int
    score: float = 0.0
    state: dict[str, Any] = field(default_factory=dict)
    """The environment's final state as plain data: submitted answer, feedback, tool calls, ..."""
    tool_statistics: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per tool: ``calls`` and ``errors``."""
    duration: float = 0.0
    """Seconds from admission to the end, over all attempts."""
    token_usage: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    """The agent's transcript."""
    agent_status: str | None = None
    """The agent's own word on how it ended: ``success``, ``surrender``, ``max_iterations``, ..."""
    error_message: str | None = None
    surrendered: bool = False
    attempts: tuple[Attempt, ...] = ()
    failure: FailureKind | None = None
    graded: bool = True
    worker: WorkerRef | None = None
    timings: Timings = field(default_factory=Timings)
    warnings: tuple[str, ...] = ()
    """What went wrong without changing the result, such as a ``close`` that raised."""

    @property
    def key(self) -> TrialKey:
        """The task's id and the trial's index."""
        return TrialKey(self.task_id, self.trial_index)

    @property
    def trial_id(self) -> str:
        """``task-id#index``: the same in every run of the same plan."""
        return str(self.key)

    @property
    def success(self) -> bool:
        """A score above 0, no error, not surrendered."""
        return self.score > 0 and self.error_message is None and self.failure is None and not self.surrendered

    @classmethod
    def not_graded(cls, key: TrialKey, failure: FailureKind, message: str, **more: Any) -> Self:
        """A record of a trial that the scorer never saw."""
        return cls(*key, failure=failure, error_message=message, graded=failure.graded, **more)
