"""What every test gets: both event loops, stack dumps of a hanging test, and no child process left behind."""

from __future__ import annotations

import faulthandler
import os
import uuid
from collections.abc import Iterator

import psutil
import pytest

MARK = "CORRAL_TEST_RUN"
"""Processes inherit this variable: so a child of a killed child, which nobody is the parent of, is found too."""

PATIENCE = 5.0
"""Seconds that a process may live on after its test: the engine's own promise."""


def pytest_configure(config: pytest.Config) -> None:
    if not faulthandler.is_enabled():
        faulthandler.enable()
    os.environ[MARK] = uuid.uuid4().hex


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of an async test (``@pytest.mark.anyio``): each such test runs on both."""
    return str(request.param)


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == os.environ.get(MARK)
    except (psutil.Error, OSError):
        return False


def left_behind(before: set[int]) -> list[psutil.Process]:
    """The live processes that were started since ``before`` was taken and descend from this one."""
    found = {child.pid: child for child in psutil.Process().children(recursive=True) if child.pid not in before}
    for pid in set(psutil.pids()) - before - found.keys():
        try:
            process = psutil.Process(pid)
        except psutil.Error:
            continue
        if _is_ours(process):
            found[pid] = process
    return [process for process in found.values() if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"pid {process.pid}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"pid {process.pid}"


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail a test that leaves a process running, and end that process."""
    before = set(psutil.pids())
    yield
    left = left_behind(before)
    if not left:
        return
    _, left = psutil.wait_procs(left, timeout=PATIENCE)
    # A process is only known by its parents: one that was started meanwhile is looked for once more.
    left = [process for process in {*left, *left_behind(before)} if _lives(process)]
    if left:
        names = [_describe(process) for process in left]
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=PATIENCE)
        pytest.fail("the test left running:\n  " + "\n  ".join(names), pytrace=False)
