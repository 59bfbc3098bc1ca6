"""Two networks joined by a cable that can be pulled: this one, and a namespace at the far end of a pair of interfaces.

Needs root and ``ip`` (Debian: iproute2).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator


def missing() -> str:
    """What a test with networks of its own lacks here; empty where it can run."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "not installed: ip (scripts/setup-slurm)"
    name = f"corral-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return "" if made.returncode == 0 else f"network namespaces cannot be made: {made.stderr.strip()}"


class Cable:
    """What joins the two. Interfaces, addresses and the namespace are named after this process."""

    def __init__(self) -> None:
        own = os.getpid()
        self._name = f"corral-{own}"
        self._near, self._far = f"cn{own}", f"cf{own}"
        network = f"198.18.{own // 64 % 256}"  # a range that is kept for tests of networks
        first = own % 64 * 4
        self.near, self.far = f"{network}.{first + 1}", f"{network}.{first + 2}"
        """The addresses of the ends."""
        self.prefix = ("ip", "netns", "exec", self._name)
        """Before a command: it runs at the far end."""

    def lay(self) -> None:
        """Make it."""
        _ip("netns", "add", self._name)
        _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
        for network, name, address in (((), self._near, self.near), (("-n", self._name), self._far, self.far)):
            _ip(*network, "address", "add", f"{address}/30", "dev", name)
            _ip(*network, "link", "set", name, "up")
        _ip("-n", self._name, "link", "set", "lo", "up")

    def pull(self) -> None:
        """From here the cable hangs loose: this end has no carrier, and the other end no interface."""
        _ip("-n", self._name, "link", "set", self._far, "down")

    def swallow(self) -> None:
        """From here all that is sent from either end goes to nobody, and no one is told."""
        nobody = "02:00:00:00:00:99"
        _ip("neighbour", "replace", self.far, "lladdr", nobody, "dev", self._near, "nud", "permanent")
        _ip("-n", self._name, "neighbour", "replace", self.near, "lladdr", nobody, "dev", self._far, "nud", "permanent")

    def remove(self) -> None:
        """Leave nothing of it."""
        for arguments in (("link", "delete", self._near), ("netns", "delete", self._name)):
            subprocess.run(["ip", *arguments], capture_output=True, check=False)


@contextlib.contextmanager
def cable() -> Iterator[Cable]:
    """A cable, for a while."""
    made = Cable()
    try:
        made.lay()
        yield made
    finally:
        made.remove()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=30)
