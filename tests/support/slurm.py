"""A real SLURM on this machine, for the time of a test run: munged, slurmctld, and two nodes, each a slurmd.

Everything of it is in one folder: keys, sockets, state, configuration. Each node has a host name of its own, by a
namespace, so that it knows itself in the configuration. Needs root, and Debian's packages ``slurm-wlm`` and ``munge``,
which ``scripts/setup-slurm`` installs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo", "unshare")

NODES = ("node1", "node2")

PATIENCE = 60.0
"""Seconds for the daemons to find each other."""

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
MinJobAge=300
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What a test with SLURM lacks here; empty where it can run."""
    if os.geteuid() != 0:
        return "only root can start SLURM's daemons"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    return f"not installed: {', '.join(lacking)} (scripts/setup-slurm)" if lacking else ""


@dataclass(frozen=True)
class Job:
    """A job as ``squeue`` tells it."""

    id: str
    state: str
    node: str


class Slurm:
    """A running SLURM. ``environment`` is what its commands need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Run one of its commands; what it printed."""
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=30, env={**os.environ, **self.environment}
        ).stdout

    def jobs(self) -> list[Job]:
        """Those that wait, run or are being ended."""
        lines = self.run("squeue", "--noheader", "--format=%i|%T|%N").split()
        return [Job(*line.split("|")) for line in lines]

    def ending(self, job: str) -> str:
        """How a job that ended within the last minutes ended: ``COMPLETED``, ``CANCELLED``, ``TIMEOUT``, ..."""
        return self.run("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}").strip()

    def logs(self) -> str:
        """The ends of the daemons' logs, for a failing test."""
        return "\n".join(f"{path.name}: {path.read_text()[-1000:]}" for path in self._folder.glob("*.log"))


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Start it in ``folder``, wait until both nodes are idle; end every daemon."""
    slurm = Slurm(folder)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(_configuration(folder))
    with contextlib.ExitStack() as daemons:
        munge = [f"--{name}={folder / 'munge'}.{name.partition('-')[0]}"
                 for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]  # fmt: skip
        daemons.enter_context(_daemon(slurm, "munged", "--foreground", "--force", *munge))
        _wait_for((folder / "munge.socket").exists, slurm)
        daemons.enter_context(_daemon(slurm, "slurmctld", "-D", "-c"))
        for node in NODES:
            command = f"hostname {node} && exec slurmd -D"
            daemons.enter_context(_daemon(slurm, "unshare", "--uts", "sh", "-c", command))
        _wait_for(lambda: _idle(slurm), slurm)
        yield slurm


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _configuration(folder: Path) -> str:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(1 + len(NODES))]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        port, *ports = (one.getsockname()[1] for one in sockets)
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={own} CPUs=4 RealMemory=4000"
        for name, own in zip(NODES, ports, strict=True)
    )
    return CONFIGURATION.format(host=socket.gethostname(), port=port, folder=folder, nodes=nodes)


@contextlib.contextmanager
def _daemon(slurm: Slurm, *command: str) -> Iterator[None]:
    environment = {"PATH": _path(), **slurm.environment}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _idle(slurm: Slurm) -> bool:
    try:
        return slurm.run("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(len(NODES))]
    except subprocess.CalledProcessError:  # the controller does not answer yet
        return False


def _wait_for(condition: object, slurm: Slurm) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"SLURM does not start:\n{slurm.logs()}"
        time.sleep(0.05)
