"""SUPERVISOR SIDE. An asynchronous connection to a worker or a trial process, and the private socket they connect to.

Purpose
    The wire is on the path of every tool call, so it uses the raw socket: one ``send`` and one wait for readability.
Guarantees
    Only a process that shows the ticket it was started with is let in, within HELLO_PATIENCE; nothing that it sends is
    unpickled before. The socket is a file in a folder that only this user can enter, or, where that cannot be, a
    loopback port.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
from collections.abc import AsyncIterator
from dataclasses import field
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint_if_cancelled

from corral.errors import ProtocolError
from corral.lean import dataclass
from corral.pool.glance import CHUNK, NO_SIGNAL, Glance, here
from corral.pool.hello import HELLO_SIZE, Ticket, read_hello
from corral.pool.inlet import open_inlet
from corral.pool.messages import Buffer, Message
from corral.pool.wire import Decoder, FrameDecoder, encode

HELLO_PATIENCE = 10.0
"""Seconds that a stranger may take to show its ticket."""
FULL_PAUSE = 0.1
"""Seconds until the next try to let somebody in, where this process has no descriptor left for it."""
TURN = 1e-3
"""Seconds after which answers that come at once let the event loop have its turn."""
MAX_UNIX_PATH = 100
"""Bytes of a Unix socket's path; systems allow 104 to 108."""


