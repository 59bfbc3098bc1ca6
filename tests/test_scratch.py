"""Temporary folders: private, removed, and cleared after a process that was killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from corral.errors import ConfigError
from corral.scratch import scratch_folder


@pytest.fixture(autouse=True)
def own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_private_and_goes_with_its_owner() -> None:
    with scratch_folder() as name:
        assert stat.S_IMODE(os.stat(name).st_mode) == 0o700
    assert not Path(name).exists()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(own_place: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = own_place / f"corral-{gone.pid}-abcd1234"
    (left / "slot-0").mkdir(parents=True)
    alive = own_place / f"corral-{os.getppid()}-abcd1234"
    alive.mkdir()
    foreign = own_place / "corral-notes"
    foreign.mkdir()
    with scratch_folder():
        assert not left.exists()
        assert alive.exists()
        assert foreign.exists()


def test_where_none_can_be_made_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        scratch_folder()
