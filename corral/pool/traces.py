"""WORKER SIDE. What a trial leaves behind in a process that serves others after it (``reuse="worker"``).

Purpose
    Say, in the record of the trial that did it, what later trials may see of it. Nothing is put back but what each
    trial is given anew: its environment object, its directory, the global generators of ``random`` and of NumPy.
Guarantee
    Looking changes nothing and calls no user code; ``holdings`` says what it costs.
"""

from __future__ import annotations

import os
import signal
import threading

from corral.pool.holdings import Holdings

LEFT = "left behind in its process, which later trials share: "
"""How the warning begins."""

NAMED = 5
"""How many of each sort are named."""

_SIGNALS = tuple(each for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP))

_first: list[str] = []
"""The directory of the process before its first trial: to be back there is no trace."""


class Traces:
    """The state of this process at one moment. References are held: or a new object could pass for an old one."""

    def __init__(self, packages: frozenset[str], last: Traces | None = None) -> None:
        """``packages``: the first names of modules that count as the user's, wherever they are installed.

        ``last``: an earlier look, from which is taken what has not changed.
        """
        self._variables = dict(os.environ)
        self._directory = _directory()
        if not _first:
            _first.append(self._directory)
        self._threads = {thread.ident: thread.name for thread in threading.enumerate()}
        self._native_threads = _native_threads()
        self._descriptors = _descriptors()
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        seen = last._holdings if last is not None else None
        self._holdings: Holdings = seen if seen is not None and seen.are_same() else Holdings(packages)

    @property
    def settled(self) -> bool:
        """Whether nothing changes before this process is asked for something: it has one thread."""
        return self._native_threads == 1

    def left_until(self, now: Traces) -> str | None:
        """What is different then, in words; None if nothing is."""
        found = [
            _named("module globals", self._holdings.changed_until(now._holdings)),
            _named("environment variables", _changed(self._variables, now._variables)),
            _named(
                "the current directory", [now._directory] if now._directory not in (self._directory, _first[0]) else []
            ),
            _named("signal handlers", [s.name for s in _SIGNALS if now._handlers[s] is not self._handlers[s]]),
            _named("threads", [now._threads[ident] for ident in now._threads.keys() - self._threads.keys()]),
            _named(
                "open descriptors", [what for key, what in now._descriptors.items() if key not in self._descriptors]
            ),
        ]
        more = now._native_threads - self._native_threads - len(now._threads.keys() - self._threads.keys())
        if more > 0:
            found.append(f"{more} native threads")
        told = "; ".join(part for part in found if part)
        return LEFT + told if told else None


def _named(what: str, names: list[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:NAMED])
    return f"{what} {shown}" + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(removed)"


def _native_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _descriptors() -> dict[tuple[int, str], str]:
    found = {}
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # the one that lists
                continue
            found[int(name), target] = f"{name} ({target})"
    except OSError:
        return {}
    return found
