"""SUPERVISOR SIDE. Nodes that are jobs of a batch system, by dask-jobqueue.

Guarantees
    * Left, every job has been cancelled, and the folder with certificates and logs is gone.
    * A job whose node is lost is replaced: ``adapt`` does that, some 16 s later; ``scale`` would not.
    * A supervisor that is killed leaves no running job: nodes end when the scheduler is gone. A job that still waits in
      the queue then ends a minute after it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError, EnvStartError
from corral.pool.dask.launch import BatchNodes, BatchSystem
from corral.pool.dask.started import SCHEDULER_OPTIONS, Started, end_of_log, quiet

if TYPE_CHECKING:
    from dask_jobqueue.core import JobQueueCluster
    from distributed import Security

CLASSES: dict[BatchSystem, str] = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "lsf": "LSFCluster",
    "sge": "SGECluster",
    "oar": "OARCluster",
    "htcondor": "HTCondorCluster",
    "moab": "MoabCluster",
}
"""dask-jobqueue's names."""

LOOK = 0.5
"""Seconds between two looks for jobs that ended, while the first node is waited for."""


@contextlib.asynccontextmanager
async def batch_nodes(launch: BatchNodes, security: Security) -> AsyncIterator[Started]:
    """A scheduler here, and the jobs that ``launch`` asks for."""
    cluster_class = _cluster_class(launch.system)
    with _shared_folder(launch) as folder, quiet():
        cluster = _cluster(cluster_class, launch, security, folder)
        try:
            # Not by ``scale``, which submits in the background and tells nobody what was refused.
            for _ in range(launch.nodes):
                cluster.worker_spec.update(cluster.new_worker_spec())
            await _submit(cluster)
            nodes = _BatchNodes(cluster, security, launch, folder)
            await nodes.scale(launch.nodes)
            yield nodes
        finally:
            await cluster.close()


def _cluster_class(system: BatchSystem) -> type[JobQueueCluster]:
    try:
        import dask_jobqueue
    except ImportError as error:
        raise ConfigError(f"nodes by {system} need dask-jobqueue: pip install 'corral[dask]'") from error
    found: type[JobQueueCluster] = getattr(dask_jobqueue, CLASSES[system])
    for command in (found.job_cls.submit_command, found.job_cls.cancel_command):
        program = shlex.split(command)[0]
        if shutil.which(program) is None:
            raise ConfigError(f"{program} is not on the PATH here: jobs of {system} are submitted where it is")
    return found


@contextlib.contextmanager
def _shared_folder(launch: BatchNodes) -> Any:
    where = Path(launch.folder or os.getcwd()).absolute()
    try:
        folder = tempfile.TemporaryDirectory(prefix=".corral-jobs-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"the jobs' folder cannot be made in {where}: {error.strerror}") from error
    with folder:
        yield Path(folder.name)


def _cluster(cluster_class: type[JobQueueCluster], launch: BatchNodes, security: Security, folder: Path) -> Any:
    given = {name: getattr(launch, name) for name in ("cores", "memory", "walltime", "queue", "python", "interface")}
    options = dict(launch.options)
    extra = options.pop("worker_extra_args", [])
    note_the_end = f"trap 'echo $? > {shlex.quote(str(folder))}/ended.$(hostname).$$' EXIT"
    try:
        return cluster_class(
            asynchronous=True,
            processes=1,
            nanny=False,  # which would start the node again in a job that is to be replaced
            security=security,
            shared_temp_directory=str(folder),
            log_directory=str(folder),
            job_script_prologue=[note_the_end, *launch.prologue],
            worker_extra_args=[*_listed(extra), "--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
            scheduler_options=SCHEDULER_OPTIONS,
            silence_logs=False,
            **{name: value for name, value in given.items() if value is not None},
            **options,
        )
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"dask-jobqueue refuses these settings: {error}") from error


def _listed(extra: object) -> list[str]:
    if not isinstance(extra, list | tuple):
        raise ConfigError(f"worker_extra_args must be a list of arguments, not {extra!r}")
    return [str(argument) for argument in extra]


async def _submit(cluster: Any) -> None:
    try:
        await cluster
    except RuntimeError as error:  # all that dask-jobqueue tells: the command, its exit code and what it printed
        _, found, words = str(error).partition("stderr:\n")
        reason = words.strip() if found else str(error)
        raise EnvStartError(f"{cluster.job_cls.submit_command} refused the job: {reason}") from error


class _BatchNodes(Started):
    def __init__(self, cluster: Any, security: Security, launch: BatchNodes, folder: Path) -> None:
        super().__init__(cluster.scheduler, security)
        self._cluster = cluster
        self._launch = launch
        self._folder = folder

    async def scale(self, nodes: int) -> None:
        self._cluster.adapt(minimum_jobs=nodes, maximum_jobs=nodes)

    async def hopeless(self) -> None:
        while len(list(self._folder.glob("ended.*"))) < self._launch.nodes:
            await asyncio.sleep(LOOK)

    def troubles(self) -> str:
        logs = sorted(path for path in self._folder.iterdir() if path.suffix in {".out", ".err", ".log"})
        told = [f"the job's {path.name} ends{words}" for path in logs if (words := end_of_log(path)).startswith(":")]
        ended = len(list(self._folder.glob("ended.*")))
        count = f"{ended} of {self._launch.nodes} jobs of {self._launch.system} have started and ended"
        return "\n".join([count, *told[:3]])
