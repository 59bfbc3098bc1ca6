"""WORKER SIDE. A blocking connection to the supervisor: one message in, one message out.

Kept apart from the supervisor's asynchronous channel on purpose: a worker waits for one thing at a time and needs no
event loop, so it stays small and has one thread, which is what makes its forks sound.
"""

from __future__ import annotations

import os
import select
import socket

from corral.pool.glance import CHUNK, NO_SIGNAL, Glance, here
from corral.pool.guards import LIFELINE
from corral.pool.hello import Ticket
from corral.pool.messages import Message
from corral.pool.wire import Decoder, encode


def _connected(ticket: Ticket) -> socket.socket:
    family = socket.AF_UNIX if isinstance(ticket.address, str) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.connect(ticket.address)
    if family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(ticket.hello(os.getpid()), NO_SIGNAL)
    return sock


class Link:
    """One end of a connection, blocking. ``receive`` gives None when the other end is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = Decoder()
        self._glance = Glance(sock, steps_aside=True)

    @staticmethod
    def connect(ticket: Ticket) -> Link:
        """Connect to the supervisor and show the ticket."""
        return Link(_connected(ticket))

    def fileno(self) -> int:
        """The descriptor, to be watched."""
        return self._socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether more was received than was asked for: it makes the descriptor readable no more."""
        return self._decoder.pending

    def is_waiting(self) -> bool:
        """Whether something has come, or the other end is gone: ``receive`` would not wait for its first bytes."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return self.pending or bool(poll.poll(0))

    def send(self, message: Message) -> None:
        """Send one message. SerializationError if it cannot be; OSError if the other end is gone."""
        for part in encode(message, here()):
            self._socket.sendall(part, NO_SIGNAL)

    def receive(self) -> Message | None:
        """Wait for the next message; None at the end of the connection."""
        while (message := self._decoder.next()) is None:
            space = self._decoder.space()
            if space is not None:
                size = self._fill(space)
                self._decoder.fill(size)
            else:
                data = self._some()
                size = len(data)
                self._decoder.feed(data)
            if not size:
                return None
        return message

    def _fill(self, space: memoryview) -> int:
        try:
            return self._socket.recv_into(space, 0, socket.MSG_WAITALL)
        except OSError:
            return 0

    def _some(self) -> bytes:
        try:
            if (data := self._glance.take(self._decoder.processor)) is not None:
                return data
            return self._socket.recv(CHUNK)
        except OSError:
            return b""
        finally:
            self._glance.learn()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


class WatchedLink(Link):
    """A link that is at its end when the supervisor is, whoever else holds a copy of the other end.

    For those that nobody else ends. It costs a look at each wait, which a trial process, that dies with its worker, is
    spared.
    """

    def __init__(self, sock: socket.socket, lifeline: int) -> None:
        super().__init__(sock)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._poll.register(lifeline, LIFELINE)

    @staticmethod
    def to(ticket: Ticket, lifeline: int) -> WatchedLink:
        """Connect. ``lifeline`` is one of ``guards.lifeline``."""
        return WatchedLink(_connected(ticket), lifeline)

    def _is_over(self) -> bool:
        """Wait for something. Whether it is that nothing will come: what the supervisor has sent is read first."""
        return self._socket.fileno() not in {descriptor for descriptor, _ in self._poll.poll()}

    def _fill(self, space: memoryview) -> int:
        try:
            return 0 if self._is_over() else self._socket.recv_into(space)
        except OSError:
            return 0

    def _some(self) -> bytes:
        return b"" if self._is_over() else super()._some()