class Channel:
    """One end of a connection, asynchronous. anyio.EndOfStream when the other end is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = Decoder()
        self._inlet = open_inlet(sock)
        self._glance = Glance(sock)
        self._receive = partial(sock.recv, CHUNK)
        self._unsent: list[Buffer] = []
        """What is left of a message that was asked."""
        self._looked = False
        """Whether bytes were looked for already, in vain."""
        self.unread = False
        """Whether the other end was gone before it had read all that was sent."""
        self._last_turn = perf_counter()
        """When the event loop last had its turn while this waited."""

    def ask(self, message: Message) -> Message | None:
        """Send a message, and look whether the next one comes at once: None where ``receive`` is to wait for it.

        So a call that is short is one step of the event loop. ``receive`` also sends what could not be sent at once,
        and meets the end of the stream. SerializationError if it cannot be sent; then nothing of it was.
        """
        self._unsent = encode(message, here())
        try:
            if not self._push(self._unsent) or perf_counter() - self._last_turn > TURN:
                return None
            data = self._glance.take(self._decoder.processor)
        except OSError as error:
            self._failed(error)
            return None
        if not data:
            self._looked = data is None
            return None
        self._decoder.feed(data)
        return self._decoder.next()

    async def send(self, message: Message) -> None:
        """Send one message. SerializationError if it cannot be sent; then nothing of it was."""
        parts = encode(message, here())
        try:
            await self._send_all(parts)
        except (OSError, anyio.ClosedResourceError):
            raise anyio.EndOfStream from None

    async def _send_all(self, parts: list[Buffer]) -> None:
        while not self._push(parts):
            await anyio.wait_writable(self._socket)

    def _push(self, parts: list[Buffer]) -> bool:
        """Send what the socket takes, and keep the rest. Whether that was all."""
        while parts:
            try:
                size = self._socket.send(parts[0], NO_SIGNAL)
            except BlockingIOError:
                return False
            if size < len(parts[0]):
                parts[0] = memoryview(parts[0])[size:]
            else:
                del parts[0]
        return True

    async def receive(self) -> Message:
        """Wait for the next message."""
        try:
            if self._unsent:
                await self._send_all(self._unsent)
            while (message := self._decoder.next()) is None:
                space = self._decoder.space()
                if space is not None:
                    size = await self._inlet.read(partial(self._socket.recv_into, space))
                    self._decoder.fill(size)
                else:
                    data = await self._some()
                    size = len(data)
                    self._decoder.feed(data)
                if not size:
                    raise anyio.EndOfStream
        except OSError as error:
            self._failed(error)
            raise anyio.EndOfStream from None
        except anyio.ClosedResourceError:
            raise anyio.EndOfStream from None
        return message

    def _failed(self, error: OSError) -> None:
        # The kernel tells it once: at the end of a stream whose other end had nothing left to read, there is no error.
        self.unread = self.unread or isinstance(error, ConnectionResetError | BrokenPipeError)

    async def _some(self) -> bytes:
        data = None if self._looked else self._glance.take(self._decoder.processor)
        self._looked = False
        if data is None:
            data = await self._inlet.read(self._receive)
            self._glance.learn()
            self._last_turn = perf_counter()
        elif perf_counter() - self._last_turn > TURN:
            await checkpoint_if_cancelled()
            await cancel_shielded_checkpoint()  # the others' turn; what came is not lost if this is cancelled meanwhile
            self._last_turn = perf_counter()
        return data

    def pass_on(self) -> None:
        """From now on receive frames as they are, unread."""
        self._decoder = FrameDecoder()

    def close(self) -> None:
        """Close this end. Who waits on it gets the end of the stream."""
        if self._socket.fileno() >= 0:
            self._inlet.close()
            anyio.notify_closing(self._socket)
            self._socket.close()


@dataclass
class Visitor:
    """A connection that is expected: its ticket, and, once ``arrived`` is set, its channel and pid.

    ``channel`` stays None if the visitor was given up.
    """

    ticket: Ticket
    arrived: anyio.Event = field(default_factory=anyio.Event)
    channel: Channel | None = None
    pid: int = 0

    def give_up(self) -> None:
        """Nobody will come: wake who waits."""
        self.arrived.set()


class Listener:
    """The pool's private socket. Lets in who was given a ticket.

    A trial may remove the temporary folder, and the socket's file with it: who comes next finds a new one there.
    """

    def __init__(self, folder: Path, tasks: TaskGroup) -> None:
        self._folder = folder
        self._tasks = tasks
        self._numbers = count(1)
        self._expected: dict[int, Visitor] = {}
        self._serving: list[anyio.CancelScope] = []
        self._address = self._listen()

    def _listen(self) -> str | tuple[str, int]:
        sock, address = _bind(self._folder)
        self._serving.append(anyio.CancelScope(shield=True))  # a pool that is cancelled lets in whom it has to end
        self._tasks.start_soon(self._serve, sock, self._serving[-1])
        return address

    def expect(self) -> Visitor:
        """Make a ticket; the visitor arrives with it."""
        if isinstance(self._address, str) and not os.path.exists(self._address):
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._address = self._listen()
        visitor = Visitor(Ticket(self._address, next(self._numbers), secrets.token_bytes(32)))
        self._expected[visitor.ticket.number] = visitor
        return visitor

    def forget(self, visitor: Visitor) -> None:
        """The ticket is void from now on."""
        self._expected.pop(visitor.ticket.number, None)

    async def _serve(self, sock: socket.socket, serving: anyio.CancelScope) -> None:
        """Let visitors in, until closed."""
        with sock, serving:
            async with anyio.create_task_group() as tasks:
                while True:
                    await anyio.wait_readable(sock)
                    try:
                        connection, _ = sock.accept()
                    except OSError as error:
                        if error.errno in (errno.EMFILE, errno.ENFILE):  # it stays at the door, and is still readable
                            await anyio.sleep(FULL_PAUSE)
                        continue
                    tasks.start_soon(self._welcome, connection)

    def close(self) -> None:
        """Let nobody in any more."""
        for serving in self._serving:
            serving.cancel()

    async def _welcome(self, connection: socket.socket) -> None:
        with contextlib.ExitStack() as at_the_door:
            at_the_door.callback(connection.close)
            connection.setblocking(False)
            try:
                with anyio.fail_after(HELLO_PATIENCE):
                    number, secret, pid = read_hello(await _read_exactly(connection, HELLO_SIZE))
            except (OSError, anyio.EndOfStream, ProtocolError):  # TimeoutError is an OSError
                return
            visitor = self._expected.get(number)
            if visitor is None or visitor.arrived.is_set() or not visitor.ticket.matches(secret):
                return
            self.forget(visitor)
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            at_the_door.pop_all()
            visitor.channel, visitor.pid = Channel(connection), pid
            visitor.arrived.set()


async def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except BlockingIOError:
            await anyio.wait_readable(connection)
            continue
        if not part:
            raise anyio.EndOfStream
        data += part
    return data


@contextlib.asynccontextmanager
async def open_listener(folder: Path) -> AsyncIterator[Listener]:
    """A listener on a socket in ``folder``; on a loopback port where there can be none."""
    async with anyio.create_task_group() as tasks:
        listener = Listener(folder, tasks)
        try:
            yield listener
        finally:
            listener.close()


def _bind(folder: Path) -> tuple[socket.socket, str | tuple[str, int]]:
    path = str(folder / "pool.sock")
    address: str | tuple[str, int]
    if sock := _bind_file(path):
        address = path
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind(("127.0.0.1", 0))
        address = sock.getsockname()
    sock.listen(128)
    sock.setblocking(False)
    return sock, address


def _bind_file(path: str) -> socket.socket | None:
    """None where sockets are not files, the path is too long for one, or its disk is full."""
    if not hasattr(socket, "AF_UNIX") or len(os.fsencode(path)) > MAX_UNIX_PATH:
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        return None
    return sock
