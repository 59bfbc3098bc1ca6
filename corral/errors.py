"""Every exception that Corral raises, and the kinds of failure that a record can name.

The class writes the sentence; a raise site passes facts only. Who is to blame shows in the branch::

    CorralError
    ├── ConfigError (ValueError)          the caller: an argument, a task graph, a session that does not match
    │   ├── NotInstalled (ImportError)    a package that one of Corral's extras brings
    │   ├── TaskGraphError                unknown ids, cycles, duplicates
    │   └── SessionMismatch               a recorded session whose plan, model or environment differs
    ├── NotFound (LookupError)            the caller: a task, trial or episode that does not exist or is closed
    │   └── OtherTask                     a router bound to a trial was asked about another task
    ├── JournalError                      the session's files: unreadable, locked by another run, not writable
    ├── TrialError                        one attempt of one trial; ``kind`` decides what follows
    │   ├── WorkerDied                    the trial process ended by itself (exit code or signal)
    │   ├── MemoryExceeded                ended because its process tree passed the memory limit
    │   ├── DeadlineExceeded              ended because a time limit passed
    │   │   ├── ToolTimeout               of one tool call
    │   │   └── ConfigureTimeout          of configure_additional_apps
    │   ├── EnvStartError                 the environment could not be loaded, built or set up
    │   ├── ToolError                     a tool broke the trial (it asked the process to exit)
    │   ├── AgentError                    the agent raised
    │   ├── ScoringError                  the scorer raised, or gave something that is no score
    │   ├── SubmissionError               the answer cannot be accepted
    │   ├── SerializationError            a value cannot leave its process
    │   ├── InfrastructureError           what an agent depends on failed: its endpoint, quota or connection
    │   ├── NotRun                        an upstream task of the chain failed
    │   └── Cancelled                     the run was stopped first
    ├── NoSlot                            nobody: the pool has lost slots, and the trial waits for another one
    └── ProtocolError                     Corral itself: please report it
"""

from __future__ import annotations

import re
import signal as _signal
import traceback as _traceback
from enum import StrEnum
from typing import ClassVar, Self

from corral.lean import dataclass

TRACEBACK_LIMIT = 16_384
"""Characters of a traceback kept in a record; the end of it is kept, where the cause stands."""


class FailureKind(StrEnum):
    """Why an attempt has no ordinary result. The kind decides retry, grading and the exit status."""

    WORKER_DIED = "worker_died"
    MEMORY = "memory"
    TRIAL_TIMEOUT = "trial_timeout"
    TOOL_TIMEOUT = "tool_timeout"
    CONFIGURE_TIMEOUT = "configure_timeout"
    ENV_START = "env_start"
    TOOL = "tool"
    AGENT = "agent"
    SCORING = "scoring"
    SUBMISSION = "submission"
    SERIALIZATION = "serialization"
    INFRASTRUCTURE = "infrastructure"
    NOT_RUN = "not_run"
    CANCELLED = "cancelled"

    @property
    def retried(self) -> bool:
        """Whether another attempt may follow: only where the machinery failed, not the trial."""
        return self in _RETRIED

    @property
    def graded(self) -> bool:
        """Whether the trial counts as graded with 0: it ended by the agent's own doing."""
        return self in _GRADED


_RETRIED = frozenset({FailureKind.WORKER_DIED, FailureKind.ENV_START, FailureKind.INFRASTRUCTURE})
_GRADED = frozenset({FailureKind.TRIAL_TIMEOUT, FailureKind.SUBMISSION})


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An exception as text: what crosses process borders and is kept in records.

    Exception objects themselves never cross: a class from a user's script, or one whose ``__init__`` wants more
    than it passes on, cannot be rebuilt on the other side.
    """

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Describe ``error``, its causes and notes."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            message = str(error)
        except Exception:
            message = "<its text cannot be made>"
        try:
            text = "".join(_traceback.format_exception(error))
        except Exception:
            text = f"{name}: {message}"
        return cls(name, message, text[-TRACEBACK_LIMIT:])

    def __str__(self) -> str:
        """The error in one line: ``TypeName: message``."""
        short = self.type.rpartition(".")[2]
        return f"{short}: {self.message}" if self.message else short

    @property
    def with_place(self) -> str:
        """The same, and the last line of the user's own code that it went through: `` (envs.py, line 12)``."""
        own = [frame for frame in _FRAME.findall(self.traceback) if not _is_of_a_library(frame[0])]
        return f"{self} ({own[-1][1]}, line {own[-1][2]})" if own else str(self)


_FRAME = re.compile(r'^[ |]*File "((?:[^"]*[/\\])?([^"/\\<>]+))", line (\d+), in ', re.MULTILINE)
_OURS = __file__.removesuffix("errors.py")
_PYTHONS = str(_traceback.__file__).removesuffix("traceback.py")


