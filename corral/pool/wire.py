"""How messages become bytes, and bytes messages. No sockets, no clock.

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
from typing import Any, NamedTuple, get_args

from corral.errors import (
    ErrorRecord,
    ProtocolError,
    SerializationError,
)
from corral.lean import dataclass
from corral.pool.messages import Buffer, Done, Frame, Message, Perform
from corral.types import Action, ToolResponse

MAX_FRAME = 2**30
"""Bytes of one frame, 1 GiB: far above any sensible tool result, and low enough that two of them fit in memory."""

MAX_BUFFERS = 1024
"""Buffers of one frame: a result of more arrays than that is sent inside the pickle."""

_MESSAGES = frozenset(get_args(Message)) - {Frame}

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
