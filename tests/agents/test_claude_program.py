"""How the Claude Code program is held: another program in its place, so no extra is needed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.pool_waiting import lives, remain
from tests.support.scripts import start

RUN = """
import os, sys, time
from pathlib import Path
import anyio
from corral.agents.claude_program import running

async def main():
    async with running(["sleep", "300"], "a prompt", cwd=Path.cwd(), environment=os.environ):
        if (fork := os.fork()) == 0:
            time.sleep(300)
            os._exit(0)
        print(fork, flush=True)
        await anyio.sleep(300)

anyio.run(main)
"""


@pytest.mark.skipif(os.name != "posix", reason="elsewhere there is no leash")
def test_the_program_ends_with_a_run_that_is_killed_though_a_fork_of_that_lives(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "run.py").write_text(RUN)
    run = start(["run.py"], folder)
    assert run.stdout is not None
    fork = int(run.stdout.readline())
    try:
        programs = {child.pid for child in psutil.Process(run.pid).children(recursive=True)} - {fork}
        assert programs
        run.kill()
        run.wait(10)
        assert remain(programs) == []
        assert lives(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        run.communicate(timeout=10)
