"""Temporary folders that only this user can enter."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

from corral.errors import ConfigError

_NAME = re.compile(r"corral-(\d+)-\w+")


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder, removed with the object. ConfigError naming the places tried if none can be made.

    A process that is killed leaves its folders: the name holds its pid, and the next one to come removes them.
    """
    try:
        _remove_left(Path(tempfile.gettempdir()))
        return tempfile.TemporaryDirectory(prefix=f"corral-{os.getpid()}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"no temporary folder can be made: {error}; set TMPDIR to a folder you can write to"
        ) from None


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that are gone."""
    for left in place.glob("corral-*-*"):
        match = _NAME.fullmatch(left.name)
        if match and not psutil.pid_exists(int(match[1])):
            shutil.rmtree(left, ignore_errors=True)
