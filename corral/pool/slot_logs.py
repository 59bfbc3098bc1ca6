"""NODE SIDE. Which file what a slot prints goes to: one that nobody else writes to.

Purpose
    Runs may have one ``log_dir``, and records are cut from these files: what another run wrote into one would be taken
    for a trial's own output.
Guarantees
    * Slot N has ``slot-N.log``, or, while somebody else has that one, the first free of ``slot-N.2.log``, ...
    * It is kept as long as the slot has a worker here: a slot that has moved to another node finds it free there.
Assumptions
    The file system honours flock. Where it knows no locks, the first name is taken by everybody.
"""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import count
from pathlib import Path

from corral.lean import dataclass


@dataclass
class _Held:
    path: Path
    file: int
    """A descriptor with the lock on it. No other process has it: those that print open the file for themselves."""
    workers: int = 0


class SlotLogs:
    """The files of an agent's slots, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[int, _Held] = {}
        """By slot."""

    def take(self, slot: int) -> Path:
        """The file for another worker of that slot. OSError if it cannot be written to."""
        held = self._held.get(slot)
        if held is None or not _is_at(held.path, held.file):  # a trial or its user may have removed it
            workers = 0 if held is None else held.workers
            fresh = self._free(slot)
            if held is not None:
                os.close(held.file)
            held = self._held[slot] = _Held(*fresh, workers)
        held.workers += 1
        return held.path

    def give_back(self, slot: int) -> None:
        """That worker is gone, and all that printed for it."""
        held = self._held.get(slot)
        if held is not None:
            held.workers -= 1
            if held.workers == 0:
                del self._held[slot]
                os.close(held.file)

    def close(self) -> None:
        """Give all back."""
        for held in self._held.values():
            os.close(held.file)
        self._held.clear()

    def _free(self, slot: int) -> tuple[Path, int]:
        names = (f"slot-{slot}.log" if number == 1 else f"slot-{slot}.{number}.log" for number in count(1))
        for path in (self._folder / name for name in names):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)  # to write, for a lock over NFS
            if _lock(file) and _is_at(path, file):
                return path, file
            os.close(file)
        raise AssertionError("there are always more names")


def _lock(file: int) -> bool:
    """Whether nobody else has the file. True where that cannot be told."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_at(path: Path, file: int) -> bool:
    """Whether ``file`` is the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(path), os.fstat(file))
    return False