def _is_of_a_library(path: str) -> bool:
    """Of Python's, Corral's (its environments aside) or an installed one."""
    ours = path.startswith(_OURS) and not path.removeprefix(_OURS).startswith("envs")
    return ours or path.startswith(_PYTHONS) or "site-packages" in path


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 99`` where the system has no name for it."""
    try:
        return _signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(status: int | None) -> str:
    """How a process ended, from its status: negative is a signal's number, as in ``subprocess``."""
    if status is None:
        return "ended (its exit status is not known)"
    if status < 0:
        return f"was killed by signal {-status} ({signal_name(-status)})"
    return f"ended with exit code {status}"


class CorralError(Exception):
    """The root of the tree."""


class ConfigError(CorralError, ValueError):
    """An argument or a combination of arguments that cannot be used; nothing was started."""


class NotInstalled(ConfigError, ImportError):
    """``what`` needs ``package``, which ``extra`` of Corral brings, and its import failed with ``error``."""

    def __init__(self, what: str, package: str, extra: str, error: ImportError) -> None:
        super().__init__(f"{what} need {package}: pip install 'corral[{extra}]' ({error})")


class TaskGraphError(ConfigError):
    """The tasks do not form a usable dependency graph: unknown or duplicate ids, or a cycle."""


class SessionMismatch(ConfigError):
    """A recorded session was made for another plan, model or environment."""

    def __init__(self, session_id: str, differences: list[str]) -> None:
        self.session_id = session_id
        self.differences = differences
        lines = "".join(f"\n  - {line}" for line in differences)
        super().__init__(
            f"session {session_id!r} was recorded for something else and is left as it is:{lines}\n"
            "Go on with the original settings, or start a new session under another id."
        )


class NotFound(CorralError, LookupError):
    """A task, trial or episode that does not exist, or is closed."""

    def __init__(self, what: str, name: str, known: list[str] | None = None) -> None:
        self.what = what
        self.name = name
        hint = ""
        if known:
            shown = ", ".join(repr(k) for k in known[:10])
            hint = f"; known: {shown}" + (" ..." if len(known) > 10 else "")
        super().__init__(f"there is no {what} {name!r}{hint}" if known else f"no {what} {name!r} is open here")

    def __str__(self) -> str:
        """The sentence, without the quotes that a LookupError would add."""
        return str(self.args[0])


class OtherTask(NotFound):
    """A router that is bound to a trial was asked about another task than the trial's."""

    def __init__(self, asked: object, bound_to: str) -> None:
        super().__init__("task", str(asked))
        self.args = (f"this router is bound to a trial of task {bound_to!r}, and was asked about {asked!r:.200}",)


class JournalError(CorralError):
    """The session's files cannot be read, locked or written."""


class ProtocolError(CorralError):
    """The two sides of a worker's connection disagree: a fault of Corral itself."""


class NoSlot(CorralError):
    """Fewer slots are left than their user shares out, and this trial got none: it is to wait, and is charged nothing.

    ``left``: how many there are.
    """

    def __init__(self, left: int) -> None:
        self.left = left
        super().__init__(f"only {left} slots of the worker pool are left")


