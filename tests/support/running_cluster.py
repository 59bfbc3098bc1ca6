"""A Dask cluster for tests: a scheduler and nodes that outlive the pools that use them, as a user's own would.

``python -m tests.support.running_cluster FOLDER NODES`` is one: it writes its certificates into the folder and its address
to standard output, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.pool.dask.config import Certificates, DaskConfig

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class DaskCluster:
    """One that runs."""

    address: str
    certificates: Certificates
    pid: int

    def config(self, **settings: Any) -> DaskConfig:
        """For a pool on it. Its workers get the variables that this process has now."""
        given = {"scheduler": self.address, "certificates": self.certificates, "environment": dict(os.environ)}
        return DaskConfig(**{**given, **settings})


@contextlib.contextmanager
def dask_cluster(folder: Path, nodes: int = 2) -> Iterator[DaskCluster]:
    """A cluster in a process of its own."""
    command = [sys.executable, "-m", "tests.support.running_cluster", str(folder), str(nodes)]
    with open(folder / "cluster.log", "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        address = process.stdout.readline().decode().strip()
        assert address, (folder / "cluster.log").read_text()
        try:
            yield DaskCluster(address, _certificates(folder), process.pid)
        finally:
            process.stdin.close()
            process.wait(30)


def _certificates(folder: Path) -> Certificates:
    return Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")


async def _main(folder: Path, nodes: int) -> None:
    from distributed import Security

    from corral.pool.dask.cluster import launched
    from corral.pool.dask.launch import LocalNodes

    security: Any = Security.temporary()
    (folder / "ca.pem").write_text(security.tls_ca_file)
    (folder / "cert.pem").write_text(security.tls_client_cert)
    (folder / "key.pem").write_text(security.tls_client_key)
    async with launched(LocalNodes(nodes), security) as cluster:
        print(cluster.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2])))
