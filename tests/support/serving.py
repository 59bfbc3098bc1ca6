"""Environment servers as processes of their own, as users start them."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START = 40.0
"""Seconds within which a server must be ready."""


@dataclass
class Served:
    """A server that runs."""

    process: subprocess.Popen[str]
    url: str
    server_id: str
    lines: list[str] = field(default_factory=list)
    """What it wrote on standard error so far."""

    def stop(self, within: float = 20.0) -> int:
        """SIGTERM, and its exit status."""
        self.process.terminate()
        return self.process.wait(within)


@contextlib.contextmanager
def serving(builder: str, *options: str, env: dict[str, str] | None = None, port: int = 0) -> Iterator[Served]:
    """``python -m corral.server`` with that builder, ready."""
    command = [sys.executable, "-m", "corral.server", builder, "--port", str(port), *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    timer = threading.Timer(START, process.kill)
    timer.start()
    try:
        assert process.stdout is not None
        greeting = process.stdout.readline()
        found = re.search(r" at (\S+) \((srv_\w+)", greeting)
        assert found, f"it said {greeting!r} and {lines}"
        timer.cancel()
        yield Served(process, found[1], found[2], lines)
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
        process.wait(10)
        reader.join(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip("\n"))


def until(condition: Callable[[], Any], within: float = 10.0) -> Any:
    """What ``condition`` gives, as soon as it is true: wait for what another process does."""
    end = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return value
