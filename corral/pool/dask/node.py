"""NODE SIDE. ``python -m corral.pool.dask.node``: a Dask worker that lives as long as its standard input is open.

Purpose
    What the launcher starts on this machine or through ``ssh``. Its orders, certificates among them, come as one line
    on standard input, so no secret stands in a command line. The same stream is its lifeline: it ends with whoever
    started it, also where that was killed on another machine.
Guarantees
    * END_PATIENCE seconds after the end of its input this process is gone, whatever it was doing.
    * What it starts inherits no lifeline: descriptor 0 is /dev/null by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

END_PATIENCE = 5.0
"""Seconds for leaving in order."""

SCHEDULER_PATIENCE = 30.0
"""Seconds for reaching the scheduler."""

LOOPBACK = "127.0.0.1:0"
"""Where Dask's pages are served: to nobody else, and on any free port."""


def main() -> None:
    """Read the orders, be a Dask worker until the input ends, the scheduler is gone, or a signal asks to end."""
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    orders = _read_orders(lifeline)
    if orders is not None:
        asyncio.run(_serve(orders, lifeline))


def _read_orders(lifeline: int) -> dict[str, Any] | None:
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(lifeline, 65536)
        if not part:
            return None
        text += part
    orders: dict[str, Any] = json.loads(text)
    return orders


async def _serve(orders: dict[str, Any], lifeline: int) -> None:
    from distributed import Security, Worker  # here: what a worker's worker imports of this package shall not load it

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    _watch(lifeline, lambda: loop.call_soon_threadsafe(ending.set))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    with tempfile.TemporaryDirectory(prefix="corral-node-", ignore_cleanup_errors=True) as folder:
        worker = Worker(
            orders["scheduler"],
            name=orders["name"],
            nthreads=orders["processors"] or len(os.sched_getaffinity(0)),
            security=Security(**orders["security"]),
            memory_limit=0,
            local_directory=folder,
            death_timeout=SCHEDULER_PATIENCE,
            dashboard=False,
            dashboard_address=LOOPBACK,
        )
        await _until_first(_work(worker), ending.wait())
        await worker.close(timeout=END_PATIENCE / 2, executor_wait=False)


async def _work(worker: Any) -> None:
    await worker
    await worker.finished()


async def _until_first(*waits: Any) -> None:
    """Wait for one of them, end the others; raise what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    for task in done:
        task.result()


def _watch(lifeline: int, ended: Callable[[], object]) -> None:
    """Call ``ended`` when the input is at its end, and see to it that the process does end."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 65536):
                pass
        with contextlib.suppress(RuntimeError):  # the loop was closed by itself
            ended()
        time.sleep(END_PATIENCE)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
