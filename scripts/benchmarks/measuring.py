"""How the benchmarks measure: rounds that alternate, medians, tails, spread; CPU time and memory of processes."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

Call = Callable[[Any], Awaitable[Any]]


def count(text: str) -> int:
    """A number from 1 on, as an option's type."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


@dataclass
class Timings:
    """Durations in seconds, by round."""

    rounds: list[list[float]] = field(default_factory=list)

    @property
    def all(self) -> list[float]:
        """Those of all rounds."""
        return [value for values in self.rounds for value in values]

    @property
    def median(self) -> float:
        """Over all rounds."""
        return statistics.median(self.all)

    @property
    def p99(self) -> float:
        """The duration that one in a hundred exceeds; with fewer than a hundred of them, the longest."""
        values = sorted(self.all)
        return values[min(len(values) - 1, int(len(values) * 0.99))]

    @property
    def spread(self) -> float:
        """How far the medians of the rounds lie apart, as a fraction of the median."""
        medians = [statistics.median(values) for values in self.rounds]
        return (max(medians) - min(medians)) / self.median

    def figures(self) -> dict[str, float]:
        """What tables show of it."""
        return {"median": self.median, "p99": self.p99, "p99/median": self.p99 / self.median, "spread": self.spread}


TIMING_COLUMNS = {"median": "s", "p99": "s", "p99/median": "x", "spread": "%"}


async def time_calls(call: Call, value: Any, number: int, is_same: Callable[[Any, Any], bool]) -> list[float]:
    """The durations of calls, one after the other. Checks each answer, outside the time that is taken."""
    taken = []
    for _ in range(number):
        began = time.perf_counter()
        answer = await call(value)
        taken.append(time.perf_counter() - began)
        if not is_same(value, answer):
            raise SystemExit(f"a wrong answer: {str(answer)[:200]}")
    return taken


def alternate(subjects: dict[str, Callable[[], float]], rounds: int) -> dict[str, Timings]:
    """Measure each subject once a round, so that a noisy moment hits all of them alike. Each gives its duration."""
    timings = {name: Timings() for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            timings[name].rounds.append([measure()])
    return timings


def ratio(a: Timings | None, b: Timings | None) -> float | None:
    """The median of ``a`` over that of ``b``; None where one is missing."""
    return None if a is None or b is None else a.median / b.median


def cpu_seconds() -> float:
    """The CPU time of this process, all its threads, without its children."""
    return time.process_time()


@dataclass(frozen=True)
class Memory:
    """What a process holds, in bytes."""

    rss: int
    """Resident: pages that it shares count in full."""
    pss: int
    """Its own pages, and its share of those that several processes have."""
    uss: int
    """What ending it would free."""

    @classmethod
    def of(cls, pid: int) -> Memory:
        """Of a process. Where the system does not tell, PSS is RSS."""
        full = psutil.Process(pid).memory_full_info()
        return cls(full.rss, getattr(full, "pss", full.rss), full.uss)

    @classmethod
    def of_all(cls, pids: Iterable[int]) -> Memory:
        """Of several processes together."""
        each = [cls.of(pid) for pid in pids]
        return cls(sum(m.rss for m in each), sum(m.pss for m in each), sum(m.uss for m in each))


def peak_rss() -> int:
    """The most that this process ever held, in bytes, or what it holds now where the system does not tell."""
    with suppress(OSError), open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return psutil.Process().memory_info().rss


def descendants(pid: int | None = None) -> list[int]:
    """The processes below one, this one where none is given."""
    return [child.pid for child in psutil.Process(pid or os.getpid()).children(recursive=True)]
