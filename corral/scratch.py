"""Temporary folders that only this user can enter.

Guarantees
    * A folder goes with its object. Of an owner that was killed it stays, and the next one to come removes it.
    * No folder of an owner that runs is removed, though containers or nodes share the place for temporary files.
How
    A name says who owns the folder: where it runs, and its pid there. A pid says something only where it was given, so
    nobody judges what came from elsewhere: another machine, another boot of it, another namespace of pids. A lock in
    the folder would judge that too, but not on every shared file system, where a lock may hold on one node only, and
    not before it is taken; a folder that stays costs some disk, one that is removed costs its owner's trials. What a
    killed container or a machine that went down left is therefore its user's to remove.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from pathlib import Path

import psutil

from corral.errors import ConfigError

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PID_NAMESPACE = "/proc/self/ns/pid"


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder, removed with the object. ConfigError naming the places tried if none can be made.

    What killed processes of this machine have left is removed first.
    """
    try:
        _remove_left(Path(tempfile.gettempdir()))
        return named_folder()
    except OSError as error:
        raise ConfigError(
            f"no temporary folder can be made: {error}; set TMPDIR to a folder you can write to"
        ) from None


def named_folder() -> tempfile.TemporaryDirectory[str]:
    """One that removes nothing of others, and has a name by which others remove it. OSError if it cannot be made."""
    return tempfile.TemporaryDirectory(prefix=prefix_of(os.getpid()), ignore_cleanup_errors=True)


def prefix_of(pid: int) -> str:
    """What the names of the folders of that process begin with."""
    return f"corral-{_here()}-{pid}-"


def _here() -> str:
    """Where pids mean what they mean here: eight letters, for the name is part of a socket's short path.

    The host's name is part of it because copies of one virtual machine have the same boot, and is all there is on a
    system that tells no more.
    """
    try:
        boot = Path(_BOOT_ID).read_text()
        namespace = os.readlink(_PID_NAMESPACE)
    except OSError:
        boot = namespace = ""
    return hashlib.sha256(f"{boot} {namespace} {platform.node()}".encode()).hexdigest()[:8]


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that were here and are gone."""
    for left in place.glob(f"corral-{_here()}-*-*"):
        pid = left.name.split("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
