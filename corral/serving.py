"""Runs an environment server: its listening socket, uvicorn, signals, logs.

Guarantees
    * The address is taken before anything is loaded, in one step: two servers never pick the same port, and a taken one
      is an error at once that names it.
    * The first SIGTERM or SIGINT drains: no new trials, what runs may end within ``drain_timeout``; the second ends it
      at once. Then trials, pool and socket file are gone.
    * The socket is not inherited by workers: whatever they leave running cannot hold the port.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from types import FrameType
from typing import Any

import uvicorn

from corral.app import EnvironmentServer
from corral.errors import ConfigError, EnvStartError, ErrorRecord

log = logging.getLogger("corral.server")

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients keep theirs, or they would write into a closed one."""
LAST_GRACE = 3
"""Seconds for answers under way once nothing runs any more: uvicorn would wait for an open stream for ever."""
BACKLOG = 2048


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
        sock.bind(where)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


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


class _Uvicorn(uvicorn.Server):
    """uvicorn, but a signal drains first."""

    def __init__(self, config: uvicorn.Config, app: EnvironmentServer, drain_timeout: float, ready: Any) -> None:
        super().__init__(config)
        self._app = app
        self._drain_timeout = drain_timeout
        self._ready = ready
        self._asked = False
        self._deadline: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell."""
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second ends."""
        if self._asked:
            self.should_exit = self.force_exit = True
        self._asked = True

    async def on_tick(self, counter: int) -> bool:
        """Begin to drain, and end when nothing runs any more."""
        if self._asked and self._deadline is None:
            self._deadline = time.monotonic() + self._drain_timeout
            self._app.drain()
        if self._deadline is not None and (self._app.is_quiet or time.monotonic() > self._deadline):
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop. The lifespan's end comes even after a second signal: it is what ends the workers."""
        forced, self.force_exit = self.force_exit, False
        if forced:
            self.config.timeout_graceful_shutdown = 0
        await super().shutdown(sockets)


def serve(app: EnvironmentServer, wanted: Address, *, drain_timeout: float, quiet: bool = False) -> None:
    """Serve until a signal. ConfigError or EnvStartError if it cannot start."""
    with _structured_logs(), listening(wanted) as (sock, address):
        if not address.is_local:
            log.warning("reachable from other machines", extra={"facts": {"address": str(address)}})
        config = uvicorn.Config(
            app, lifespan="on", loop="asyncio", ws="none", log_config=None, access_log=False, server_header=False,
            timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=LAST_GRACE, backlog=BACKLOG,
        )  # fmt: skip

        def ready() -> None:
            if not quiet:
                print(_greeting(app, address), flush=True)  # noqa: T201

        server = _Uvicorn(config, app, drain_timeout, ready)
        try:
            server.run([sock])
        except SystemExit:
            raise _failure(app) from None
        log.info("stopped")


def _failure(app: EnvironmentServer) -> Exception:
    if isinstance(app.failure, ConfigError | EnvStartError):
        return app.failure
    if app.failure is None:
        return EnvStartError("the server did not start")
    return EnvStartError.because("starting the server", ErrorRecord.of(app.failure))


def _greeting(app: EnvironmentServer, address: Address) -> str:
    assert app.front is not None
    service = app.front.service
    pool = f"a pool of {service.pool.size} workers" if service.pool is not None else "no worker pool"
    count = len(service.catalogue)
    tasks = f"{count} task" + ("s" if count != 1 else "")
    return f"corral: serving {tasks} at {address.url} ({app.server_id}, {pool})"


@contextlib.contextmanager
def _structured_logs() -> Iterator[None]:
    """Corral's and uvicorn's log as JSON lines on standard error, unless the program has logging of its own."""
    logger, unrelated = logging.getLogger("corral"), logging.getLogger("uvicorn")
    if logging.getLogger().handlers or logger.handlers:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    before = logger.level, unrelated.level
    logger.setLevel(logging.INFO)
    unrelated.setLevel(logging.CRITICAL)
    logger.addHandler(handler)
    unrelated.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        unrelated.removeHandler(handler)
        logger.setLevel(before[0])
        unrelated.setLevel(before[1])


class _Lines(logging.Formatter):
    """One JSON object a line: time, level, event, and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
