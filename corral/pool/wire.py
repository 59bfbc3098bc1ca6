"""What the supervisor and its workers say to each other, and how it becomes bytes. No sockets, no clock.

Purpose
    One frame carries one message: a header (the length of the pickle, the number of buffers behind it, the processor
    that its sender ran on), the buffers' lengths, the pickle, the buffers. Large arrays travel as buffers (pickle
    protocol 5) and are not copied into the pickle.
Guarantees
    A reader never unpickles a frame that is not complete, and never one from a peer that has not shown its ticket: the
    hello has a fixed form that needs no unpickling. A frame over MAX_FRAME is refused by the writer, before a byte of
    it is sent, and by the reader, before it is gathered.
Assumptions
    Both ends run the same version of Corral: a worker is started by the supervisor that it talks to.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from corral.errors import (
    TRIAL_ERRORS,
    ConfigError,
    ErrorRecord,
    FailureKind,
    NotFound,
    ProtocolError,
    SerializationError,
    TrialError,
)
from corral.lean import dataclass
from corral.types import Action, FreshMode, TaskInfo, ToolResponse, TrialSpec

if TYPE_CHECKING:
    from corral.pool.main_script import MainScript

Buffer = bytes | bytearray | memoryview

MAX_FRAME = 2**30
"""Bytes of one frame, 1 GiB: far above any sensible tool result, and low enough that two of them fit in memory."""

MAX_BUFFERS = 1024
"""Buffers of one frame: a result of more arrays than that is sent inside the pickle."""

# ---- hello ---------------------------------------------------------------------------------------------------------

_MAGIC = b"CORRAL01"
_HELLO = struct.Struct("!8sQ32sI")
HELLO_SIZE = _HELLO.size


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a process must show to be let in: where to connect, which connection it is for, and a secret."""

    address: str | tuple[str, int]
    """The path of a Unix domain socket, or a loopback host and port."""
    number: int
    secret: bytes

    def hello(self, pid: int) -> bytes:
        """The first bytes that the process sends."""
        return _HELLO.pack(_MAGIC, self.number, self.secret, pid)

    def matches(self, secret: bytes) -> bool:
        """Compare in constant time."""
        import hmac  # the supervisor's business

        return hmac.compare_digest(self.secret, secret)


def read_hello(data: bytes) -> tuple[int, bytes, int]:
    """Number, secret and pid from a hello; ProtocolError if it is none."""
    magic, number, secret, pid = _HELLO.unpack(data)
    if magic != _MAGIC:
        raise ProtocolError("a stranger connected to the pool's socket")
    return number, secret, pid


# ---- messages ------------------------------------------------------------------------------------------------------


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
    main: MainScript | None = None
    """What it imports before it builds."""


@dataclass(frozen=True, slots=True)
class NurserySpec:
    """What the nursery is started with."""

    ticket: Ticket
    log_path: str
    lifeline: str
    """A path that its forks hold open: its other end is the supervisor's."""
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
    """To a worker: the trial process of ticket ``number``, made ahead of time, serves a lease from now on.

    And back: so it is there, and will tell how that one ends.
    """

    number: int


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """From a worker: the trial process of ticket ``number`` runs. From the nursery: the worker of that ticket does."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """From a worker: the trial process of ticket ``number`` ended and nothing of it is left.

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
        """With the exact figures of a process that was the trial's alone and has ended."""
        if end is None:
            return self
        peak, seconds = end.peak_rss or self.peak_rss, end.cpu_seconds or self.cpu_seconds
        return replace(self, peak_rss=peak, cpu_seconds=seconds, exit_status=end.status)

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

_MESSAGES = frozenset(get_args(Message)) - {Frame}

# ---- frames --------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("!QHH")
_LENGTH = struct.Struct("!Q")

NOWHERE = 2**16 - 1
"""The processor of a sender that does not know where it runs."""

_PERFORM, _RESPONSE = "perform", "response"
_ACTIONS = {str(action): action for action in Action}


def _packed(message: Message) -> Any:
    """What is pickled. A tool call and its response, nearly all that is ever sent, go as plain tuples: a third of the
    cost of pickling their classes.
    """
    if type(message) is Perform:
        return _PERFORM, message.runtime_id, str.__str__(message.action), message.arguments
    if type(message) is Done and type(message.value) is ToolResponse:
        return _RESPONSE, message.value.success, message.value.result, message.value.error
    return message


def _unpacked(value: Any) -> Message:
    """The message again. ProtocolError for what is none."""
    if type(value) is tuple and len(value) == 4:
        kind, first, second, third = value
        if kind == _PERFORM:
            return Perform(first, _ACTIONS[second], third)
        if kind == _RESPONSE:
            return Done(ToolResponse(first, second, third))
    if type(value) not in _MESSAGES:
        raise ProtocolError(f"a frame holds a {type(value).__name__}, which is no message")
    message: Message = value
    return message


def encode(message: Message, processor: int = NOWHERE) -> list[Buffer]:
    """The frame of ``message``, as buffers to be sent one behind the other. ``processor``: the one that this runs on.

    Raises SerializationError if it cannot be pickled or is larger than MAX_FRAME.
    """
    if type(message) is Frame:
        return [message.data]
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(_packed(message), protocol=5, buffer_callback=buffers.append)
        views: list[memoryview] = [buffer.raw() for buffer in buffers] if buffers else []
        if len(views) > MAX_BUFFERS:
            body, views = pickle.dumps(_packed(message), protocol=5), []
    except Exception as error:
        record = ErrorRecord.of(error)
        raise SerializationError(f"a value cannot be sent between processes: {record}", record=record) from None
    size = sum((view.nbytes for view in views), len(body)) if views else len(body)
    if size > MAX_FRAME:
        raise SerializationError(
            f"a value of {size / 2**20:.0f} MiB is over the limit of {MAX_FRAME / 2**20:.0f} MiB for one message; "
            "write it to a file in the workspace and send its path"
        )
    header = _HEADER.pack(len(body), len(views), processor)
    if not views:
        return [header + body]
    return [header + b"".join(_LENGTH.pack(view.nbytes) for view in views) + body, *views]


