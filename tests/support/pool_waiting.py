"""Waiting with a limit: for a condition, for processes to be gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import anyio
import psutil


async def eventually(condition: Callable[[], Any], within: float = 10.0) -> Any:
    """What ``condition`` gives, as soon as it is true; AssertionError after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not so within {within:g} s"
        await anyio.sleep(0.02)
    return value


def lives(pid: int) -> bool:
    """Whether the process runs: zombies do not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def remain(pids: Iterable[int], within: float = 5.0) -> list[int]:
    """Those of ``pids`` that still run after ``within`` seconds; returns early when none does."""
    deadline = time.monotonic() + within
    while (left := [pid for pid in pids if lives(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


async def gone(*pids: int, within: float = 5.0) -> None:
    """Wait until none of the processes runs."""
    await eventually(lambda: not any(map(lives, pids)), within)
