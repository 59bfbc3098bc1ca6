"""The wire: bytes in, messages out. Whole, in parts, too large, and from strangers."""

from __future__ import annotations

import pickle
import struct
import threading
from typing import Any

import numpy as np
import pytest

from corral.errors import (
    ConfigError,
    EnvStartError,
    ErrorRecord,
    FailureKind,
    NotFound,
    ProtocolError,
    SerializationError,
)
from corral.pool import wire
from corral.pool.hello import HELLO_SIZE, Ticket, read_hello
from corral.pool.messages import (
    Close,
    Closed,
    Done,
    Failed,
    Finish,
    Frame,
    HostSpec,
    Imported,
    Load,
    Loaded,
    LoadFailed,
    Message,
    Open,
    Opened,
    Perform,
    ProcessEnded,
    ProcessStarted,
    Refused,
    Serves,
    StartProcess,
    StartWorker,
)
from corral.pool.wire import LARGE, MAX_BUFFERS, MAX_FRAME, NOWHERE, Decoder, FrameDecoder, encode
from corral.types import Action, TaskInfo, TrialSpec

TICKET = Ticket("/tmp/pool.sock", 7, b"s" * 32)

MESSAGES: list[Message] = [
    StartWorker(HostSpec(TICKET, 0, "/tmp/slot-0", "/tmp/slot-0.log", False, 1234)),
    Load(b"builder", "auto"),
    Imported(),
    Loaded({"a": TaskInfo("a", "process", ("b",))}, "fork", ("left open",)),
    LoadFailed(ErrorRecord("ImportError", "no such module", "Traceback ...")),
    StartProcess(TICKET, "spawn"),
    Serves(7),
    ProcessStarted(7, 1234),
    ProcessEnded(7, -11, 2**20, 0.5, b"its last words", ErrorRecord("OSError", "no memory")),
    Open(TrialSpec("tr_1", "a", 3, 99, {"b": {"answer": 1}})),
    Perform("tr_1", Action.EXECUTE, ("titrate", {"volume": 1.5})),
    Close("tr_1"),
    Finish(),
    Done(Opened("/tmp/workspace")),
    Done(Closed(("close raised",), 1, 2.0)),
    Failed(FailureKind.TOOL, "the tool asked to exit", ErrorRecord("SystemExit", "3")),
    Refused("no trial 'tr_1' is open here", ("trial", "tr_1")),
]


def as_bytes(message: Message) -> bytes:
    return b"".join(encode(message))


def decode_all(decoder: Decoder) -> list[Message]:
    found = []
    while (message := decoder.next()) is not None:
        found.append(message)
    return found


def decoded(data: bytes) -> list[Message]:
    decoder = Decoder()
    decoder.feed(data)
    return decode_all(decoder)


def value_of(message: Message | None) -> Any:
    assert isinstance(message, Done)
    return message.value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decoded(as_bytes(message)) == [message]


def test_the_sample_above_holds_every_kind_of_message() -> None:
    assert {type(message) for message in MESSAGES} == set(Message.__args__) - {Frame}


def test_frames_are_passed_on_as_they_came() -> None:
    whole = as_bytes(Done("x" * 1000)) + as_bytes(Done(bytes(2 * LARGE)))
    decoder, out = FrameDecoder(), b""
    for position in range(0, len(whole), 100_000):
        decoder.feed(whole[position : position + 100_000])
        while (frame := decoder.next()) is not None:
            assert isinstance(frame, Frame)
            out += b"".join(bytes(part) for part in encode(frame))
    assert out == whole


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_byte_by_byte_the_message_comes_with_the_last_byte(message: Message) -> None:
    decoder, data = Decoder(), as_bytes(message)
    for position in range(len(data) - 1):
        decoder.feed(data[position : position + 1])
        assert decoder.next() is None
        assert decoder.pending
    decoder.feed(data[-1:])
    assert decoder.next() == message
    assert not decoder.pending


def test_many_frames_in_one_feed_keep_their_order_and_the_rest_waits() -> None:
    decoder = Decoder()
    whole = b"".join(map(as_bytes, MESSAGES))
    last = as_bytes(Done("last"))
    decoder.feed(whole + last[:-1])
    assert decode_all(decoder) == MESSAGES
    assert decoder.pending
    decoder.feed(last[-1:])
    assert decode_all(decoder) == [Done("last")]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1000])
def test_where_the_stream_is_cut_makes_no_difference(chunk: int) -> None:
    data = b"".join(as_bytes(Done({"array": np.arange(n), "n": n})) for n in range(20))
    decoder, found = Decoder(), []
    for position in range(0, len(data), chunk):
        decoder.feed(data[position : position + chunk])
        found += decode_all(decoder)
    assert [value_of(message)["array"].tolist() for message in found] == [list(range(n)) for n in range(20)]
    assert not decoder.pending