LARGE = 2**18
"""Bytes of a frame above which its bytes are received where they stay, instead of being gathered."""


class _Outline(NamedTuple):
    """Where in a frame its parts are, from the frame's first bytes."""

    start: int
    """Of the pickle."""
    length: int
    """Of the pickle."""
    sizes: tuple[int, ...]
    """Of the buffers behind it."""
    end: int
    processor: int
    """Where its sender ran."""

    @classmethod
    def read(cls, data: bytes | bytearray) -> _Outline | None:
        """None if more bytes are needed. ProtocolError if the bytes are no frame."""
        if len(data) < _HEADER.size:
            return None
        length, count, processor = _HEADER.unpack_from(data)
        if length > MAX_FRAME or count > MAX_BUFFERS:
            raise ProtocolError(f"a frame announces {length} bytes and {count} buffers; that is no frame of ours")
        start = _HEADER.size + count * _LENGTH.size
        if len(data) < start:
            return None
        sizes = ()
        if count:
            sizes = tuple(_LENGTH.unpack_from(data, _HEADER.size + i * _LENGTH.size)[0] for i in range(count))
        end = start + length + sum(sizes)
        if end - start > MAX_FRAME:
            raise ProtocolError(f"a frame announces {end - start} bytes, over the limit of {MAX_FRAME}")
        return cls(start, length, sizes, end, processor)

    def message(self, frame: bytearray) -> Message:
        """The message that a whole frame holds. Its buffers stay where they are."""
        view = memoryview(frame)
        buffers: list[memoryview] = []
        offset = self.start + self.length
        for size in self.sizes:
            buffers.append(view[offset : offset + size])
            offset += size
        return _read(view[self.start : self.start + self.length], buffers)


def _read(body: memoryview, buffers: Sequence[memoryview] = ()) -> Message:
    """The message of a pickle and its buffers."""
    try:
        return _unpacked(pickle.loads(body, buffers=buffers) if buffers else pickle.loads(body))
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(f"a frame cannot be read: {ErrorRecord.of(error)}") from error


@dataclass
class _LargeFrame:
    """A frame that is being received in its place."""

    outline: _Outline
    bytes: bytearray
    filled: int


@dataclass
class Decoder:
    """Bytes in, messages out. Give it what arrives, and take each message when it is whole.

    Where ``space`` is not None, a large frame is under way: its next bytes are best received there, and told by
    ``fill``. All others are fed.
    """

    processor: int = NOWHERE
    """Where the sender of the last message ran."""
    _data: bytes | bytearray = b""
    _large: _LargeFrame | None = None

    def feed(self, data: Buffer) -> None:
        """Add bytes that arrived."""
        if self._large is None:
            if type(data) is bytes and not self._data:
                self._data = data
            else:
                self._data = self._data if isinstance(self._data, bytearray) else bytearray(self._data)
                self._data += data
            return
        rest = memoryview(data)
        space = self.space()
        fits = min(space.nbytes if space else 0, rest.nbytes)
        if space and fits:
            space[:fits] = rest[:fits]
            self.fill(fits)
        self._data += rest[fits:]

    def space(self) -> memoryview | None:
        """Where the rest of the large frame goes that is under way."""
        if self._large is None:
            return None
        return memoryview(self._large.bytes)[self._large.filled :]

    def fill(self, size: int) -> None:
        """So many bytes were received in the space."""
        if self._large is not None:
            self._large.filled += size

    @property
    def pending(self) -> bool:
        """Whether a part of a frame is waiting for its rest."""
        return bool(self._data) or self._large is not None

    def next(self) -> Message | None:
        """The next whole message, or None if more bytes are needed. ProtocolError if the bytes are no frame."""
        if self._large is not None:
            return self._next_large(self._large)
        data = self._data
        if len(data) < _HEADER.size:
            return None
        length, count, processor = _HEADER.unpack_from(data)
        if not count and len(data) == _HEADER.size + length:  # one message without buffers, as nearly all are
            self._data, self.processor = b"", processor
            return _read(memoryview(data)[_HEADER.size :])
        return self._next_of_several(data)

    def _next_of_several(self, data: bytes | bytearray) -> Message | None:
        """Of what is not one whole message without buffers: a part, or several."""
        outline = _Outline.read(data)
        if outline is None:
            return None
        if len(data) < outline.end:
            if outline.end > LARGE:
                frame = bytearray(outline.end)
                frame[: len(data)] = data
                self._large, self._data = _LargeFrame(outline, frame, len(data)), b""
            return None
        frame, self._data = bytearray(data[: outline.end]), data[outline.end :]
        return self._take(outline, frame)

    def _next_large(self, large: _LargeFrame) -> Message | None:
        if large.filled < large.outline.end:
            return None
        self._large = None
        return self._take(large.outline, large.bytes)

    def _take(self, outline: _Outline, frame: bytearray) -> Message:
        self.processor = outline.processor
        return outline.message(frame)


class FrameDecoder(Decoder):
    """Bytes in, whole frames out, for who passes them on and cannot read them."""

    def next(self) -> Message | None:
        """The next whole frame, or None if more bytes are needed. ProtocolError if the bytes are no frame."""
        return self._next_large(self._large) if self._large is not None else self._next_of_several(self._data)

    def _take(self, outline: _Outline, frame: bytearray) -> Message:
        self.processor = outline.processor
        return Frame(frame)
