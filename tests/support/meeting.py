"""CHILD SIDE: how many trials are at one place at once, seen by themselves, in threads and processes alike."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

LINGER = 0.03
"""Seconds that guests stay once all have come, for one too many to be seen."""


class Meeting:
    """A place. ``folder`` holds a file for each guest while it is there, and one for each crowd that was ever seen."""

    def __init__(self, folder: Path) -> None:
        self._inside = folder / "inside"
        self._crowds = folder / "crowds"
        self._inside.mkdir(parents=True, exist_ok=True)
        self._crowds.mkdir(parents=True, exist_ok=True)

    def attend(self, guests: int, within: float = 10.0) -> None:
        """Enter, stay until ``guests`` were there at once (now or earlier), and leave."""
        me = self._inside / f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
        me.touch()
        try:
            deadline = time.monotonic() + within
            while self._look() < guests:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"only {self.most} came")
                time.sleep(0.005)
            linger = time.monotonic() + LINGER
            while time.monotonic() < linger:
                self._look()
                time.sleep(0.005)
        finally:
            me.unlink()

    def _look(self) -> int:
        here = len(os.listdir(self._inside))
        (self._crowds / str(here)).touch()
        return self.most

    @property
    def most(self) -> int:
        """The largest crowd."""
        return max((int(name) for name in os.listdir(self._crowds)), default=0)
