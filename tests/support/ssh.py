"""An ssh server on this machine's loopback, with keys that exist for one test only."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/pid
UsePAM no
PasswordAuthentication no
StrictModes no
"""


def missing() -> str:
    """What a test with ssh lacks here; empty where it can run."""
    if os.geteuid() != 0:
        return "only root can start an ssh server that lets root in"
    lacking = [name for name in ("ssh", "ssh-keygen", "sshd") if _program(name) is None]
    return f"not installed: {', '.join(lacking)} (scripts/setup-slurm)" if lacking else ""


@contextlib.contextmanager
def running_ssh(folder: Path) -> Iterator[dict[str, str]]:
    """Start it with its files in ``folder``; the options that a client needs."""
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=30)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    (folder / "configuration").write_text(CONFIGURATION.format(port=port, folder=folder))
    Path("/run/sshd").mkdir(exist_ok=True)  # where the server wants to lock itself in
    server = _program("sshd")
    assert server is not None
    with subprocess.Popen([server, "-D", "-e", "-f", str(folder / "configuration")], stderr=subprocess.PIPE) as process:
        try:
            _wait_for(port, process)
            yield {
                "Port": str(port),
                "IdentityFile": str(folder / "user"),
                "UserKnownHostsFile": str(folder / "known"),
                "StrictHostKeyChecking": "no",
            }
        finally:
            process.terminate()
            process.communicate(timeout=10)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # sshd wants its whole path


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert server.poll() is None, f"sshd ended: {server.communicate()[1].decode()}"
            assert time.monotonic() < deadline, "sshd does not answer"
            time.sleep(0.05)
