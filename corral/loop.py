"""An event loop in a daemon thread, for synchronous code that uses asynchronous parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

import anyio

from corral.errors import CorralError
from corral.threads import Bridge

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopThread:
    """Runs coroutines for any thread. The loop starts with the first call and ends with ``close``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bridge: Bridge | None = None
        self._stop: anyio.Event | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Run ``function(*args)`` on the loop and wait for it."""
        return self._started().call(function, *args)

    def _started(self) -> Bridge:
        with self._lock:
            if self._closed:
                raise CorralError("this router is closed")
            if self._bridge is None:
                running = threading.Event()
                self._thread = threading.Thread(target=anyio.run, args=(self._main, running), daemon=True)
                self._thread.start()
                running.wait()
            assert self._bridge is not None
            return self._bridge

    async def _main(self, running: threading.Event) -> None:
        self._bridge, self._stop = Bridge(), anyio.Event()
        running.set()
        await self._stop.wait()

    def close(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run ``last`` on the loop, if it ever started, and end it."""
        with self._lock:
            bridge, self._closed = self._bridge, True
            if bridge is None or self._thread is None:
                return
            self._bridge = None

            async def finish() -> None:
                await last()
                assert self._stop is not None
                self._stop.set()

            bridge.call(finish)
            self._thread.join()
