"""Temporary folders: private, removed, and cleared after a process that was killed; never under one that lives."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corral import scratch
from corral.errors import ConfigError
from corral.scratch import prefix_of, scratch_folder

ROOT = Path(__file__).parent.parent
NEW_PIDS = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
"""Before a command: it runs in a namespace of pids of its own, as in a container."""
MAKE_ONE = "from corral.scratch import scratch_folder; print(scratch_folder().name)"


def _no_namespaces() -> str:
    if shutil.which("unshare") is None:
        return "not installed: unshare"
    made = subprocess.run([*NEW_PIDS, "true"], capture_output=True, text=True, check=False)
    return "" if made.returncode == 0 else f"namespaces of pids cannot be made: {made.stderr.strip()}"


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def gone() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_it_is_private_and_goes_with_its_owner() -> None:
    with scratch_folder() as name:
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o700
    assert not Path(name).exists()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(own_place: Path, gone: int) -> None:
    left = own_place / f"{prefix_of(gone)}abcd1234"
    (left / "slot-0").mkdir(parents=True)
    alive = own_place / f"{prefix_of(os.getppid())}abcd1234"
    alive.mkdir()
    foreign = own_place / "corral-notes"
    foreign.mkdir()
    with scratch_folder():
        assert not left.exists()
        assert alive.exists()
        assert foreign.exists()


def test_nobody_judges_what_comes_from_where_pids_mean_something_else(
    own_place: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("platform.node", lambda: "another-node")
        theirs = own_place / f"{prefix_of(gone)}abcd1234"
    theirs.mkdir()
    of_old = own_place / f"corral-{gone}-abcd1234"  # of a version that did not say where
    of_old.mkdir()
    with scratch_folder():
        assert theirs.exists()
        assert of_old.exists()


@pytest.mark.skipif(bool(_no_namespaces()), reason=_no_namespaces())
def test_a_container_leaves_alone_what_lives_outside_of_it(own_place: Path) -> None:
    """None of the pids out here exists in there."""
    environment = {**os.environ, "TMPDIR": str(own_place), "PYTHONPATH": str(ROOT)}
    with scratch_folder() as ours:
        inside = subprocess.run(
            [*NEW_PIDS, sys.executable, "-c", MAKE_ONE], env=environment, capture_output=True, text=True, check=True
        )
        assert Path(inside.stdout.strip()).parent == own_place
        assert Path(ours).exists()


def test_where_the_system_tells_little_names_are_made_all_the_same(
    own_place: Path, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_BOOT_ID", str(own_place / "missing"))
    left = own_place / f"{prefix_of(gone)}abcd1234"
    left.mkdir()
    with scratch_folder() as name:
        assert Path(name).name.startswith(prefix_of(os.getpid()))
        assert not left.exists()


def test_where_none_can_be_made_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        scratch_folder()
