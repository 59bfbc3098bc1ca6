"""WORKER SIDE. The nursery's main loop: fork a worker when asked, say how each one ended.

It holds what a worker needs of Corral's own, and nothing of the user's; so its forks are new interpreters to the user's
code, but for the time that importing Corral takes, and what it needs to unpickle a builder and to describe environments
and their tools. pydantic is left out: most environments never need it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import traceback
import warnings
from typing import NoReturn

from corral.environment import Environment
from corral.pool import guards, host
from corral.pool.link import Link
from corral.pool.wire import HostSpec, NurserySpec, ProcessEnded, ProcessStarted, StartWorker
from corral.runtime import describe, load
from corral.tools import tool


def nursery_main(spec: NurserySpec) -> NoReturn:
    """The one call of the nursery's process. It ends with the process, never by returning."""
    try:
        pipes = [os.dup(0), os.dup(1)]  # anyio's: closed, they would mean that this process is dead
        guards.become_leader()
        guards.ignore_terminal_signals()
        guards.redirect_output(spec.log_path)
        _warm_up(by_value=spec.by_value)
        if guards.thread_count() == 1:
            gc.collect()
            gc.freeze()  # forks share these pages for as long as the collector does not touch them
            _Nursery(spec, Link.connect(spec.ticket), pipes).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


class _Sample(Environment):
    """An environment like any."""

    @tool
    def repeat(self, text: str, times: int = 1) -> str:
        """A tool like any."""
        return text * times


def _warm_up(*, by_value: bool) -> None:
    """Load and compile what every worker will need, by a use of it."""
    if by_value:
        import cloudpickle  # noqa: F401 - to read a builder

    describe(load(lambda: {"sample": _Sample("sample")}))


class _Nursery:
    def __init__(self, spec: NurserySpec, link: Link, pipes: list[int]) -> None:
        self._spec = spec
        self._link = link
        self._pipes = pipes
        self._workers: dict[int, tuple[int, int]] = {}
        """By a descriptor that becomes readable when it ends: a worker's number and its pid."""

    def run(self) -> None:
        """Serve until the supervisor finishes, or is gone."""
        while True:
            poll = select.poll()
            for descriptor in (self._link.fileno(), *self._workers):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            for descriptor in ready & self._workers.keys():
                self._report_end(descriptor)
            if self._link.fileno() in ready and not self._serve():
                return

    def _serve(self) -> bool:
        """Do what is asked; False when there is nothing more to do."""
        while isinstance(request := self._link.receive(), StartWorker):
            self._start(request.spec)
            if not self._link.pending:
                return True
        return False

    def _start(self, spec: HostSpec) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            self._become_worker(spec)
        self._workers[os.pidfd_open(pid)] = spec.ticket.number, pid
        self._link.send(ProcessStarted(spec.ticket.number, pid))

    def _become_worker(self, spec: HostSpec) -> NoReturn:
        try:
            self._link.close()
            for descriptor in (*self._pipes, *self._workers):
                os.close(descriptor)
            lifeline = os.open(self._spec.lifeline, os.O_RDONLY | os.O_NONBLOCK)
            random.seed()
            host.run_host(spec, lifeline, {lifeline})
        finally:
            os._exit(1)

    def _report_end(self, descriptor: int) -> None:
        number, pid = self._workers.pop(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
            self._link.send(ProcessEnded(number, os.waitstatus_to_exitcode(status)))