class TrialError(CorralError):
    """One attempt of one trial ended without an ordinary result.

    ``record`` holds the original exception as text where there was one; ``exit_status`` how the trial process ended
    (negative: the signal) where it did; ``output`` the tail of what it printed. Who watched the attempt adds ``phase``,
    what ran when it ended, ``worker``, where that was, and, for a trial that never opened, ``closed``: what its
    process has used.
    """

    kind: ClassVar[FailureKind]
    phase: str | None = None
    worker: object = None
    closed: object = None

    def __init__(
        self,
        message: str,
        *,
        record: ErrorRecord | None = None,
        exit_status: int | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.record = record
        self.exit_status = exit_status
        self.output = output


class WorkerDied(TrialError):
    """The trial process ended by itself, in the middle of an attempt."""

    kind = FailureKind.WORKER_DIED

    @classmethod
    def during(
        cls, phase: str, *, pid: int, slot: int, status: int | None, output: str = "", node: str | None = None
    ) -> Self:
        """The trial process ``pid`` on ``slot`` of ``node`` ended while ``phase`` ran."""
        return cls(
            f"the trial process ({_place(pid, slot, node)}) {describe_exit(status)} during {phase}",
            exit_status=status,
            output=output,
        )

    @classmethod
    def with_its_worker(
        cls,
        phase: str,
        *,
        worker: int,
        pid: int,
        slot: int,
        status: int | None,
        output: str = "",
        node: str | None = None,
    ) -> Self:
        """The worker that had made the trial process ended, with exit ``status``, and took it along."""
        return cls(
            f"the worker ({_place(worker, slot, node)}) {describe_exit(status)} during {phase}, and its trial process "
            f"(pid {pid}) with it",
            exit_status=status,
            output=output,
        )

    @classmethod
    def with_its_node(cls, phase: str, *, pid: int, slot: int, node: str, reason: str) -> Self:
        """``node``, where the trial process ran, was lost, for ``reason``."""
        return cls(
            f"node {node} was lost during {phase} ({reason}), and the trial process (pid {pid}, slot {slot}) with it"
        )

    @classmethod
    def lost(
        cls, phase: str, *, pid: int, slot: int, output: str = "", reason: str = "", node: str | None = None
    ) -> Self:
        """The trial process still ran, but its connection was gone, for ``reason``; it was killed."""
        because = f" ({reason})" if reason else ""
        where = f"the trial process ({_place(pid, slot, node)})"
        return cls(f"the connection to {where} was lost during {phase}{because}; it was killed", output=output)


def _place(pid: int, slot: int, node: str | None) -> str:
    return f"pid {pid}, slot {slot}" + (f", node {node}" if node else "")


class MemoryExceeded(TrialError):
    """The trial process's tree passed the memory limit and was killed."""

    kind = FailureKind.MEMORY

    @classmethod
    def during(cls, phase: str, *, limit: int, peak: int, output: str = "") -> Self:
        """``limit`` and ``peak`` in bytes."""
        mib = 2**20
        return cls(
            f"the trial's processes used {peak / mib:.0f} MiB during {phase}, over the memory limit of "
            f"{limit / mib:.0f} MiB, and were killed",
            output=output,
        )


class DeadlineExceeded(TrialError):
    """A time limit passed. Its ``kind`` names which: of the trial, of a tool call, of configuring."""

    kind = FailureKind.TRIAL_TIMEOUT

    @classmethod
    def of_trial(cls, seconds: float) -> Self:
        """The trial's own limit passed."""
        return cls(f"the trial did not end within its limit of {seconds:g} s")

    @classmethod
    def of_call(cls, phase: str, seconds: float) -> Self:
        """One call into the environment did not return in time."""
        return cls(f"{phase} did not end within its limit of {seconds:g} s")


class ToolTimeout(DeadlineExceeded):
    """A tool call did not return within ``tool_timeout``."""

    kind = FailureKind.TOOL_TIMEOUT


class ConfigureTimeout(DeadlineExceeded):
    """``configure_additional_apps`` did not return within ``configure_timeout``."""

    kind = FailureKind.CONFIGURE_TIMEOUT


class EnvStartError(TrialError):
    """The environment could not be loaded, built or set up."""

    kind = FailureKind.ENV_START

    @classmethod
    def because(cls, what: str, record: ErrorRecord) -> Self:
        """``what`` failed with the exception described by ``record``."""
        return cls(f"{what} failed: {record.with_place}", record=record)


class ToolError(TrialError):
    """A tool broke the trial. (A tool that only raises gives the agent a failed call, and the trial goes on.)"""

    kind = FailureKind.TOOL


class AgentError(TrialError):
    """The agent raised, or reported that it could not work."""

    kind = FailureKind.AGENT


class ScoringError(TrialError):
    """The scorer raised, or gave something that is no finite number."""

    kind = FailureKind.SCORING


class SubmissionError(TrialError):
    """The answer cannot be accepted: it is no text or data, or the trial is already over."""

    kind = FailureKind.SUBMISSION


class SerializationError(TrialError):
    """A value cannot leave its process. Names the value's type and where it came from."""

    kind = FailureKind.SERIALIZATION

    @classmethod
    def of_value(cls, where: str, value: object, reason: str = "") -> Self:
        """``value``, from ``where``, cannot be sent."""
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        why = reason or "return numbers, text, lists, dicts or arrays made of it"
        if isinstance(value, complex):
            why = "return its real and imaginary part, as [x.real, x.imag]"
        return cls(f"{where} gave a value of type {kind}, which cannot be sent as data: {why}")


class InfrastructureError(TrialError):
    """What an agent depends on failed: its endpoint, its quota, its connection. Agents raise it."""

    kind = FailureKind.INFRASTRUCTURE

    @classmethod
    def no_answer(cls, address: str, error: Exception, *, reached: bool) -> Self:
        """The environment server at ``address`` does not answer; ``reached``: there was a connection."""
        hint = "" if reached else "; is it running, and is this its address?"
        return cls(f"the environment server at {address} does not answer: {type(error).__name__}: {error}{hint}")


class NotRun(TrialError):
    """The trial was not run because an upstream task of its chain failed."""

    kind = FailureKind.NOT_RUN


class Cancelled(TrialError):
    """The run was stopped before the trial ended."""

    kind = FailureKind.CANCELLED


TRIAL_ERRORS: dict[FailureKind, type[TrialError]] = {
    error.kind: error
    for error in (
        WorkerDied, MemoryExceeded, DeadlineExceeded, ToolTimeout, ConfigureTimeout, EnvStartError, ToolError,
        AgentError, ScoringError, SubmissionError, SerializationError, InfrastructureError, NotRun, Cancelled,
    )
}  # fmt: skip
"""The class of each kind: how an error that crossed a border as text is raised again."""
