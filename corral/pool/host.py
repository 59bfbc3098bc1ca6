"""WORKER SIDE. The main loop of a worker: load the environments once, make a trial process for each lease.

Purpose
    The worker itself runs no trial. It stays clean, so that a fork of it is fresh process state for the price of a
    fork; it is the parent of every trial process, so it alone learns how one ended.
Guarantees
    * Every trial process that was started is reported ended exactly once, with its exit code or signal, its peak memory
      and CPU time, after all that it left behind has been killed.
    * When the supervisor's end of the connection closes, everything that this worker started is killed.
    * Fork is used only while this process has one thread; else a new interpreter, kept warm, takes the lease.
Assumptions
    One trial process at a time, and one spare. The supervisor kills a trial process by itself; it does not ask.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from corral.environment import Environment
from corral.errors import EnvStartError, ProtocolError
from corral.lean import dataclass
from corral.pool import guards, leaving, printed, trial_process
from corral.pool.link import Link
from corral.pool.logs import tail
from corral.pool.spare import Spare, fork_spare, start_spare
from corral.pool.wire import (
    Finish,
    HostSpec,
    Load,
    Loaded,
    LoadFailed,
    ProcessEnded,
    ProcessStarted,
    StartProcess,
    Ticket,
)
from corral.runtime import describe, load, warm_up
from corral.types import FreshMode


def host_main(spec: HostSpec) -> NoReturn:
    """The one call of a worker that is an interpreter of its own. It ends with the process, never by returning."""
    lifeline, reply = os.dup(0), os.dup(1)  # anyio's pipes: closed, they would mean that this worker is dead
    run_host(spec, lifeline, {lifeline, reply})


def run_host(spec: HostSpec, lifeline: int, own: set[int]) -> NoReturn:
    """Be a worker, to the end of this process.

    ``lifeline`` is a descriptor that is at end-of-file once the supervisor is gone; ``own`` are all that trials must
    not hold.
    """
    status = 1
    try:
        guards.become_leader()
        guards.ignore_terminal_signals()
        guards.redirect_output(spec.log_path)
        guards.adopt_orphans()
        with guards.sentinel(lifeline):
            failed = None if spec.stays_clean else trial_process.try_main(spec.main)
        Host(spec, Link.connect(spec.ticket), lifeline, own).run(failed)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        guards.end_children(set())
        sys.stderr.flush()
        os._exit(status)


@dataclass
class _Child:
    """A running trial process."""

    number: int
    pid: int
    watch: int
    """A descriptor that becomes readable when it ends."""
    log_start: int


class Host:
    """A worker's state: its environments, the trial process, the spare."""

    def __init__(self, spec: HostSpec, link: Link, lifeline: int, own: set[int]) -> None:
        self._spec = spec
        self._link = link
        self._lifeline = lifeline
        self._own = own
        self._load: Load | None = None
        self._environments: Mapping[str, Environment] | None = None
        self._is_clean = spec.stays_clean
        """Whether nothing of the user's was ever loaded here."""
        self._child: _Child | None = None
        self._spare: Spare | None = None
        self._helpers = guards.child_pids()
        """Processes that the main script, and loading the environments, started: trials need them."""

    def run(self, failed: LoadFailed | None) -> None:
        """Load, then serve until the supervisor finishes or is gone. ``failed``: of the main script."""
        request = self._link.receive()
        if request is None:
            return
        if not isinstance(request, Load):
            raise ProtocolError(f"a worker was sent a {type(request).__name__} before it was loaded")
        self._load = request
        if failed is not None:
            self._link.send(failed)
        if failed is not None or not self._start(request):
            return
        while self._step():
            pass

    # ---- loading ----

    def _start(self, request: Load) -> bool:
        with guards.sentinel(self._lifeline):
            try:
                spawned = request.fresh == "spawn"
                answer = self._ask_spare(self._start_spare()) if spawned else self._load_here(request)
            except BaseException as error:
                self._link.send(trial_process.load_failed(error))
                return False
        self._load = replace(request, described=True)  # from now on
        if not spawned and isinstance(answer, Loaded) and answer.fresh == "spawn":
            self._start_spare()
        self._link.send(answer)
        return isinstance(answer, Loaded)

    def _load_here(self, request: Load) -> Loaded:
        if self._is_clean:
            self._is_clean = False
            if failed := trial_process.try_main(self._spec.main):
                raise EnvStartError.because("importing the main script", failed.record)
        before = guards.open_resources()
        children = guards.child_pids()
        environments = load(pickle.loads(request.builder))
        self._helpers |= guards.child_pids() - children
        catalogue = {} if request.described else describe(environments)
        warm_up(environments)
        opened = set(guards.open_resources().items()) - set(before.items())
        notes = tuple(
            f"loading the environments left {what} open; forked trials would share it: "
            'open it per trial, or declare fresh = "spawn"'
            for _, what in sorted(opened)
        )
        self._environments = environments
        guards.reopen_streams()  # whatever the user's code made of them: forks begin with these
        gc.collect()
        gc.freeze()  # forks share these pages for as long as the collector does not touch them
        return Loaded(catalogue, self._soundest(request.fresh), notes)

    def _soundest(self, wanted: FreshMode) -> FreshMode:
        if wanted == "spawn":
            return "spawn"
        if self._environments is None:  # the pool spawns, but this task's environment asks for a fork
            if wanted == "auto" or self._load is None:
                return "spawn"
            with guards.sentinel(self._lifeline):
                self._load_here(self._load)
        sound = hasattr(os, "pidfd_open") and guards.thread_count() == 1
        return "fork" if sound else "spawn"

    # ---- serving ----

    def _step(self) -> bool:
        """Wait for one thing and deal with it; False when it is time to end."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        if self._child is not None:
            poll.register(self._child.watch, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._child is not None and self._child.watch in ready:
            self._report_end(self._child)
        if self._link.fileno() not in ready:
            return True
        match self._link.receive():
            case StartProcess(ticket, fresh):
                self._start_process(ticket, fresh)
                return True
            case Finish():
                guards.end_children(set())
                self._link.close()
                signal.pause()  # the supervisor ends this process; ending by itself would race with its wait
            case None:
                pass
            case other:
                raise ProtocolError(f"a worker was sent a {type(other).__name__}")
        return False

    def _start_process(self, ticket: Ticket, fresh: FreshMode) -> None:
        if self._child is not None:  # it was killed, or finished, a moment ago
            self._report_end(self._child)
        log_start = self._begin_log()
        try:
            fresh = self._soundest(fresh)
            pid = self._fork(ticket) if fresh == "fork" else self._hand_to_spare(ticket)
        except Exception as error:
            self._link.send(ProcessEnded(ticket.number, None, record=trial_process.load_failed(error).record))
            return
        self._child = _Child(ticket.number, pid, _watch(pid), log_start)
        self._link.send(ProcessStarted(ticket.number, pid))
        if self._spare is None and fresh == "spawn":
            self._start_spare()

    def _begin_log(self) -> int:
        printed.flush()  # a fork would print what this process holds back
        if not self._spec.keep_log:
            os.ftruncate(1, 0)
        return os.lseek(1, 0, os.SEEK_END)

    def _fork(self, ticket: Ticket) -> int:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            self._become_trial_process(ticket, parent)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does so too: whoever is first
        return pid

    def _become_trial_process(self, ticket: Ticket, parent: int) -> NoReturn:
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            guards.die_with_parent(parent)
            for descriptor in self._own:
                os.close(descriptor)
            self._link.close()
            if self._spare is not None:
                self._spare.link.close()
            leaving.begin_anew()
            environments, load_of = self._environments, self._load
            assert environments is not None
            assert load_of is not None
            server = trial_process.TrialServer(environments, Path(self._spec.work_root), reused=load_of.reused)
            trial_process.run(Link.connect(ticket), server)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(trial_process.EXIT_BROKEN)

    # ---- the spare ----

    def _start_spare(self) -> Spare:
        assert self._load is not None
        if self._is_clean and guards.thread_count() == 1:
            self._spare = fork_spare(self._spec, self._load, [*self._own, self._link.fileno()])
        else:
            self._spare = start_spare(self._spec, self._load)
        return self._spare

    def _ask_spare(self, spare: Spare) -> Loaded | LoadFailed:
        """Wait until the spare has loaded, or failed to and is gone. Gives up when the supervisor is gone."""
        poll = select.poll()
        poll.register(spare.link.fileno(), select.POLLIN)
        poll.register(self._lifeline, 0)
        if any(descriptor == self._lifeline for descriptor, _ in poll.poll()):
            raise ConnectionError("the supervisor is gone")
        answer = spare.answer()
        if not spare.loaded:
            self._spare = None
        return answer

    def _hand_to_spare(self, ticket: Ticket) -> int:
        spare = self._spare or self._start_spare()
        if not spare.loaded and isinstance(answer := self._ask_spare(spare), LoadFailed):
            raise EnvStartError.because("loading the environments in a new interpreter", answer.record)
        self._spare = None
        return spare.hand_over(ticket)

    # ---- the end of a trial process ----

    def _report_end(self, child: _Child) -> None:
        self._child = None
        _, status, usage = os.wait4(child.pid, 0)
        os.close(child.watch)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # what it started and left in its group
        guards.end_children(self._helpers | ({self._spare.pid} if self._spare else set()))
        self._clear_workspaces()
        output, log_end = tail(self._spec.log_path, child.log_start, printed.OUTPUT_TAIL)
        self._link.send(
            ProcessEnded(
                child.number,
                os.waitstatus_to_exitcode(status),
                peak_rss=usage.ru_maxrss * (1024 if guards.LINUX else 1),
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                output=output,
                log_end=log_end,
            )
        )

    def _clear_workspaces(self) -> None:
        """A trial that closed took its workspace with it; one that died left it."""
        with contextlib.suppress(OSError):
            for left in list(os.scandir(self._spec.work_root)):
                shutil.rmtree(left.path, ignore_errors=True)


def _watch(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    else:  # noqa: RET505 - a type checker knows this branch as another platform's
        queue = select.kqueue()
        ended = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        queue.control([ended], 0)
        return os.dup(queue.fileno())
