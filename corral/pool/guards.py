"""WORKER SIDE. What keeps a worker from harming its supervisor, and from outliving it.

Guarantees
    * Nothing that user code prints, from Python or from C, reaches the descriptors that carry the pool's messages:
      1 and 2 go to the worker's log, 0 is at end-of-file.
    * A terminal's signals do not reach a worker: it has a session of its own, its trial processes groups of their own.
    * A worker that is loading when its supervisor dies is killed, even if it holds the GIL: by the nursery that made
      it, or else by its sentinel. Later it sees the end of its lifeline. A trial process dies with its worker.
    * Native thread pools (OpenMP, BLAS) start with one thread, unless the user's environment says otherwise.
Assumptions
    Linux for the parent-death signal and the subreaper; elsewhere a thread watches the parent's pid.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from corral.pool import printed

LINUX = sys.platform == "linux"

LIFELINE = select.POLLIN if LINUX else 0
"""What to poll a lifeline for. The end of a process makes its descriptor readable; an end-of-file is always reported,
and data in that pipe is not ours to read.
"""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None
"""Opened once: forks share it."""


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None and _LIBC.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def redirect_output(log_path: str) -> None:
    """Send descriptors 1 and 2 to the end of the log, and 0 to end-of-file."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for descriptor in (log, null):
        if descriptor > 2:
            os.close(descriptor)
    reopen_streams()


def reopen_streams() -> None:
    """Give this process ``sys.std*`` of its own on descriptors 0, 1 and 2, and crash reports on 2."""
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    printed.buffer_c_by_lines()
    faulthandler.enable(file=sys.stderr, all_threads=False)
    if hasattr(signal, "SIGUSR1"):  # sent before a kill at a deadline: the log then shows where the process hung
        faulthandler.register(signal.SIGUSR1, file=sys.stderr)


def _text_stream(descriptor: int) -> io.TextIOWrapper:
    raw = os.fdopen(descriptor, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def ignore_terminal_signals() -> None:
    """The supervisor decides when a worker ends: a Ctrl-C or a closed terminal is its business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def learn_of_children() -> None:
    """Have the system tell how children end. Where SIGCHLD is ignored, as some daemons pass on, it forgets that."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class ChildSignal:
    """SIGCHLD in a worker. The user's code has it as it left it, the worker at its default.

    If it were ignored, or had a handler that waits for whichever child has ended, a worker would not learn how its
    trial processes ended. What C code has made of the signal is not known here, and stays.
    """

    def __init__(self) -> None:
        self._users: Any = signal.SIG_DFL

    def give(self) -> None:
        """The user's code runs from now on."""
        if self._users is not signal.SIG_DFL:
            signal.signal(signal.SIGCHLD, self._users)

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """The user's code runs in the block."""
        self.give()
        try:
            yield
        finally:
            self._users = signal.getsignal(signal.SIGCHLD) or signal.SIG_DFL  # it is none of Python's
            if self._users is not signal.SIG_DFL:
                learn_of_children()


def become_leader() -> None:
    """A session, and so a process group, of its own."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(PermissionError):  # it leads one already
            os.setsid()


def adopt_orphans() -> None:
    """Make what dead processes below leave behind a child of this one, which then ends it."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the process ``parent`` ends; at once if it has ended already."""
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), name="corral parent watch", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def thread_count() -> int | None:
    """The threads of this process, native ones included; None where the system does not say."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


@contextlib.contextmanager
def dying_with(parent: int) -> Iterator[None]:
    """While the block runs, the kernel kills this process when the process ``parent``, which made it, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if os.getppid() != parent:
            os._exit(1)
        yield
    finally:
        _prctl(_PR_SET_PDEATHSIG, 0)


def lifeline(supervisor: int) -> int:
    """A descriptor that tells when the process ``supervisor`` has ended, which started this one: see ``LIFELINE``.

    On Linux it is one of that process. An end-of-file would not do: what the supervisor has forked, as
    ``multiprocessing`` does and ``ProcessPoolExecutor``, holds the other end of all that the supervisor held, and may
    live on. Elsewhere, and where the system allows no such descriptor, it is what anyio has put on descriptor 0.

    To be made before the first connection to the supervisor. Then whoever sent what comes on that is the process that
    is watched here, and no later one of the same pid.
    """
    if LINUX:
        try:
            return os.pidfd_open(supervisor)
        except ProcessLookupError:
            os._exit(1)
        except (AttributeError, OSError):  # a kernel before 5.3, or a sandbox
            pass
    return os.dup(0)


def is_at_end(lifeline: int, patience: float = 0.0) -> bool:
    """Whether the supervisor is gone, or will be in so many seconds."""
    poll = select.poll()
    poll.register(lifeline, LIFELINE)
    return bool(poll.poll(patience * 1000))


@contextlib.contextmanager
def sentinel(lifeline: int) -> Iterator[None]:
    """While the block runs, a forked sentinel kills this process as soon as ``lifeline`` tells of the supervisor's end.

    A thread would not do: code that holds the GIL while it loads stops every thread of this process. Where there is no
    fork the block runs unguarded.
    """
    if not hasattr(os, "fork"):
        yield
        return
    guarded = os.getpid()
    pid = os.fork()
    if pid == 0:
        _stand_guard(lifeline, guarded)
    try:
        yield
    finally:
        # User code may have reaped it, and its pid be another process's by now.
        with contextlib.suppress(ProcessLookupError, PermissionError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _stand_guard(lifeline: int, guarded: int) -> None:
    try:
        if LINUX:
            die_with_parent(guarded)  # a copy of its connection in a sentinel would hide its end for a moment
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        while os.getppid() == guarded:
            if is_at_end(lifeline, 1.0):
                os.killpg(guarded, signal.SIGKILL)
    finally:
        os._exit(0)


def open_resources() -> dict[int, str]:
    """Descriptors above 2 that are sockets or files open for writing: forks would share them."""
    found: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                number = int(name)
                target = os.readlink(f"/proc/self/fd/{number}")
                if number > 2 and (target.startswith("socket:") or _is_writable_file(number, target)):
                    found[number] = target
    return found


def _is_writable_file(number: int, target: str) -> bool:
    if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
        return False
    with open(f"/proc/self/fdinfo/{number}") as info:
        flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    return flags & os.O_ACCMODE != os.O_RDONLY


def child_pids() -> set[int]:
    """The direct children of this process, adopted ones included."""
    with contextlib.suppress(OSError):
        found: set[int] = set()
        for thread in os.listdir("/proc/self/task"):  # each thread has those that it started
            with open(f"/proc/self/task/{thread}/children") as listing:
                found.update(int(pid) for pid in listing.read().split())
        return found
    import psutil

    return {child.pid for child in psutil.Process().children()}


def end_children(spared: set[int]) -> set[int]:
    """Kill and reap every child but the ``spared``, and what they leave behind, until none is left.

    Gives those that are another user's and that this process may not kill: they stay.
    """
    kept: set[int] = set()
    while strays := child_pids() - spared - kept:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                try:
                    os.kill(pid, signal.SIGKILL)
                except PermissionError:
                    kept.add(pid)
        for pid in strays:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG if pid in kept else 0)[0]:
                    kept.discard(pid)  # it had ended, which does not make the signal permitted
    return kept


def told(pid: int) -> str:
    """A process in words: what it is and whose."""
    import psutil

    try:
        process = psutil.Process(pid)
        return f"{process.name()} (pid {pid}) of the user {process.username()}"
    except psutil.Error:
        return f"pid {pid}"
