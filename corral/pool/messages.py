"""What the supervisor and its workers say to each other.

Each message says in its first words who sends it to whom. What is in them is data, or values of ``corral.types``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from corral.errors import (
    TRIAL_ERRORS,
    ConfigError,
    ErrorRecord,
    FailureKind,
    NotFound,
    ProtocolError,
    TrialError,
)
from corral.lean import dataclass
from corral.pool.hello import Ticket
from corral.types import Action, FreshMode, TaskInfo, TrialSpec

if TYPE_CHECKING:
    from corral.pool.main_script import MainScript

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What a worker is started with: it travels as the argument of its one call, before there is a connection."""

    ticket: Ticket
    slot: int
    work_root: str
    """A folder of the slot's own, for the workspaces of its trials."""
    log_path: str
    keep_log: bool
    """Whether the log is kept from trial to trial; else it holds the current trial's output only."""
    supervisor: int
    """The pid of the process that the worker is to end with."""
    main: MainScript | None = None
    """What it imports before it builds."""


@dataclass(frozen=True, slots=True)
class NurserySpec:
    """What the nursery is started with."""

    ticket: Ticket
    log_path: str
    supervisor: int
    """The pid of the process that it and its forks are to end with."""
    modules: tuple[str, ...] = ()
    """Of Corral's own, and of what it is made with: what its forks will load anyway."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """To the nursery: fork the worker of ``spec``. Its reports name it by its ticket's number."""

    spec: HostSpec


@dataclass(frozen=True, slots=True)
class Load:
    """To a worker: build the environments. ``builder`` is a cloudpickled function without arguments."""

    builder: bytes
    fresh: FreshMode
    reused: bool = False
    """Whether one process serves many leases: then it says what each trial leaves behind."""
    described: bool = False
    """Whether the pool knows the catalogue already: then the worker's is empty."""
    renewed_after: int | None = None
    """Trials after which another worker takes its place."""


@dataclass(frozen=True, slots=True)
class Imported:
    """From a worker: the main script is imported, and it goes on to build."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """From a worker: the environments are built. ``fresh`` says how it will make fresh processes."""

    catalogue: dict[str, TaskInfo]
    fresh: FreshMode
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """From a worker: building the environments raised. ``refused``: Corral refused them, with a ConfigError."""

    record: ErrorRecord
    refused: bool = False
    of_main: bool = False
    """Whether importing the main script raised it."""


@dataclass(frozen=True, slots=True)
class StartProcess:
    """To a worker: make a trial process that connects with ``ticket``."""

    ticket: Ticket
    fresh: FreshMode
    ahead: bool = False
    """Whether no lease waits for it yet: ``Serves`` says when one has it."""


@dataclass(frozen=True, slots=True)
class Serves:
    """To a worker: the trial process of ticket ``number``, made ahead of time, serves a lease from now on."""

    number: int


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """From a worker: the trial process of ticket ``number`` runs. From the nursery: the worker of that ticket does."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """From a worker: the trial process of ticket ``number`` ended and nothing of it is left, but what is ``left``.

    From the nursery: the worker of that ticket ended, and how.
    """

    number: int
    status: int | None
    """Exit code; negative is the signal's number, as in ``subprocess``. None if it could not be started."""
    peak_rss: int = 0
    """Bytes."""
    cpu_seconds: float = 0.0
    output: bytes = b""
    """The tail of what it printed."""
    record: ErrorRecord | None = None
    """Why it could not be started."""
    log_end: int = 0
    """Where its slot's log ended then."""
    left: tuple[str, ...] = ()
    """What it left running and its worker may not kill: in words, which process and whose."""

    def printed_since(self, position: int) -> str:
        """What it printed last, without what stood in its slot's log before ``position``: that is of other trials."""
        own = max(0, self.log_end - position) if position else len(self.output)
        return self.output[max(0, len(self.output) - own) :].decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Open:
    """To a trial process: open a trial runtime."""

    spec: TrialSpec


