"""SUPERVISOR SIDE. Processes of this machine that are nobody's children here: found by pid, killed, waited for."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import anyio
import psutil

PATIENCE = 5.0
"""Seconds to wait for a killed process."""
_PROCESSORS = os.cpu_count() or 1
_HAS_PROC = Path("/proc/self/stat").exists()
_STOPPED = ("T", psutil.STATUS_STOPPED)
_NOT_THERE = (None, *_STOPPED, "t", psutil.STATUS_TRACING_STOP, "Z", psutil.STATUS_ZOMBIE, "X", psutil.STATUS_DEAD)
"""In the letters of Linux, and in psutil's words."""
_UNDISTURBED = re.compile(rb"\nState:\t[RS].*\nThreads:\t1\n.*\nSigPnd:\t0+\nShdPnd:\t0+\n", re.DOTALL)
"""What proc_pid_status(5) says of a process that runs or waits, has one thread and no pending signal."""


def find_process(pid: int) -> psutil.Process | None:
    """The process, if it is known (a pid is not 0) and exists."""
    try:
        return psutil.Process(pid) if pid else None
    except psutil.Error:
        return None


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped (SIGSTOP) and so does nothing."""
    return _status(pid) in _STOPPED


def is_there(pid: int) -> bool:
    """Whether the process exists and can do something: it has neither ended nor been stopped."""
    return _status(pid) not in _NOT_THERE


def _status(pid: int) -> str | None:
    """What a process is at; None if there is none. Looked at for each trial: psutil reads twice, and all there is."""
    if _HAS_PROC:
        try:
            return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split(maxsplit=1)[0].decode("ascii", "replace")
        except OSError:
            return None
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return None


def has_idle_processor() -> bool:
    """Whether no more computes on this machine now than it has processors. Where that is not known: no."""
    try:
        running, _, _ = _read("/proc/loadavg").split()[3].partition(b"/")
        return int(running) <= _PROCESSORS
    except (OSError, ValueError, IndexError):
        return False


def is_undisturbed(pid: int) -> bool:
    """Whether the process is there, with one thread and no signal on its way to it. Where that is not known: no."""
    try:
        return _UNDISTURBED.search(_read(f"/proc/{pid}/status")) is not None
    except OSError:
        return False


def _read(path: str) -> bytes:
    """One of the kernel's short files: a quarter of what ``open`` takes."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def descendants(pid: int) -> list[psutil.Process]:
    """All below a process; none if that is not known, or gone."""
    try:
        return psutil.Process(pid).children(recursive=True) if pid else []
    except psutil.Error:
        return []


def signal_all(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to those that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def tree_rss(pid: int) -> int:
    """Resident memory (bytes) of a process and all below it; 0 if it is gone. Pages that they share count for each."""
    return sum(tree_sizes(pid))


def tree_sizes(pid: int) -> list[int]:
    """Resident memory (bytes) of a process and of each below it; none if it is gone."""
    return [size for process in _tree(pid) if (size := _rss(process))]


def tree_shares(pid: int) -> int:
    """What a process and all below it hold together (bytes): of pages that several share, each counts a part.

    Where the system does not tell, a process counts with all that is resident. It walks through all their pages: some
    15 ms for each GiB.
    """
    return sum(map(_share, _tree(pid)))


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _share(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error, OSError):  # of another user: a program that changed it
        return getattr(process.memory_full_info(), "pss", 0) or _rss(process)
    return _rss(process)


async def see_off(processes: list[psutil.Process]) -> None:
    """Kill them and wait until none runs: for those that are nobody's children here."""
    killed = [process for process in processes if _is_killed(process)]
    with anyio.move_on_after(PATIENCE):
        while any(map(_runs, killed)):
            await anyio.sleep(0.005)


def _is_killed(process: psutil.Process) -> bool:
    """Kill it. No if it is gone, or another user's whom this process has no power over."""
    try:
        process.kill()
    except psutil.Error:
        return False
    return True


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
