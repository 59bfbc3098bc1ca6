"""What runs in the processes of the peers. Standard library only: loading this module is part of what they take."""

from __future__ import annotations

import pickle
import struct
import time
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LENGTH = struct.Struct("!Q")


def echo(value: Any) -> Any:
    """Give back the value."""
    return value


def nothing(number: int = 0) -> int:
    """A task without work."""
    return number


def wait(seconds: float) -> float:
    """A task that waits."""
    time.sleep(seconds)
    return seconds


def load(*modules: str) -> None:
    """Import modules."""
    for name in modules:
        __import__(name)


def serve_pipe(pipe: Connection) -> None:
    """Send back what comes over a pipe, until it is None."""
    while (value := pipe.recv()) is not None:
        pipe.send(value)


def send_with_buffers(pipe: Connection, value: Any) -> None:
    """Pickle protocol 5: what is large travels beside the pickle, not inside it."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pipe.send_bytes(LENGTH.pack(len(buffers)) + data)
    for buffer in buffers:
        pipe.send_bytes(buffer.raw())


def receive_with_buffers(pipe: Connection) -> Any:
    """The other end of ``send_with_buffers``."""
    head = memoryview(pipe.recv_bytes())
    (number,) = LENGTH.unpack_from(head)
    return pickle.loads(head[LENGTH.size :], buffers=[pipe.recv_bytes() for _ in range(number)])


def serve_pipe_with_buffers(pipe: Connection) -> None:
    """``serve_pipe`` with protocol 5."""
    while (value := receive_with_buffers(pipe)) is not None:
        send_with_buffers(pipe, value)


def send_frame(sock: socket, data: Any) -> None:
    """Bytes behind their length."""
    sock.sendall(LENGTH.pack(len(data)))
    sock.sendall(data)


def receive_frame(sock: socket) -> bytearray | None:
    """The bytes of one frame; None at the end."""
    head = sock.recv(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    data = bytearray(LENGTH.unpack(head)[0])
    view = memoryview(data)
    while view:
        view = view[sock.recv_into(view) :]
    return data


def serve_socket(sock: socket) -> None:
    """Send back the frames that come over a socket: bytes as they are, nothing is pickled."""
    while (data := receive_frame(sock)) is not None:
        send_frame(sock, data)


def meet(path: str) -> None:
    """Connect to a socket, and wait there until the other end lets go."""
    with socket(AF_UNIX) as sock:
        sock.connect(path)
        sock.send(b".")
        sock.recv(1)
