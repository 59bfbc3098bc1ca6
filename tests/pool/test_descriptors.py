"""A pool of many workers under the limit of open files that this process has, or is given."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral.pool import channel
from corral.pool.channel import open_listener
from tests.pool.test_channel import let_in
from tests.support.scripts import python

SCRIPT = """
import resource, sys
from corral import CorralRunner
from corral.agents import ScriptedAgent
from tests.support import pool_envs

def work(lab, prompt):
    lab.call("python", code="import time; time.sleep(0.3)")
    return "x"

if __name__ == "__main__":
    soft, hard, size = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    runner = CorralRunner(pool_envs.build, agent_factory=lambda context: ScriptedAgent(work))
    limits = dict.fromkeys(("max_concurrency", "max_concurrency_per_task", "worker_pool"), size)
    result = runner.bench(trials_per_task=size, task_ids=["a"], progress=False, **limits)
    print(result.coverage.graded, resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def _bench(folder: Path, soft: int, hard: int, size: int) -> tuple[int, str, str]:
    (folder / "script.py").write_text(SCRIPT)
    done = python("script.py", str(soft), str(hard), str(size), folder=folder)
    return done.returncode, done.stdout.strip(), done.stderr.strip()


@pytest.mark.slow
def test_the_limit_is_raised_as_far_as_the_pool_needs_it(tmp_path: Path) -> None:
    code, printed, told = _bench(tmp_path, 40, 400, 12)
    assert (code, told) == (0, "")
    graded, soft, hard = (int("".join(filter(str.isdigit, word))) for word in printed.split())
    assert (graded, hard) == (12, 400)
    assert 12 * 4 < soft < 400


def test_a_pool_that_the_system_has_no_room_for_is_refused_at_once(tmp_path: Path) -> None:
    code, printed, told = _bench(tmp_path, 100, 100, 48)
    assert (code, printed) == (1, "")
    assert "ConfigError: a pool of 48 needs some" in told.splitlines()[-1]
    assert "the system allows this process 100 (ulimit -Hn): take a smaller pool" in told.splitlines()[-1]


@pytest.mark.anyio
async def test_who_cannot_be_let_in_for_want_of_descriptors_waits_and_nobody_spins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    class Full(socket.socket):
        def accept(self) -> Any:
            nonlocal tried
            tried += 1
            if tried <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(socket, "socket", Full)
    monkeypatch.setattr(channel, "FULL_PAUSE", 0.05)
    began = anyio.current_time()
    async with open_listener(tmp_path) as listener:
        await let_in(listener, listener.expect())
    assert tried == 4
    assert anyio.current_time() - began > 0.15
