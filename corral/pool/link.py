"""WORKER SIDE. A blocking connection to the supervisor: one message in, one message out.

Kept apart from the supervisor's asynchronous channel on purpose: a worker waits for one thing at a time and needs no
event loop, so it stays small and has one thread, which is what makes its forks sound.
"""

from __future__ import annotations

import os
import select
import socket

from corral.pool.glance import CHUNK, Glance, here
from corral.pool.hello import Ticket
from corral.pool.messages import Message
from corral.pool.wire import Decoder, encode


class Link:
    """One end of a connection, blocking. ``receive`` gives None when the other end is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = Decoder()
        self._glance = Glance(sock, steps_aside=True)

    @classmethod
    def connect(cls, ticket: Ticket) -> Link:
        """Connect to the supervisor and show the ticket."""
        family = socket.AF_UNIX if isinstance(ticket.address, str) else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.connect(ticket.address)
        if family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(ticket.hello(os.getpid()))
        return cls(sock)

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
            self._socket.sendall(part)

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
