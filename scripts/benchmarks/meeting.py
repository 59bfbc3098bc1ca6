"""A meeting of processes: each connects to a socket and stays until the last one has."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from corral.scratch import scratch_folder

PATIENCE = 120.0
"""Seconds that each guest may take."""


@dataclass
class Meeting:
    """A socket to which every process connects. Times count from ``began``."""

    path: str
    size: int
    server: socket.socket
    began: float = 0.0
    times: list[float] = field(default_factory=list)

    def wait(self) -> None:
        """Return, and let all go on, when all are there; also when one does not come."""
        guests: list[socket.socket] = []
        try:
            for _ in range(self.size):
                guest, _ = self.server.accept()
                guests.append(guest)
                guest.recv(1)
                self.times.append(time.perf_counter() - self.began)
        except OSError:  # nobody else comes
            pass
        finally:
            for guest in guests:
                guest.close()


@contextmanager
def meeting(size: int) -> Iterator[Meeting]:
    """A meeting, attended by a thread of this process while the block runs."""
    with scratch_folder() as folder, socket.socket(socket.AF_UNIX) as server:
        path = str(Path(folder) / "meeting")
        server.bind(path)
        server.listen(size)
        server.settimeout(PATIENCE)
        held = Meeting(path, size, server)
        attendant = threading.Thread(target=held.wait)
        held.began = time.perf_counter()
        attendant.start()
        try:
            yield held
        except BaseException:
            server.shutdown(socket.SHUT_RDWR)
            raise
        finally:
            attendant.join()
    if len(held.times) < size:
        raise SystemExit(f"only {len(held.times)} of {size} processes came within {PATIENCE:g} s")
