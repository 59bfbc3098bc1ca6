"""NODE SIDE. ``python -m corral.pool.dask.node SCHEDULER``: a Dask worker that surely ends.

Purpose
    What the launcher starts: on this machine and through ``ssh`` with ``--piped``, where its certificates come as one
    line on standard input, so that no secret stands in a command line; in the jobs of a batch system with the arguments
    that dask-jobqueue gives to Dask's own program.
Guarantees
    * It ends when the scheduler is gone or a signal asks for it, and with ``--piped`` when its input ends: that is its
      lifeline, which breaks with whoever started it, also on another machine.
    * END_PATIENCE seconds later it is gone, whatever it was doing. (Dask's own program was seen to wait for ever.)
    * What it starts inherits no lifeline: descriptor 0 is /dev/null by then.
"""

from __future__ import annotations

import argparse
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
from typing import TYPE_CHECKING, Any

from corral.pool.config import available_cpus
from corral.pool.dask.loops import new_event_loop
from corral.scratch import scratch_folder

if TYPE_CHECKING:
    from distributed import Worker

END_PATIENCE = 5.0
"""Seconds for leaving in order."""

LOOPBACK = "127.0.0.1:0"
"""Where Dask's pages are served: to nobody else, and on any free port."""


def parser() -> argparse.ArgumentParser:
    """Those of the arguments of Dask's own program that dask-jobqueue uses, and ours."""
    parse = argparse.ArgumentParser(prog="python -m corral.pool.dask.node", description=__doc__)
    parse.add_argument("scheduler", help="its address, tls://HOST:PORT")
    parse.add_argument("--name", required=True)
    parse.add_argument("--nthreads", type=int, default=0, help="processors of this node (default: all)")
    parse.add_argument("--memory-limit", default="0", help="memory of this node (default: not said)")
    parse.add_argument("--interface", help="the network interface to listen on")
    parse.add_argument("--protocol", help="said by dask-jobqueue; it is always that of the scheduler")
    parse.add_argument("--local-directory", help="where a folder for temporary files is made")
    parse.add_argument("--death-timeout", type=float, default=30.0, help="seconds for reaching the scheduler")
    parse.add_argument("--tls-ca-file")
    parse.add_argument("--tls-cert")
    parse.add_argument("--tls-key")
    parse.add_argument("--piped", action="store_true", help="certificates, then the lifeline, are on standard input")
    return parse


def main() -> None:
    """Be a Dask worker until one of the ends comes."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a launcher may have it ignored: no child's end could be waited for
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPIPE])  # as the driver has it, which may have started this
    options = parser().parse_args()
    lifeline = _lifeline() if options.piped else None
    security = {"tls_ca_file": options.tls_ca_file, "tls_worker_cert": options.tls_cert,
                "tls_worker_key": options.tls_key} if lifeline is None else _read_credentials(lifeline)  # fmt: skip
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(options, security, lifeline))


def _lifeline() -> int:
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return lifeline


def _read_credentials(lifeline: int) -> dict[str, str]:
    text = b""
    while not text.endswith(b"\n"):
        part = os.read(lifeline, 65536)
        if not part:
            sys.exit("standard input ended before the certificates had come")
        text += part
    credentials: dict[str, str] = json.loads(text)
    return credentials


async def _serve(options: argparse.Namespace, security: dict[str, Any], lifeline: int | None) -> None:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    if lifeline is not None:
        _watch(lifeline, lambda: loop.call_soon_threadsafe(ending.set))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    with _folder(options.local_directory) as folder:
        worker = _worker(options, security, folder)
        work = asyncio.create_task(_work(worker))
        end = asyncio.create_task(ending.wait())
        await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
        _end_within_patience()
        if work.done():
            work.result()  # raises what kept the worker from starting
        await worker.close(timeout=END_PATIENCE / 2, executor_wait=False)


def _folder(place: str | None) -> tempfile.TemporaryDirectory[str]:
    """For temporary files. In a ``place`` of the user's, which hosts may share, nothing of others is cleared away."""
    if place is None:
        return scratch_folder()
    return tempfile.TemporaryDirectory(prefix="corral-node-", dir=place, ignore_cleanup_errors=True)


def _worker(options: argparse.Namespace, security: dict[str, Any], folder: str) -> Worker:
    from distributed import Security, Worker

    return Worker(
        options.scheduler,
        name=options.name,
        nthreads=options.nthreads or available_cpus(),
        memory_limit=options.memory_limit,
        security=Security(require_encryption=True, **security),
        interface=options.interface,
        death_timeout=options.death_timeout,
        local_directory=folder,
        dashboard=False,
        dashboard_address=LOOPBACK,
    )


async def _work(worker: Worker) -> None:
    await worker
    await worker.finished()


def _watch(lifeline: int, ended: Callable[[], object]) -> None:
    """Call ``ended`` when the input is at its end, and see to it that the process does end."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(lifeline, 65536):
                pass
        _end_within_patience()
        with contextlib.suppress(RuntimeError):  # the loop was closed by itself
            ended()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def _end_within_patience() -> None:
    """End this process after END_PATIENCE, if it has not ended by itself."""

    def end() -> None:
        time.sleep(END_PATIENCE)
        os._exit(1)

    threading.Thread(target=end, name="end", daemon=True).start()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
