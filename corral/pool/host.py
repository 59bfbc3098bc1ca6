"""WORKER SIDE. The main loop of a worker: load the environments once, make a trial process for each lease.

Purpose
    The worker itself runs no trial. It stays clean, so that a fork of it is fresh process state for the price of a
    fork, whenever it is made; it is the parent of every trial process, so it alone learns how one ended.
Guarantees
    * Every trial process that was started is reported ended exactly once, with its exit code or signal, its peak memory
      and CPU time; if it has served a lease, after all that it left behind has been killed.
    * When the supervisor ends, or its end of the connection closes, everything that this worker started is killed.
    * Fork is used only while this process has one thread; else a new interpreter serves the lease.
Assumptions
    One trial process serves at a time; others were made ahead, and wait. What is left behind, and what was printed, is
    of the one that serves. The supervisor kills a trial process by itself; it does not ask.
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
from corral.pool import guards, leaving, printed, rehearsal, trial_process
from corral.pool.inherited import close_inherited
from corral.pool.link import Link, WatchedLink
from corral.pool.logs import tail
from corral.pool.messages import (
    Finish,
    HostSpec,
    Imported,
    Load,
    Loaded,
    LoadFailed,
    Message,
    ProcessEnded,
    ProcessStarted,
    Serves,
    StartProcess,
)
from corral.pool.spare import Spare, ended_while_loading, fork_spare, start_spare
from corral.runtime import describe, load, warm_up
from corral.types import FreshMode


def host_main(spec: HostSpec) -> NoReturn:
    """The one call of a worker that is an interpreter of its own. It ends with the process, never by returning."""
    close_inherited()
    pipes = {os.dup(0), os.dup(1)}  # anyio's: closed, they would mean that this worker is dead
    lifeline = guards.lifeline(spec.supervisor)
    run_host(spec, lifeline, {lifeline, *pipes})


def run_host(spec: HostSpec, lifeline: int, own: set[int], nursery: int | None = None) -> NoReturn:
    """Be a worker, to the end of this process.

    ``lifeline`` is one of ``guards.lifeline``; ``own`` are all descriptors that trials must not hold; ``nursery`` is
    the pid of the one that made this process, if one did.
    """
    status = 1
    try:
        guards.become_leader()
        guards.ignore_terminal_signals()
        guards.learn_of_children()
        guards.redirect_output(spec.log_path)
        guards.adopt_orphans()
        Host(spec, WatchedLink.to(spec.ticket, lifeline), lifeline, own, nursery).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        guards.end_children(set())
        sys.stderr.flush()
        os._exit(status)


@dataclass
class _Child:
    """A trial process."""

    pid: int
    spare: Spare | None = None
    """Of one that is an interpreter of its own."""
    number: int = 0
    """Of its ticket; 0 while it has none."""
    log_start: int = 0

    def __post_init__(self) -> None:
        self.watch = _watch(self.pid)
        """A descriptor that becomes readable when it ends."""


class Host:
    """A worker's state: its environments and its trial processes."""

    def __init__(self, spec: HostSpec, link: WatchedLink, lifeline: int, own: set[int], nursery: int | None) -> None:
        self._spec = spec
        self._link = link
        self._lifeline = lifeline
        self._nursery = nursery
        self._own = own
        self._load: Load | None = None
        self._environments: Mapping[str, Environment] | None = None
        self._is_clean = True
        """Whether nothing of the user's was ever loaded here."""
        self._children: dict[int, _Child] = {}
        """By the descriptor that tells its end."""
        self._serving = 0
        """The number of the trial process that has a lease."""
        self._kept: set[int] = set()
        """Processes that trials left and that this one may not kill: each is told of once."""
        self._child_signal = guards.ChildSignal()
        self._helpers: set[int] = set()
        """Processes that the main script, and loading the environments, started: trials need them."""

    def run(self) -> None:
        """Load when asked to, then serve until the supervisor finishes or is gone."""
        request = self._link.receive()
        if request is None:
            return
        if not isinstance(request, Load):
            raise ProtocolError(f"a worker was sent a {type(request).__name__} before it was loaded")
        self._load = request
        if self._start(request):
            while self._step():
                pass

    # ---- loading ----

    def _guard(self) -> contextlib.AbstractContextManager[None]:
        """Ends this process if the supervisor dies in the block, even where user code holds the GIL."""
        if self._nursery is not None and os.getppid() == self._nursery:
            return guards.dying_with(self._nursery)
        return guards.sentinel(self._lifeline)

    def _start(self, request: Load) -> bool:
        with self._guard():
            spawned = request.fresh == "spawn"  # then nothing of the user's is loaded here: spares are forks of this
            if not spawned and (failed := self._import_main()):
                self._link.send(failed)
                return False
            try:
                answer = self._load_in_spare() if spawned else self._load_here(request)
            except BaseException as error:
                self._link.send(trial_process.load_failed(error))
                return False
        self._load = replace(request, described=True)  # from now on
        self._link.send(answer)
        return isinstance(answer, Loaded)

    def _import_main(self) -> LoadFailed | None:
        self._is_clean = False
        if self._spec.main is None:
            return trial_process.try_main(None)
        children = guards.child_pids()
        with self._child_signal.given():
            failed = trial_process.try_main(self._spec.main)
        self._helpers |= guards.child_pids() - children
        if failed is None:
            self._link.send(Imported())
        return failed

    def _load_here(self, request: Load) -> Loaded:
        if self._is_clean:
            self._is_clean = False
            with self._child_signal.given():
                failed = trial_process.try_main(self._spec.main)
            if failed:
                raise EnvStartError.because("importing the main script", failed.record)
        before = guards.open_resources()
        children = guards.child_pids()
        with self._child_signal.given():
            environments = load(pickle.loads(request.builder))
            self._helpers |= guards.child_pids() - children
            catalogue = {} if request.described else describe(environments)
            warm_up(environments)
        if self._nursery is None:  # which has done so: what is made and cached by a first time, forks then have
            rehearsal.rehearse(Path(self._spec.work_root))
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

    def _load_in_spare(self) -> Loaded | LoadFailed:
        """Have the first spare load, and give its answer. Gives up when the supervisor is gone."""
        child = self._start_spare()
        spare = child.spare
        assert spare is not None
        poll = select.poll()
        poll.register(spare.fileno(), select.POLLIN)
        poll.register(self._lifeline, guards.LIFELINE)
        if any(descriptor == self._lifeline for descriptor, _ in poll.poll()):
            raise ConnectionError("the supervisor is gone")
        if isinstance(answer := spare.answer(), Loaded):
            return answer
        _, status = os.waitpid(child.pid, 0)
        del self._children[child.watch]
        return answer or LoadFailed(ended_while_loading(os.waitstatus_to_exitcode(status)))

    def _soundest(self, wanted: FreshMode) -> FreshMode:
        if wanted == "spawn":
            return "spawn"
        if self._environments is None:  # the pool spawns, but this task's environment asks for a fork
            if wanted == "auto" or self._load is None:
                return "spawn"
            with self._guard():
                self._load_here(self._load)
        sound = hasattr(os, "pidfd_open") and guards.thread_count() == 1
        return "fork" if sound else "spawn"

    # ---- serving ----

    def _step(self) -> bool:
        """Wait for something and deal with it; False when it is time to end."""
        poll = select.poll()
        poll.register(self._lifeline, guards.LIFELINE)
        for descriptor in (self._link.fileno(), *self._children):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        # Requests first: that a process serves was said before it could do anything, and so before its end.
        goes_on = ready <= self._children.keys() or self._take_requests()
        for child in [child for watch, child in self._children.items() if watch in ready]:
            self._report_end(child)
        return goes_on

    def _take_requests(self) -> bool:
        while self._take(self._link.receive()):
            if not self._link.pending:
                return True
        return False

    def _take(self, request: Message | None) -> bool:
        match request:
            case StartProcess() as order:
                self._start_process(order)
                return True
            case Serves(number):
                self._serving = number
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

    def _start_process(self, order: StartProcess) -> None:
        number = order.ticket.number
        printed.flush()  # a fork would print what this process holds back
        if not any(child.number for child in self._children.values()):
            self._turn_the_page()
        start = os.lseek(1, 0, os.SEEK_END)  # now: it may have printed, and ended, before this process runs again
        try:
            child = self._fork(order) if self._soundest(order.fresh) == "fork" else self._hand_to_spare(order)
        except Exception as error:
            self._link.send(ProcessEnded(number, None, record=trial_process.load_failed(error).record))
            return
        child.number, child.log_start = number, start
        if not order.ahead:
            self._serving = number
        self._link.send(ProcessStarted(number, child.pid))

    def _turn_the_page(self) -> None:
        """What is printed from now on is of another trial."""
        if not self._spec.keep_log:
            os.ftruncate(1, 0)
        start = os.lseek(1, 0, os.SEEK_END)
        for child in self._children.values():
            child.log_start = start

    def _fork(self, order: StartProcess) -> _Child:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            self._become_trial_process(order, parent)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does so too: whoever is first
        return self._watched(_Child(pid))

    def _become_trial_process(self, order: StartProcess, parent: int) -> NoReturn:
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            guards.die_with_parent(parent)
            for descriptor in self._held():
                os.close(descriptor)
            leaving.begin_anew()
            environments, load_of = self._environments, self._load
            assert environments is not None
            assert load_of is not None
            work_root = Path(self._spec.work_root)
            server = trial_process.TrialServer(environments, work_root, reused=load_of.reused)
            link = Link.connect(order.ticket)
            if order.ahead:
                rehearsal.rehearse(work_root, link)
            self._child_signal.give()
            trial_process.run(link, server)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(trial_process.EXIT_BROKEN)

    def _held(self) -> list[int]:
        """Descriptors that a fork must not hold. Whatever owns them here is never used in one again."""
        spares = [child.spare.fileno() for child in self._children.values() if child.spare is not None]
        return [*self._own, self._link.fileno(), *self._children, *spares]

    def _watched(self, child: _Child) -> _Child:
        self._children[child.watch] = child
        return child

    # ---- interpreters of their own ----

    def _start_spare(self) -> _Child:
        assert self._load is not None
        if self._is_clean and guards.thread_count() == 1:
            spare = fork_spare(self._spec, self._load, self._held())
        else:
            spare = start_spare(self._spec, self._load)
        return self._watched(_Child(spare.pid, spare))

    def _hand_to_spare(self, order: StartProcess) -> _Child:
        for child in list(self._children.values()):  # the one that described the environments has no ticket yet
            if child.spare is not None and not child.number:
                with contextlib.suppress(OSError):  # it is gone
                    child.spare.hand_over(order)
                    return child
        child = self._start_spare()
        assert child.spare is not None
        child.spare.hand_over(order)
        return child

    # ---- the end of a trial process ----

    def _report_end(self, child: _Child) -> None:
        del self._children[child.watch]
        _, status, usage = os.wait4(child.pid, 0)
        os.close(child.watch)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # what it started and left in its group
        exit_status = os.waitstatus_to_exitcode(status)
        failure = None
        if child.spare is not None:
            failure = child.spare.failure(exit_status)
            child.spare.close()
        if not child.number:
            return
        left: list[str] = []
        if has_served := child.number == self._serving:
            self._serving = 0
            left = self._clean_up()
        output, log_end = tail(self._spec.log_path, child.log_start, printed.OUTPUT_TAIL)
        if has_served:
            self._turn_the_page()
        self._link.send(
            ProcessEnded(
                child.number,
                exit_status if failure is None else None,
                peak_rss=usage.ru_maxrss * (1024 if guards.LINUX else 1),
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                output=output,
                record=failure,
                log_end=log_end,
                left=tuple(left),
            )
        )

    def _clean_up(self) -> list[str]:
        """End what a trial left running, and remove the workspace of one that died: one that closed took it along.

        What of it could not be ended, in words.
        """
        kept = guards.end_children(self._helpers | {child.pid for child in self._children.values()})
        left = [guards.told(pid) for pid in sorted(kept - self._kept)]
        self._kept = kept
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self._spec.work_root)):
                if entry.name != rehearsal.FOLDER:
                    shutil.rmtree(entry.path, ignore_errors=True)
        return left


def _watch(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    else:  # noqa: RET505 - a type checker knows this branch as another platform's
        queue = select.kqueue()
        ended = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
        queue.control([ended], 0)
        return os.dup(queue.fileno())