@dataclass(frozen=True, slots=True)
class Perform:
    """To a trial process: ask something of an open trial runtime."""

    runtime_id: str
    action: Action
    arguments: tuple[Any, ...] = ()


NOBODY = "nobody"
"""The id of no trial: to close it is to ask whether the process is there."""


@dataclass(frozen=True, slots=True)
class Close:
    """To a trial process: close a trial runtime."""

    runtime_id: str
    last: bool = False
    """Whether nothing follows: it then ends, as by Finish."""


@dataclass(frozen=True, slots=True)
class Finish:
    """To a trial process: close what is open and end. To a worker: end, with all that it started."""


@dataclass(frozen=True, slots=True)
class Done:
    """From a trial process: what the request gave."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """From a trial process: the request failed; what kind of failure, and its text."""

    kind: FailureKind
    message: str
    record: ErrorRecord | None = None
    output: str = ""

    @classmethod
    def of(cls, error: TrialError) -> Failed:
        """Describe ``error`` as data."""
        return cls(error.kind, str(error), error.record, error.output)

    def error(self) -> TrialError:
        """The error again, of the class of its kind."""
        return TRIAL_ERRORS[self.kind](self.message, record=self.record, output=self.output)


@dataclass(frozen=True, slots=True)
class Refused:
    """From a trial process: the request was the caller's mistake, and nothing happened."""

    message: str
    missing: tuple[str, str] | None = None
    """What does not exist here, and its name; None for an argument that cannot be used."""

    def error(self) -> NotFound | ConfigError:
        """The error again."""
        return NotFound(*self.missing) if self.missing else ConfigError(self.message)


def value_of(answer: object) -> Any:
    """What a trial process's answer to a request gives. It raises the error that it is; ProtocolError for no answer."""
    match answer:
        case Done(value):
            return value
        case Failed() | Refused():
            raise answer.error()
        case _:
            raise ProtocolError(f"a trial process answered with a {type(answer).__name__}")


@dataclass(frozen=True, slots=True)
class Opened:
    """The value of an Open: the trial's workspace."""

    workspace: str
    log_start: int = 0
    """Where its output begins in its slot's log."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The value of a Close: what went wrong without changing the result, and what the trial's process has used."""

    warnings: tuple[str, ...] = ()
    peak_rss: int = 0
    """Bytes: of the process, so far, or once it has ended."""
    cpu_seconds: float = 0.0
    """Since the trial was opened."""
    exit_status: int | None = None
    """How its process ended: negative is a signal's number. None where it goes on, or was not the trial's alone."""
    output: str = ""
    """The tail of what the trial printed."""
    log_end: int = 0
    """Where its output ends in its slot's log."""

    def completed(self, end: ProcessEnded | None) -> Closed:
        """With what is known of a process that was the trial's alone once it has ended: exact figures, what it left."""
        if end is None:
            return self
        peak, seconds = end.peak_rss or self.peak_rss, end.cpu_seconds or self.cpu_seconds
        warnings = (*self.warnings, *(f"{what} was left running: it may not be killed from here" for what in end.left))
        return replace(self, warnings=warnings, peak_rss=peak, cpu_seconds=seconds, exit_status=end.status)

    def to_dict(self) -> dict[str, Any]:
        """As a router gives it."""
        return {
            "warnings": list(self.warnings), "peak_rss": self.peak_rss, "cpu_seconds": self.cpu_seconds,
            "exit_status": self.exit_status, "output": self.output,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Frame:
    """A message that is passed on as it came: who does so does not know what it is."""

    data: Buffer


Message = (
    StartWorker | Load | Imported | Loaded | LoadFailed | StartProcess | Serves | ProcessStarted | ProcessEnded
    | Open | Perform | Close | Finish | Done | Failed | Refused | Frame
)  # fmt: skip