def test_two_ends_paired_in_memory_answer_each_other() -> None:
    supervisor, worker = Decoder(), Decoder()
    worker.feed(as_bytes(Open(TrialSpec("tr_1", "a"))))
    request = worker.next()
    assert isinstance(request, Open)
    supervisor.feed(as_bytes(Done(request.spec.task_id)))
    assert supervisor.next() == Done("a")


# ---- buffers ----


@pytest.mark.parametrize("chunk", [1000, LARGE - 1, LARGE + 1, 10 * LARGE])
def test_large_frames_between_small_ones_come_whole_however_they_are_cut(chunk: int) -> None:
    arrays = [np.arange(10), np.arange(LARGE), np.arange(5), np.arange(2 * LARGE)]
    data = b"".join(as_bytes(Done(array)) for array in arrays)
    decoder, found = Decoder(), []
    for position in range(0, len(data), chunk):
        decoder.feed(data[position : position + chunk])
        while (message := decoder.next()) is not None:
            found.append(value_of(message))
    assert not decoder.pending
    assert [array.tolist() for array in found] == [array.tolist() for array in arrays]


def test_the_rest_of_a_large_frame_is_received_in_its_place() -> None:
    data = as_bytes(Done(np.arange(LARGE)))
    decoder = Decoder()
    decoder.feed(data[:100])
    assert decoder.next() is None
    space = decoder.space()
    assert space is not None
    assert space.nbytes == len(data) - 100
    space[:500] = data[100:600]
    decoder.fill(500)
    assert decoder.next() is None
    assert decoder.pending
    rest = decoder.space()
    assert rest is not None
    rest[:] = data[600:]
    decoder.fill(rest.nbytes)
    message = decoder.next()
    assert message is not None
    assert np.shares_memory(value_of(message), np.frombuffer(space, dtype=np.uint8)), "the array was copied"
    assert value_of(message).tolist() == list(range(LARGE))
    assert decoder.space() is None


def test_small_frames_are_fed() -> None:
    decoder = Decoder()
    decoder.feed(as_bytes(Done("x" * 1000))[:500])
    assert decoder.next() is None
    assert decoder.space() is None


def test_arrays_travel_behind_the_pickle_not_in_it() -> None:
    array = np.arange(100_000, dtype=np.float64)
    first, *buffers = encode(Done(array))
    assert len(first) < 1000
    assert [memoryview(buffer).nbytes for buffer in buffers] == [array.nbytes]
    assert np.shares_memory(np.frombuffer(buffers[0]), array), "the array was copied"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.arange(20)[::2],
        np.zeros(0),
        np.array(3.5),
        np.array(["a", "bc"]),
        np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    ],
    ids=["c_order", "fortran_order", "strided", "empty", "scalar", "text", "record"],
)
def test_arrays_of_every_shape_come_back_equal_and_writable(array: np.ndarray[Any, Any]) -> None:
    (message,) = decoded(as_bytes(Done(array)))
    back = value_of(message)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)
    back[...] = back[..., ::-1] if back.ndim else back


def test_a_pickle_buffer_of_a_bytearray_is_sent_without_a_copy() -> None:
    data = bytearray(b"x" * 50_000)
    first, buffer = encode(Done(pickle.PickleBuffer(data)))
    assert len(first) < 200
    assert memoryview(buffer).obj is data
    (message,) = decoded(bytes(first) + bytes(buffer))
    assert bytes(value_of(message)) == data


def test_more_buffers_than_a_frame_takes_go_into_the_pickle() -> None:
    arrays = [np.full(3, n) for n in range(MAX_BUFFERS + 1)]
    parts = encode(Done(arrays))
    assert len(parts) == 1
    (message,) = decoded(bytes(parts[0]))
    assert [int(array[0]) for array in value_of(message)] == list(range(MAX_BUFFERS + 1))


def test_a_message_does_not_change_when_the_next_one_arrives() -> None:
    decoder = Decoder()
    decoder.feed(as_bytes(Done(np.arange(5))) + as_bytes(Done(np.zeros(5))))
    first = value_of(decoder.next())
    decoder.next()
    decoder.feed(b"\xff" * 1000)
    assert first.tolist() == [0, 1, 2, 3, 4]


# ---- what cannot be sent ----


class Unreducible:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


def recursive(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (threading.Lock(), "lock"),
        (lambda: 1, "lambda"),
        (Unreducible(), "not me"),
        (pickle.PickleBuffer(memoryview(b"0123456789")[::2]), "non-contiguous"),
        (recursive(100_000), "RecursionError"),
    ],
    ids=["lock", "lambda", "reduce_raises", "strided_buffer", "too_deep"],
)
def test_what_cannot_be_pickled_is_refused_by_name(value: object, named: str) -> None:
    with pytest.raises(SerializationError, match=named):
        encode(Done(value))


