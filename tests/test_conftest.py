"""The guard against left-behind processes works: else every other test would prove less than it seems to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import left_behind

ROOT = Path(__file__).resolve().parent.parent


def test_a_child_and_an_orphan_are_found() -> None:
    before = set(psutil.pids())
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    orphan_maker = f"import subprocess; print(subprocess.Popen({sleep!r}, {quiet}).pid)"
    with subprocess.Popen(sleep) as child:
        done = subprocess.run([sys.executable, "-c", orphan_maker], capture_output=True, text=True, check=True)
        orphan = psutil.Process(int(done.stdout))
        try:
            assert {process.pid for process in left_behind(before)} == {child.pid, orphan.pid}
        finally:
            orphan.kill()
            child.kill()
    psutil.wait_procs([orphan], timeout=10)
    assert left_behind(before) == []


@pytest.mark.slow
def test_a_test_that_leaves_a_process_fails_and_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import subprocess, sys\n"
        "children = []\n"
        "def test_bad():\n"
        "    children.append(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(77)']))\n"
        "def test_good():\n"
        "    children[0].wait(10)\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)
    assert "the test left running:" in done.stdout
    assert "time.sleep(77)" in done.stdout
    assert "2 passed, 1 error" in done.stdout
