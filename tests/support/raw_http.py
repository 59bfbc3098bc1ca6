"""A server that says whatever bytes it is told, however slowly: what no web framework would send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

TRICKLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


class RawServer:
    """Answers every connection with ``chunks``, one each ``pause`` seconds, and closes it."""

    def __init__(self, chunks: Sequence[bytes], pause: float = 0.0) -> None:
        self.chunks = chunks
        self.pause = pause
        self.connections = 0
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                for chunk in self.chunks:
                    connection.sendall(chunk)
                    if self._stop.wait(self.pause):
                        return

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        self._thread.start()
        try:
            yield self.url
        finally:
            self._stop.set()
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._thread.join(5)


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def connected(url: str, patience: float = 15.0) -> socket.socket:
    """A connection to the server at ``url``."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(patience)
    return connection


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the other side ends the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def request(method: str, path: str, *headers: str, body: bytes = b"", kind: str | None = "application/json") -> bytes:
    """A request's bytes, as they are told, for a connection of its own."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    if kind is not None:
        lines.append(f"content-type: {kind}")
    if method == "POST":
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