def test_a_value_over_the_limit_is_refused_before_a_byte_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME", 2 * 2**20)
    assert encode(Done(np.zeros(2**20, dtype=np.uint8)))
    with pytest.raises(SerializationError, match="3 MiB is over the limit of 2 MiB"):
        encode(Done(np.zeros(3 * 2**20, dtype=np.uint8)))
    with pytest.raises(SerializationError, match="write it to a file"):
        encode(Done(b"x" * (3 * 2**20)))


def test_a_frame_over_the_limit_is_refused_before_it_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = as_bytes(Done(np.zeros(3000, dtype=np.uint8)))
    monkeypatch.setattr(wire, "MAX_FRAME", 2000)
    decoder = Decoder()
    decoder.feed(frame[:100])
    with pytest.raises(ProtocolError, match="limit of 2000"):
        decoder.next()


@pytest.mark.parametrize(
    "value",
    ["small", "x" * 2 * LARGE, np.arange(9), np.arange(2 * LARGE)],
    ids=["small", "large", "array", "large array"],
)
def test_a_frame_tells_where_its_sender_ran(value: object) -> None:
    decoder = Decoder()
    assert decoder.processor == NOWHERE
    for part in encode(Done(value), 5):
        decoder.feed(part)
    assert isinstance(decoder.next(), Done)
    assert decoder.processor == 5
    for part in encode(Done(value)):
        decoder.feed(part)
    assert isinstance(decoder.next(), Done)
    assert decoder.processor == NOWHERE


# ---- what is no frame of ours ----


@pytest.mark.parametrize(
    ("length", "count"),
    [(MAX_FRAME + 1, 0), (2**64 - 1, 0), (10, MAX_BUFFERS + 1), (10, 2**16 - 1)],
)
def test_a_garbage_header_is_refused_at_once(length: int, count: int) -> None:
    decoder = Decoder()
    decoder.feed(struct.pack("!QHH", length, count, 0))
    with pytest.raises(ProtocolError, match="no frame of ours"):
        decoder.next()


def test_text_instead_of_a_frame_is_refused() -> None:
    decoder = Decoder()
    decoder.feed(b"Hello, this is a C library saying hello\n")
    with pytest.raises(ProtocolError):
        decoder.next()


def test_a_frame_of_garbage_bytes_is_refused() -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        decoded(struct.pack("!QHH", 10, 0, 0) + b"\xff" * 10)


@pytest.mark.parametrize("value", [{"a": 1}, None, Opened("/w"), TICKET], ids=["dict", "none", "opened", "ticket"])
def test_a_pickle_that_is_no_message_is_refused(value: object) -> None:
    body = pickle.dumps(value)
    with pytest.raises(ProtocolError, match=f"holds a {type(value).__name__}"):
        decoded(struct.pack("!QHH", len(body), 0, 0) + body)


def test_a_truncated_frame_is_never_unpickled() -> None:
    """Not even when what arrived so far would be a pickle by itself."""
    body = pickle.dumps(Finish())
    decoder = Decoder()
    decoder.feed(struct.pack("!QHH", len(body) + 1, 0, 0) + body)
    assert decoder.next() is None
    assert decoder.pending


def test_a_frame_whose_buffers_are_missing_waits_for_them() -> None:
    first, buffer = encode(Done(np.arange(1000)))
    decoder = Decoder()
    decoder.feed(first)
    assert decoder.next() is None
    decoder.feed(buffer)
    assert value_of(decoder.next()).sum() == 499_500


# ---- hello ----


def test_hello_round_trip() -> None:
    hello = TICKET.hello(4321)
    assert len(hello) == HELLO_SIZE
    number, secret, pid = read_hello(hello)
    assert (number, pid) == (7, 4321)
    assert TICKET.matches(secret)


@pytest.mark.parametrize("secret", [b"t" * 32, b"", b"s" * 31, b"s" * 33])
def test_a_wrong_secret_does_not_match(secret: bytes) -> None:
    assert not TICKET.matches(secret)


def test_a_wrong_magic_is_a_stranger() -> None:
    with pytest.raises(ProtocolError, match="stranger"):
        read_hello(b"GET / HT" + TICKET.hello(1)[8:])


def test_a_failure_is_raised_again_as_the_class_of_its_kind() -> None:
    record = ErrorRecord("KeyError", "'x'", "Traceback ...")
    (message,) = decoded(as_bytes(Failed.of(EnvStartError("no environment", record=record))))
    assert isinstance(message, Failed)
    error = message.error()
    assert type(error) is EnvStartError
    assert str(error) == "no environment"
    assert error.record == record


def test_a_mistake_of_the_caller_is_raised_again_as_such() -> None:
    missing = Refused("no trial 'tr_1' is open here", ("trial", "tr_1")).error()
    assert isinstance(missing, NotFound)
    assert (missing.what, missing.name, str(missing)) == ("trial", "tr_1", "no trial 'tr_1' is open here")
    bad = Refused("verbosity must be ...").error()
    assert isinstance(bad, ConfigError)
    assert str(bad) == "verbosity must be ..."
