"""Runs an environment server on a socket that listens: uvicorn, its connections, signals, logs.

Guarantees
    * The first SIGTERM or SIGINT drains: no new trials, what runs may end within ``drain_timeout``; the second ends it
      at once. Then trials, pool and socket file are gone.
    * A connection on which no request comes in full is closed, and takes no place from others for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from corral.app import EnvironmentServer
from corral.errors import ConfigError, EnvStartError, ErrorRecord
from corral.listening import BACKLOG, Address

log = logging.getLogger("corral.server")

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than clients keep theirs, or they would write into a closed one."""
HEAD_TIME = 30.0
"""Seconds, twice at most, that a connection may wait for the head of its first request, or for the rest of a head."""
DESCRIPTORS = 65536
"""Files and connections that a server may have open, where the system allows it."""
QUIET = 10.0
"""Seconds between two lines of the log that say that connections wait."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
ACCEPTS = 32
"""Connections that asyncio accepts in one step; out of descriptors, it tries and fails as often, and goes round and
round. (It takes uvicorn's ``backlog`` for that as well.)"""
LAST_GRACE = 3
"""Seconds for answers under way once nothing runs any more: uvicorn would wait for an open stream for ever."""


class _Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's, but closed when the head of a request does not come: uvicorn waits for it for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin to watch it."""
        super().connection_made(transport)
        self._look = self.loop.call_later(HEAD_TIME, self._look_again, None, False)

    def _look_again(self, served: Any, waited: bool) -> None:
        """Close it if it waits for a head, as it did a HEAD_TIME ago, and was given none meanwhile."""
        waits = self._waits_for_head()
        if waits and waited and self.cycle is served:
            self.transport.close()
        else:
            self._look = self.loop.call_later(HEAD_TIME, self._look_again, self.cycle, waits)

    def _waits_for_head(self) -> bool:
        if self.cycle is None:
            return True
        # Between two requests uvicorn's own timer runs, until the first byte of the next one.
        return bool(self.cycle.response_complete and self.timeout_keep_alive_task is None)

    def connection_lost(self, error: Exception | None) -> None:
        """It ended."""
        self._look.cancel()
        super().connection_lost(error)


def more_descriptors() -> None:
    """Let this process have as many connections as the system allows it: the usual 1024 are soon used up."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _LoopFaults:
    """What goes wrong in the event loop itself, as lines of the log. asyncio tells of every connection that it cannot
    accept, thousands of times a second.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's exception handler."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            log.error("a fault in the event loop", exc_info=error, extra={"facts": {"what": context.get("message")}})
        elif time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + QUIET
            log.warning("connections wait", extra={"facts": {"why": str(error)}})


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
        asyncio.get_running_loop().set_exception_handler(_LoopFaults())
        await super().startup(sockets)
        if self.started:
            for sock in sockets or ():
                sock.listen(BACKLOG)
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


def serve(
    app: EnvironmentServer, sock: socket.socket, address: Address, *, drain_timeout: float, quiet: bool = False
) -> None:
    """Serve on a socket that listens, until a signal. ConfigError or EnvStartError if it cannot start."""
    more_descriptors()
    with _structured_logs():
        if not address.is_local:
            log.warning("reachable from other machines", extra={"facts": {"address": str(address)}})
        config = uvicorn.Config(
            app, http=_Connection, lifespan="on", loop="asyncio", ws="none", log_config=None, access_log=False,
            server_header=False, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=LAST_GRACE, backlog=ACCEPTS,
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
