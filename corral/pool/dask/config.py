"""How a pool finds its nodes, or has them launched: settings, checked. Dask itself is not loaded for that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from corral.errors import ConfigError
from corral.pool.dask.launch import Launch
from corral.types import check_count, check_seconds

ENCRYPTED = frozenset({"tls", "wss"})
"""The schemes of Dask's addresses that are."""
WITHIN = frozenset({"inproc"})
"""Those that do not leave their process."""


@dataclass(frozen=True)
class Certificates:
    """Files (PEM) with which the cluster's members know each other."""

    ca_file: str | os.PathLike[str]
    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]

    def __post_init__(self) -> None:
        for name in ("ca_file", "cert", "key"):
            path = getattr(self, name)
            if not isinstance(path, str | os.PathLike):
                raise ConfigError(f"{name} must be the path of a PEM file, not {path!r}")
            if not os.path.isfile(path):
                raise ConfigError(f"{name}: there is no file {os.fspath(path)!r}")


@dataclass(frozen=True)
class DaskConfig:
    """Where the nodes come from, and what holds on each. Each setting is checked at once: ConfigError naming it."""

    scheduler: str | None = None
    """The address of a scheduler that runs, such as ``tls://head:8786``."""
    certificates: Certificates | None = None
    """Of the cluster. None: what Dask's own configuration says; what is launched has some made for the run."""
    launch: Launch | None = None
    """How nodes are started, where there is no scheduler yet. With neither: as processes of this machine, to try it."""
    slots_per_node: int | None = None
    """Workers that a node takes at most. None: the pool's are shared out by the nodes' processors (threads of its Dask
    worker), and, where there is a memory limit, none takes more than its memory allows."""
    lease: float = 25.0
    """Seconds without word from this process, after which a node ends all that it runs for it."""
    node_timeout: float = 300.0
    """Seconds to wait for a node that has room, before a slot is given up."""
    prefix: tuple[str, ...] = ()
    """Words before the interpreter on a node: a container's, or ``("nice", "-n", "10")``."""
    interpreter: str | None = None
    """The Python of the workers, on the nodes. None: that of the node's Dask worker."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the workers, beside those of the node's Dask worker."""

    def __post_init__(self) -> None:
        if self.scheduler is not None:
            check_address(self.scheduler, "scheduler")
        if self.certificates is not None and not isinstance(self.certificates, Certificates):
            raise ConfigError(f"certificates must be Certificates, not {self.certificates!r}")
        if self.launch is not None and not isinstance(self.launch, Launch):
            raise ConfigError(f"launch must be LocalNodes, SSHNodes or BatchNodes, not {self.launch!r}")
        if self.launch is not None and self.scheduler is not None:
            raise ConfigError("give the address of a scheduler that runs, or say how to launch one, not both")
        if self.slots_per_node is not None:
            check_count(self.slots_per_node, "slots_per_node")
        for name in ("lease", "node_timeout"):
            if check_seconds(getattr(self, name), name) is None:
                raise ConfigError(f"{name} must be a number of seconds")
        if self.lease < MIN_LEASE:
            raise ConfigError(f"lease must be at least {MIN_LEASE:g} s, more than a silence of a sound node")
        self._check_surroundings()

    def _check_surroundings(self) -> None:
        prefix: Any = self.prefix
        if isinstance(prefix, str) or not all(isinstance(word, str) for word in prefix):
            raise ConfigError(f"prefix must be a tuple of words, not {prefix!r}")
        object.__setattr__(self, "prefix", tuple(prefix))
        if self.interpreter is not None and not isinstance(self.interpreter, str):
            raise ConfigError(f"interpreter must be the path of a Python, not {self.interpreter!r}")
        given: Any = self.environment
        if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
            raise ConfigError(f"environment must hold text by name, not {given!r}")


MIN_LEASE = 5.0


def check_address(address: object, name: str) -> None:
    """ConfigError for what is no address, or one at which everybody could listen in."""
    if not isinstance(address, str) or not address:
        raise ConfigError(f"{name} must be an address such as tls://host:8786, not {address!r}")
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        parts.port  # noqa: B018 - raises
        host = parts.hostname
    except ValueError:
        host = None
    if not host and parts.scheme not in WITHIN:
        raise ConfigError(f"{name} must be an address such as tls://host:8786, not {address!r}")
    if not is_safe(address):
        raise ConfigError(
            f"{name} {address} is refused: by plain {parts.scheme} anybody on the way could read and forge what makes "
            "the nodes run code. Give the cluster certificates and a tls:// address, or reach it by a loopback address"
        )


def is_safe(address: str) -> bool:
    """Whether what is sent there is encrypted, or does not leave this machine."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme in ENCRYPTED | WITHIN or parts.hostname == "localhost":
        return True
    import ipaddress  # late: only who has nodes needs it

    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
