"""How the nodes of a pool are started, as settings: on this machine, by ssh, or as jobs of a batch system. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from corral.errors import ConfigError
from corral.types import check_count, check_seconds

BatchSystem = Literal["slurm", "pbs", "lsf", "sge", "oar", "htcondor", "moab"]
"""The batch systems that dask-jobqueue knows."""

MAX_NODES = 512
"""Each is a connection, and a descriptor, of the supervisor."""


@dataclass(frozen=True)
class LocalNodes:
    """Nodes that are processes of this machine: to try a pool of several nodes without having them."""

    nodes: int = 2
    python: str | None = None
    """The interpreter of the node processes. None: the one that runs this."""
    start_timeout: float = 60.0
    """Seconds until the first node must have come."""

    def __post_init__(self) -> None:
        _check_nodes(self.nodes)
        _check_text(self.python, "the python of nodes")
        _check_start_timeout(self.start_timeout)

    @property
    def names(self) -> tuple[str, ...]:
        """``local-0``, ``local-1``, ..."""
        return tuple(f"local-{number}" for number in range(self.nodes))


@dataclass(frozen=True)
class SSHNodes:
    """Nodes that are reached by the system's ``ssh``, without a password: its configuration and agent are used."""

    hosts: Sequence[str]
    """As ``ssh`` takes them: ``name``, ``user@name``, or a ``Host`` of its configuration. One that stands here twice
    gets two nodes."""
    python: str | None = None
    """The interpreter there, with Corral and the same release of distributed. None: the path of the one here."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the node process, besides those that the host sets."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of ``ssh``, as in its configuration: ``{"Port": "2222"}``."""
    interface: str | None = None
    """The network interface of this machine that the hosts reach, such as ``ib0``. None: that of its default route."""
    start_timeout: float = 60.0
    """Seconds until the first node must have come."""

    def __post_init__(self) -> None:
        hosts = (self.hosts,) if isinstance(self.hosts, str) else tuple(self.hosts)  # a str is a sequence of them too
        object.__setattr__(self, "hosts", hosts)
        if not hosts:
            raise ConfigError("nodes by ssh need at least one host")
        for host in hosts:
            if not re.fullmatch(r"[^\s,-][^\s,]*", str(host)):
                raise ConfigError(f"a host for ssh must be a name such as node1 or user@node1, not {host!r}")
        if len(hosts) > MAX_NODES:
            raise ConfigError(f"a pool can have at most {MAX_NODES} nodes, not {len(hosts)}")
        _check_text(self.python, "the python of nodes")
        _check_text(self.interface, "interface")
        _check_mapping(self.environment, "environment", r"[A-Za-z_][A-Za-z0-9_]*")
        _check_mapping(self.options, "options of ssh", r"[A-Za-z0-9]+")
        _check_start_timeout(self.start_timeout)

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts; those that come again are told apart by a number: ``node1``, ``node1-2``."""
        seen: Counter[str] = Counter()
        names = []
        for host in self.hosts:
            seen[host] += 1
            names.append(host if seen[host] == 1 else f"{host}-{seen[host]}")
        return tuple(names)


@dataclass(frozen=True)
class BatchNodes:
    """Nodes that are jobs of a batch system, by dask-jobqueue; a job that ends is replaced by another one.

    What is None is taken from dask-jobqueue's own configuration (``~/.config/dask/jobqueue.yaml``), which many centres
    hand out.
    """

    system: BatchSystem
    nodes: int
    """Jobs that are held at any time."""
    cores: int | None = None
    """Processors per job."""
    memory: str | None = None
    """Memory per job, such as ``"16GB"``."""
    walltime: str | None = None
    """As the batch system writes it, such as ``"04:00:00"``."""
    queue: str | None = None
    """The queue, or partition."""
    python: str | None = None
    """The interpreter in the jobs. None: the path of the one here."""
    prologue: Sequence[str] = ()
    """Lines of shell that a job runs first: ``module load python``, ``export NAME=value``."""
    folder: str | os.PathLike[str] | None = None
    """A folder that the nodes see too, for certificates and the jobs' output while the pool runs. None: the current
    directory."""
    interface: str | None = None
    """The network interface, of this machine and the nodes, that they reach each other by. None: that of the default
    route."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Further arguments of dask-jobqueue's class, such as ``{"account": "chem", "job_extra_directives": [...]}``."""
    start_timeout: float = 3600.0
    """Seconds until the first node must have come: jobs wait in the queue."""

    def __post_init__(self) -> None:
        if self.system not in get_args(BatchSystem):
            known = ", ".join(get_args(BatchSystem))
            raise ConfigError(f"the batch system must be one of {known}, not {self.system!r}")
        _check_nodes(self.nodes)
        if self.cores is not None:
            check_count(self.cores, "cores per job")
        for name in ("memory", "walltime", "queue", "python", "interface"):
            _check_text(getattr(self, name), name)
        if self.folder is not None and not isinstance(self.folder, str | os.PathLike):
            raise ConfigError(f"folder must be the path of a folder, not {self.folder!r}")
        prologue = (self.prologue,) if isinstance(self.prologue, str) else tuple(self.prologue)
        object.__setattr__(self, "prologue", prologue)
        if taken := sorted(_OURS & set(self.options)):
            raise ConfigError(f"options of dask-jobqueue may not set {', '.join(taken)}: Corral does")
        _check_start_timeout(self.start_timeout)


