"""How a process shows the supervisor that it is expected. No sockets.

Purpose
    Who connects says a ticket's number and secret, and its pid, in a fixed form that needs no unpickling: nothing that
    a stranger sends is ever unpickled.
"""

from __future__ import annotations

import struct

from corral.errors import ProtocolError
from corral.lean import dataclass

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
