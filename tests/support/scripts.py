"""Python programs in processes of their own, as users run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """The variables of a user who has Corral and this repository's tests on the path, and warnings as errors."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **more}


def python(
    *arguments: str,
    folder: Path,
    stdin: str | None = None,
    within: float = 50,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder`` to its end."""
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(**(variables or {})), capture_output=True, text=True,
        timeout=within, check=False, **given,
    )  # fmt: skip


def script(text: str, folder: Path, *arguments: str, name: str = "script.py", **variables: str) -> str:
    """Run a script that must succeed; what it printed."""
    (folder / name).write_text(text)
    done = python(name, *arguments, folder=folder, variables=variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def start(arguments: Sequence[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Start Python in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment(**variables), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
