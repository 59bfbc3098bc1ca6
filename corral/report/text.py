"""Small texts that displays share: amounts, durations, counts by kind, and text from elsewhere made safe to print."""

from __future__ import annotations

import math
from collections.abc import Mapping


def printable(text: object) -> str:
    """``text`` in one line: control characters, line ends and lone surrogates stand as their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def shortened(text: object, limit: int) -> str:
    """``printable`` text of at most ``limit`` characters."""
    line = printable(text)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def count(number: int, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def kinds(counts: Mapping[str, int]) -> str:
    """``memory 1, worker_died 2``."""
    return ", ".join(f"{printable(kind)} {number}" for kind, number in sorted(counts.items()) if number)


def waits(counts: Mapping[str, int]) -> str:
    """``3 wait for max_concurrency (2), 1 for a slot of the pool``; empty where nothing is waited for."""
    parts = [f"{number} for {printable(what)}" for what, number in sorted(counts.items()) if number]
    if not parts:
        return ""
    number, rest = parts[0].split(" ", 1)
    return ", ".join([f"{number} {'waits' if number == '1' else 'wait'} {rest}", *parts[1:]])


def figure(value: object) -> str:
    """A figure with three decimals; ``-`` where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return "-"
    return f"{value:.3f}"


def clock_time(seconds: float) -> str:
    """``0:07``, ``12:34``, ``1:02:03``."""
    whole = max(0, int(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def duration(seconds: float) -> str:
    """``0.12 s``, ``34.5 s``, and ``12:34`` from two minutes on."""
    if seconds >= 120:
        return clock_time(seconds)
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def rate(per_second: float) -> str:
    """``12.3/s``; by the minute or the hour where that reads better."""
    for factor, unit in ((1, "s"), (60, "min"), (3600, "h")):
        if per_second * factor >= 1 or unit == "h":
            return f"{per_second * factor:.1f}/{unit}"
    raise AssertionError("the loop ends with hours")
