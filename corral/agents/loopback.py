"""Serves an ASGI application on the loopback interface, from a daemon thread with an event loop of its own.

Why a thread: uvicorn needs asyncio, and who serves may run on trio or on no event loop at all.
Guarantees: when ``serving`` begins, the server answers; when it ends, the port is closed and the thread has ended.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio

from corral.errors import ConfigError, CorralError
from corral.threads import call_blocking

GRACE = 1
"""Seconds that requests under way get at the end."""


class LoopbackServer:
    """One application on a free port of 127.0.0.1."""

    def __init__(self, app: Callable[..., Any]) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise ConfigError("serving an application here needs uvicorn: pip install 'corral[server]'") from error
        config = uvicorn.Config(app, log_level="critical", lifespan="auto", timeout_graceful_shutdown=GRACE)
        self._server = uvicorn.Server(config)
        self._socket = socket.socket()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="corral-loopback", daemon=True)
        self.url = ""

    def start(self) -> str:
        """Start to serve; the address, ``http://127.0.0.1:PORT``."""
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(128)
        self.url = "http://{}:{}".format(*self._socket.getsockname())
        startup = self._server.startup

        async def announced(*args: Any, **kwargs: Any) -> None:
            await startup(*args, **kwargs)
            self._settled.set()

        self._server.startup = announced  # type: ignore[method-assign]
        self._thread.start()
        self._settled.wait()
        if not self._server.started:
            self._thread.join()
            raise CorralError("the application did not start")
        return self.url

    def _run(self) -> None:
        with contextlib.suppress(SystemExit):
            try:
                self._server.run(sockets=[self._socket])
            finally:
                self._socket.close()
                self._settled.set()

    def stop(self) -> None:
        """Stop serving, and wait until it has."""
        self._server.should_exit = True
        self._thread.join()


@contextlib.contextmanager
def serving(app: Callable[..., Any]) -> Iterator[str]:
    """Serve ``app`` while the block runs; gives its address."""
    server = LoopbackServer(app)
    url = server.start()
    try:
        yield url
    finally:
        server.stop()


@contextlib.asynccontextmanager
async def serving_async(app: Callable[..., Any]) -> AsyncIterator[str]:
    """The same in an event loop, asyncio or trio, which goes on meanwhile."""
    server = LoopbackServer(app)
    url = await call_blocking(server.start)
    try:
        yield url
    finally:
        with anyio.CancelScope(shield=True):
            await call_blocking(server.stop)
