"""WORKER SIDE. The nursery's main loop: fork a worker when asked, say how each one ended when nothing of it is left.

It holds what a worker needs of Corral's own, and nothing of the user's; so its forks are new interpreters to the user's
code, but for the time that importing Corral takes. What few workers need, or one of them once, is left out: pydantic,
and what describes environments.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import random
import select
import signal
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from corral.pool import guards, host, rehearsal
from corral.pool.inherited import close_inherited
from corral.pool.link import WatchedLink
from corral.pool.messages import HostSpec, NurserySpec, ProcessEnded, ProcessStarted, StartWorker

PATIENCE = 2.0
"""Seconds that workers may take to end by themselves when the supervisor is gone."""


def nursery_main(spec: NurserySpec) -> NoReturn:
    """The one call of the nursery's process. It ends with the process, never by returning."""
    try:
        close_inherited()
        pipes = [os.dup(0), os.dup(1)]  # anyio's: closed, they would mean that this process is dead
        lifeline = guards.lifeline(spec.supervisor)
        guards.become_leader()
        guards.ignore_terminal_signals()
        guards.learn_of_children()
        guards.redirect_output(spec.log_path)
        guards.adopt_orphans()  # of workers that somebody kills
        _warm_up(spec.modules, Path(spec.log_path).parent)
        if guards.thread_count() == 1:
            gc.freeze()  # forks share these pages for as long as the collector does not touch them
            gc.enable()
            _Nursery(WatchedLink.to(spec.ticket, lifeline), lifeline, pipes).run()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _warm_up(modules: Iterable[str], folder: Path) -> None:
    """Load and compile what every worker will need, by a use of it."""
    for name in modules:
        importlib.import_module(name)
    pkgutil.get_importer(os.devnull)  # as for a main script
    rehearsal.rehearse(folder)


class _Nursery:
    def __init__(self, link: WatchedLink, lifeline: int, pipes: list[int]) -> None:
        self._link = link
        self._lifeline = lifeline
        self._pipes = pipes
        self._workers: dict[int, tuple[int, int]] = {}
        """By a descriptor that becomes readable when it ends: a worker's number and its pid."""

    def run(self) -> None:
        """Serve until the supervisor finishes, or is gone."""
        while True:
            poll = select.poll()
            for descriptor in (self._link.fileno(), self._lifeline, *self._workers):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            ended = ready & self._workers.keys()
            for descriptor in ended:
                self._report_end(descriptor)
            if ready - ended and not self._serve():
                break
        if guards.is_at_end(self._lifeline, PATIENCE):
            self._see_off()

    def _see_off(self) -> None:
        """The supervisor is gone: workers that have loaded end by themselves, and all below them; others may not."""
        deadline = time.monotonic() + PATIENCE
        poll = select.poll()
        for descriptor in self._workers:
            poll.register(descriptor, select.POLLIN)
        while self._workers and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                _, pid = self._workers.pop(descriptor)
                os.waitpid(pid, 0)
        for _, pid in self._workers.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        guards.end_children(set())

    def _serve(self) -> bool:
        """Do what is asked; False when there is nothing more to do."""
        while isinstance(request := self._link.receive(), StartWorker):
            self._start(request.spec)
            if not self._link.pending:
                return True
        return False

    def _start(self, spec: HostSpec) -> None:
        nursery = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            self._become_worker(spec, nursery)
        self._workers[os.pidfd_open(pid)] = spec.ticket.number, pid
        self._report(ProcessStarted(spec.ticket.number, pid))

    def _become_worker(self, spec: HostSpec, nursery: int) -> NoReturn:
        try:
            self._link.close()
            for descriptor in (*self._pipes, *self._workers):
                os.close(descriptor)
            random.seed()
            host.run_host(spec, self._lifeline, {self._lifeline}, nursery)
        finally:
            os._exit(1)

    def _report_end(self, descriptor: int) -> None:
        number, pid = self._workers.pop(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            _, status = os.waitpid(pid, 0)
            # One that was killed could not see to what its trials had left: that is this process's child now.
            guards.end_children({pid for _, pid in self._workers.values()})
            self._report(ProcessEnded(number, os.waitstatus_to_exitcode(status)))

    def _report(self, message: ProcessStarted | ProcessEnded) -> None:
        with contextlib.suppress(OSError):  # nobody is there any more, which is seen to next
            self._link.send(message)
