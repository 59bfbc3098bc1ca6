"""A Dask cluster that somebody else started: a scheduler at an address, and nodes, each started by a command."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributed import Security

from corral.pool.dask.config import Certificates


@dataclass
class Cluster:
    """Its scheduler's address, the certificates that let one in, and its node processes by name."""

    address: str
    certificates: Certificates
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def add(self, name: str, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a node; ``prefix`` stands before its command."""
        command = [*prefix, sys.executable, "-m", "corral.pool.dask.node", self.address, "--name", name,
                   "--nthreads", "2", *_tls(self.certificates)]  # fmt: skip
        self.nodes[name] = subprocess.Popen(_of_this(command), stdin=subprocess.DEVNULL, start_new_session=True)
        return self.nodes[name]


@contextlib.contextmanager
def cluster(folder: Path, host: str = "127.0.0.1") -> Iterator[Cluster]:
    """A scheduler that listens at ``host``; its files are in ``folder``. Ends the scheduler and the nodes."""
    certificates = write_certificates(folder)
    told = folder / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", host, "--port", "0", "--no-show",
               "--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--protocol", "tls",
               "--scheduler-file", str(told), *_tls(certificates)]  # fmt: skip
    nodes: dict[str, subprocess.Popen[bytes]] = {}
    scheduler = subprocess.Popen(_of_this(command), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Cluster(_address(told), certificates, nodes)
    finally:
        for process in [*nodes.values(), scheduler]:
            process.kill()
            process.wait()


_DYING = (
    "import os, sys; from corral.pool.guards import die_with_parent; "
    "die_with_parent(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
)


def _of_this(command: list[str]) -> list[str]:
    """The command of a process that ends with this one: what tests share would outlive a test run that is killed."""
    return [sys.executable, "-c", _DYING, str(os.getpid()), *command]


def write_certificates(folder: Path) -> Certificates:
    """Files with one certificate for all."""
    made = Security.temporary()
    files = {}
    for name, text in (("ca_file", made.tls_ca_file), ("cert", made.tls_client_cert), ("key", made.tls_client_key)):
        files[name] = folder / f"{name}.pem"
        files[name].write_text(text)
    return Certificates(**files)


def _tls(certificates: Certificates) -> list[str]:
    return ["--tls-ca-file", str(certificates.ca_file), "--tls-cert", str(certificates.cert),
            "--tls-key", str(certificates.key)]  # fmt: skip


def _address(told: Path) -> str:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads(told.read_text())["address"])
        assert time.monotonic() < deadline, "the scheduler does not start"
        time.sleep(0.05)
