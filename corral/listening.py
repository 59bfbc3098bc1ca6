"""The address of an environment server, and the socket that listens there.

Guarantees
    * An address is taken in one step: two servers never pick the same port, and a taken one is an error at once that
      names it.
    * The socket is not inherited by workers: whatever they leave running cannot hold the port.
    * A Unix socket is its user's alone. The file that a killed server left is taken over; one in use never is.
Nothing heavy is imported: the address is taken before a server is loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from corral.errors import ConfigError

BACKLOG = 2048
PROBE_AFTER, PROBE_EVERY, PROBES = 60, 15, 4
"""A connection without a byte for 60 s is probed; after 4 probes without an answer, each 15 s, it ends."""


@dataclass(frozen=True)
class Address:
    """Where to listen: host and port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.uds is not None or self.host in ("localhost", "::1") or self.host.startswith("127.")

    def __str__(self) -> str:
        if self.uds is not None:
            return f"unix:{self.uds}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What a router is given."""
        return str(self) if self.uds is not None else f"http://{self}"


@contextlib.contextmanager
def listening(wanted: Address) -> Iterator[tuple[socket.socket, Address]]:
    """A socket that listens there, and where that is in full. ConfigError if it cannot be."""
    try:
        sock = _unix_socket(wanted.uds) if wanted.uds is not None else _tcp_socket(wanted)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {wanted}: {_reason(error)}") from None
    try:
        port = sock.getsockname()[1] if wanted.uds is None else 0
        yield sock, Address(wanted.host, port, wanted.uds)
    finally:
        sock.close()
        if wanted.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(wanted.uds)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "something else listens there already"
    return str(getattr(error, "strerror", None) or error)


def _tcp_socket(wanted: Address) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        wanted.host, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        # A port that only waits for its last connections to time out is free: a restart works at once.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _notice_lost_peers(sock)
        sock.bind(where)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _notice_lost_peers(sock: socket.socket) -> None:
    """Have connections end whose other machine is gone without a word. Accepted sockets inherit it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", PROBE_AFTER), ("TCP_KEEPINTVL", PROBE_EVERY), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _unix_socket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale(path):
            os.unlink(path)
        old = os.umask(0o177)  # only this user may connect, from the first moment on
        try:
            sock.bind(path)
        finally:
            os.umask(old)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _is_stale(path: str) -> bool:
    """Whether it is the socket file of a server that is gone."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False