Launch = LocalNodes | SSHNodes | BatchNodes
"""Any of the ways."""


def size_of(launch: Launch) -> int:
    """How many nodes there will be."""
    return len(launch.hosts) if isinstance(launch, SSHNodes) else launch.nodes


_OURS = frozenset({
    "asynchronous", "cores", "death_timeout", "interface", "job_script_prologue", "log_directory", "loop", "memory",
    "n_workers", "nanny", "processes", "protocol", "python", "queue", "scheduler_cls", "scheduler_options", "security",
    "shared_temp_directory", "silence_logs", "walltime", "worker_command", "worker_extra_args",
})  # fmt: skip
"""Arguments of dask-jobqueue that have a field of their own, or that the pool depends on."""

_SETTINGS = {"cores": int, "memory": str, "walltime": str, "queue": str}
"""What the text of a batch launch can set besides the number of nodes, and how it is read."""


def parse_launch(text: str) -> Launch:
    """A launch from text: ``local:2``, ``ssh:node1,node2``, ``slurm:8,cores=16,memory=64GB,walltime=04:00:00,queue=q``.

    Raises:
        ConfigError: it is none of these.
    """
    how, _, rest = text.partition(":")
    parts = [part.strip() for part in rest.split(",") if part.strip()]
    if how == "ssh":
        return SSHNodes(tuple(parts))
    if how != "local" and how not in get_args(BatchSystem):
        raise ConfigError(
            f"nodes are started by local:N, ssh:HOST,... or BATCH_SYSTEM:N ({', '.join(get_args(BatchSystem))}), "
            f"not {text!r}"
        )
    count, settings = (parts[0], parts[1:]) if parts else ("", [])
    if not re.fullmatch(r"[0-9]+", count):
        raise ConfigError(f"{text!r} does not say how many nodes: {how}:4")
    if how != "local":
        return BatchNodes(how, int(count), **_settings(settings, text))  # type: ignore[arg-type]  # checked above
    if settings:
        raise ConfigError(f"{text!r}: nodes on this machine have no {settings[0]!r}")
    return LocalNodes(int(count))


def _settings(parts: list[str], text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in _SETTINGS or not value:
            raise ConfigError(f"{text!r}: {part!r} is none of {', '.join(f'{known}=...' for known in _SETTINGS)}")
        try:
            found[name] = _SETTINGS[name](value)
        except ValueError:
            raise ConfigError(f"{text!r}: {name} must be a whole number, not {value!r}") from None
    return found


def _check_nodes(value: object) -> None:
    if check_count(value, "the number of nodes") > MAX_NODES:
        raise ConfigError(f"a pool can have at most {MAX_NODES} nodes, not {value}")


def _check_start_timeout(value: object) -> None:
    if check_seconds(value, "start_timeout") is None:
        raise ConfigError("start_timeout must be a number of seconds: nodes that never come must be noticed")


def _check_text(value: object, name: str) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip() or "\n" in value):
        raise ConfigError(f"{name} must be text, not {value!r}")


def _check_mapping(value: object, name: str, key: str) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be names with values, not {value!r}")
    for known, content in value.items():
        if not isinstance(known, str) or not re.fullmatch(key, known) or not isinstance(content, str):
            raise ConfigError(f"{name} must be names with text as their values, not {known!r}: {content!r}")
