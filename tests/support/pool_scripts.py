"""Scripts of users, run as such: written to a file, started with Python, watched from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PRELUDE = '''
import os, sys, time
import anyio
from corral.environment import Environment
from corral.pool import WorkerPool, WorkerPoolConfig
from corral.tools import tool
from corral.types import Action, TrialSpec

open(os.environ["PIDS"], "a").write(f"{os.getpid()}\\n")

class Mine(Environment):
    concurrency = "process"
    def get_task_prompt(self): return "p"
    def score(self): return 1.0
    @tool
    def python(self, code: str) -> object:
        "Run code."
        scope = {}
        exec(code, scope)
        return scope.get("result")

def note():
    "Leave this process's pid in the list."
    with open(os.environ["PIDS"], "a") as pids:
        pids.write(f"{os.getpid()}\\n")

def build():
    note()
    return {"a": Mine("a")}

START_CHILD = """
import os, re, subprocess, time
child = subprocess.Popen(["sleep", "300"])
with open(os.environ["PIDS"], "a") as pids:
    pids.write(f"{os.getpid()}\\\\n{child.pid}\\\\n")
"""

async def run(lease, code):
    await lease.open(TrialSpec("t", "a"))
    return (await lease.perform("t", Action.EXECUTE, ("python", {"code": code}), "tool python")).result
'''


class Script:
    """A script of a user's and what became of it. ``pids``: every process that imported it, or built from it."""

    def __init__(self, folder: Path, *parts: str) -> None:
        self.path = folder / "script.py"
        self.path.write_text(PRELUDE + "".join(map(textwrap.dedent, parts)))
        self._pids = folder / "pids"
        self._pids.touch()
        self.environment = {**os.environ, "PIDS": str(self._pids), "PYTHONPATH": str(ROOT)}

    def start(self) -> subprocess.Popen[str]:
        """Start it; its output can be read."""
        return subprocess.Popen(
            [sys.executable, str(self.path)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, by_stdin: bool = False) -> subprocess.CompletedProcess[str]:
        """Run it to its end, by path or as ``python - < script``."""
        command = [sys.executable, "-" if by_stdin else str(self.path), *arguments]
        return subprocess.run(
            command,
            env=self.environment,
            input=self.path.read_text() if by_stdin else None,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )

    def pids(self) -> list[int]:
        """The processes so far, each once."""
        return list(dict.fromkeys(map(int, self._pids.read_text().split())))

    def wait_for(self, count: int, within: float = 15.0) -> list[int]:
        """The processes, as soon as there are ``count``."""
        deadline = time.monotonic() + within
        while len(self.pids()) < count:
            assert time.monotonic() < deadline, f"{self.pids()} within {within:g} s, not {count}"
            time.sleep(0.02)
        return self.pids()
