"""What the driver and the agents of nodes say to each other, as bytes. No sockets, no clock.

Purpose
    Only bytes cross the engine: Corral makes and opens these pickles itself, in the driver and in the agent. Neither
    Dask's scheduler nor its workers ever unpickle what is in them. An answer of user code is not even opened by the
    agent: a frame of the pool's wire is passed on as it is.
Assumptions
    Both ends run the same version of Corral; greetings, which tell that, are JSON.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from corral.errors import ConfigError, EnvStartError, ErrorRecord, ProtocolError, TrialError
from corral.pool.agent import AgentSettings
from corral.pool.backend import SlotSpec
from corral.pool.ending import Ending
from corral.pool.messages import Failed, Loaded, ProcessEnded
from corral.pool.starts import InWorker, LostStart, SlowStart
from corral.types import FreshMode

# ---- what an agent is started with, and how it presents itself ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentOrder:
    """The first that an agent reads."""

    settings: AgentSettings
    lease: float
    """Seconds without word from the driver, after which the agent ends all that it started, and itself."""
    path: tuple[str, ...] = ()
    """Where modules are looked for, beside the interpreter's own places."""
    folder: str = ""
    """The current directory, if there is one of that name."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """An agent's first word. It may come of another version than this: so it is JSON, and unknown names are ignored."""

    incarnation: str
    pid: int
    host: str
    cpus: int
    python: str
    corral: str
    cloudpickle: str

    def to_line(self) -> bytes:
        """As a line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> Greeting:
        """Read a line. ValueError if it is none."""
        values = json.loads(line)
        return cls(**{name: values[name] for name in cls.__slots__})


# ---- requests -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker. ``worker`` is the driver's number for it."""

    worker: int
    spec: SlotSpec


@dataclass(frozen=True, slots=True)
class Begin:
    """Have the worker make a trial process. ``process`` is the driver's number for it."""

    worker: int
    process: int
    fresh: FreshMode


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a frame to a trial process and answer with the next one of its. The only request that is no pickle."""

    process: int
    frame: bytes


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Let it finish, or kill it; even one that is still being started, or whose start is yet to be asked for."""

    process: int
    finish: bool = False
    last_words: bool = False
    doom: Failed | None = None
    """Why: what its requests answer with."""


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Stop it in order, or kill it; even one that is still being started."""

    worker: int
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """How much memory a trial process holds."""

    process: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Answer with what has happened since the last answer; with nothing after a while. Shows both that they live."""


@dataclass(frozen=True, slots=True)
class Leave:
    """End everything, and yourself."""


Request = Spawn | Begin | Ask | EndProcess | EndWorker | Measure | Watch | Leave

# ---- answers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerIs:
    """To Spawn: it has loaded."""

    pid: int
    loaded: Loaded
    seconds: float


@dataclass(frozen=True, slots=True)
class NotStarted:
    """To Spawn and Begin: an error, as text."""

    kind: str
    message: str
    record: ErrorRecord | None = None
    output: str = ""

    @classmethod
    def of(cls, error: TrialError | ConfigError | ProtocolError) -> NotStarted:
        """Describe ``error``."""
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _START_ERRORS)
        record, output = getattr(error, "record", None), getattr(error, "output", "")
        return cls(next(kinds, EnvStartError.__name__), str(error), record, output)

    def error(self) -> EnvStartError | ConfigError | ProtocolError:
        """The error again."""
        error = _START_ERRORS[self.kind](self.message)
        if isinstance(error, EnvStartError):
            error.record, error.output = self.record, self.output
        if self.record is not None:
            error.__cause__ = InWorker(self.record.traceback)
        return error


_START_ERRORS: dict[str, type[EnvStartError | ConfigError | ProtocolError]] = {
    kind.__name__: kind for kind in (EnvStartError, LostStart, SlowStart, ConfigError, ProtocolError)
}


@dataclass(frozen=True, slots=True)
class ProcessIs:
    """To Begin and EndProcess: the trial process, or what became of it."""

    pid: int
    end: ProcessEnded | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """To Ask: there is no answer. The facts, or the reason for which it was killed on its node."""

    ending: Ending
    doom: Failed | None = None


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """News: a worker was lost."""

    worker: int
    status: int | None


@dataclass(frozen=True, slots=True)
class News:
    """To Watch."""

    gone: tuple[WorkerGone, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is no such worker or process, or it is gone; or there is nothing to be said."""


@dataclass(frozen=True, slots=True)
class Amount:
    """To Measure: bytes."""

    bytes: int


Answer = WorkerIs | NotStarted | ProcessIs | Unanswered | News | Nothing | Amount

# ---- bytes ----------------------------------------------------------------------------------------------------------

_PICKLE, _FRAME = b"P", b"F"
_ASK = struct.Struct("!cQ")


def pack_request(request: Request) -> bytes:
    """A request as bytes."""
    if isinstance(request, Ask):
        return _ASK.pack(_FRAME, request.process) + request.frame
    return _PICKLE + pickle.dumps(request, protocol=5)


def unpack_request(body: bytes) -> Request:
    """A request from its bytes."""
    if body[:1] == _FRAME:
        return Ask(_ASK.unpack_from(body)[1], body[_ASK.size :])
    return pickle.loads(memoryview(body)[1:])  # type: ignore[no-any-return]


def pack_answer(answer: Answer | bytes) -> bytes:
    """An answer as bytes; ``bytes`` are a frame of a trial process."""
    return _FRAME + answer if isinstance(answer, bytes) else _PICKLE + pickle.dumps(answer, protocol=5)


def unpack_answer(body: bytes) -> Any:
    """An Answer, or the bytes of a frame."""
    return body[1:] if body[:1] == _FRAME else pickle.loads(memoryview(body)[1:])


HEADER = struct.Struct("!QQ")
"""Between a Dask worker and its agent, before each body: the number of the request, and the body's length."""


class Bodies:
    """What a stream of headers and bodies has brought so far."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take what came, and give the bodies that are whole now, each with its request's number."""
        self._data += data
        while len(self._data) >= HEADER.size:
            number, size = HEADER.unpack_from(self._data)
            end = HEADER.size + size
            if len(self._data) < end:
                return
            body = bytes(memoryview(self._data)[HEADER.size : end])
            del self._data[:end]
            yield number, body
