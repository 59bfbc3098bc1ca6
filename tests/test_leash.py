"""A process that is held on a leash ends when the leash is let go, whatever else this process has started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.scripts import script

FORKED = """
import os, subprocess, time
from corral.leash import Leash

with Leash() as leash:
    process = subprocess.Popen(["cat"], stdin=leash.end, stdout=subprocess.PIPE)
    leash.given()
    leash.write(b"told")
    if (fork := os.fork()) == 0:
        time.sleep(300)
        os._exit(0)
try:
    print(process.communicate(timeout=10)[0].decode(), os.waitpid(fork, os.WNOHANG))
finally:
    os.kill(fork, 9)
    process.kill()
"""


@pytest.mark.skipif(os.name != "posix", reason="there is no fork")
def test_a_fork_does_not_hold_the_leash(tmp_path: Path) -> None:
    assert script(FORKED, tmp_path) == "told (0, 0)\n"
