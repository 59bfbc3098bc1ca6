"""SUPERVISOR SIDE. Nodes that are jobs of a batch system, by dask-jobqueue.

Guarantees
    * Left, every job has been cancelled, those that were nodes have ended (where that is seen within END_PATIENCE), and
      the folder with certificates and logs is gone.
    * A job whose node is lost is replaced: ``adapt`` does that, some 16 s later; ``scale`` would not.
    * A supervisor that is killed leaves no running job: nodes end when the scheduler is gone. A job that still waits in
      the queue then ends a minute after it has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import shlex
import shutil
import signal
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError, EnvStartError
from corral.pool.dask.launch import BatchNodes, BatchSystem
from corral.pool.dask.started import SCHEDULER_OPTIONS, Started, end_of_log, quiet, worker_credentials

if TYPE_CHECKING:
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

MARKS = ("trap : TERM", "trap 'mktemp -q {folder}/ended.XXXXXXXX >/dev/null' EXIT")
"""Lines of a job by which those who see the folder know that it has ended, as batch systems differ. A signal is left to
the node, which is waited for. There is no ``$``, which HTCondor would take for its own."""

LOOK = 0.2
"""Seconds between two looks for such a mark."""

SUBMIT_PATIENCE = 30.0
"""Seconds that a batch system may take to accept jobs that are not wanted any more."""

END_PATIENCE = 10.0
"""Seconds for the jobs that were cancelled to end: nodes allow themselves 5."""


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
            await _to_its_end(_submit(cluster))
            nodes = _BatchNodes(cluster, security, launch, folder)
            await nodes.scale(launch.nodes)
            yield nodes
        finally:
            await _close(cluster, folder)


def _cluster_class(system: BatchSystem) -> Any:
    try:
        with _handlers_kept():
            import dask_jobqueue
    except ImportError as error:
        raise ConfigError(f"nodes by {system} need dask-jobqueue: pip install 'corral[dask]'") from error
    found = getattr(dask_jobqueue, CLASSES[system])
    for command in (found.job_cls.submit_command, found.job_cls.cancel_command):
        program = shlex.split(command)[0]
        if shutil.which(program) is None:
            raise ConfigError(f"{program} is not on the PATH here: jobs of {system} are submitted where it is")
    return found


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Let what is imported here set no handler of signals: dask-jobqueue takes Ctrl-C for itself when it is imported,
    and fails where that is not in the main thread."""
    here, set_handler = threading.get_ident(), signal.signal

    def elsewhere(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if threading.get_ident() == here else set_handler(number, handler)

    signal.signal = elsewhere  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = set_handler


def _job_class(job_class: Any) -> Any:
    """The same jobs, that say of themselves how they are: a cluster refuses to be closed before all are failed or
    closed, and dask-jobqueue's say neither."""
    from distributed.core import Status

    class Job(job_class):  # type: ignore[misc]  # its base is untyped
        async def start(self) -> None:
            try:
                await super().start()
            except BaseException:
                self.status = Status.failed
                raise

        async def close(self) -> None:
            try:
                await super().close()
            finally:
                self.status = Status.closed

    return Job


@contextlib.contextmanager
def _shared_folder(launch: BatchNodes) -> Iterator[Path]:
    where = Path(launch.folder or os.getcwd()).absolute()
    if shlex.quote(str(where)) != str(where):  # nor would the batch systems' own directives quote it
        raise ConfigError(f"the jobs' folder may not have blanks or quotes in its path, which jobs name: {where}")
    try:
        folder = tempfile.TemporaryDirectory(prefix=".corral-jobs-", dir=where, ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(f"the jobs' folder cannot be made in {where}: {error.strerror}") from error
    with folder:
        yield Path(folder.name)


def _in_files(security: Security, folder: Path) -> Security:
    """The same, with what the jobs need in files that they can read (dask-jobqueue's own would outlive the folder)."""
    security = copy.copy(security)
    for name, value in worker_credentials(security).items():
        if name != "tls_ciphers":
            path = folder / name
            path.touch(0o600)
            path.write_text(value, "ascii")
            setattr(security, name, str(path))
    return security


def _cluster(cluster_class: Any, launch: BatchNodes, security: Security, folder: Path) -> Any:
    import dask

    given = {name: getattr(launch, name) for name in ("cores", "memory", "walltime", "queue", "python", "interface")}
    options = dict(launch.options)
    configured = dask.config.get(f"jobqueue.{launch.system}", {})
    prologue = launch.prologue or configured.get("job-script-prologue") or ()
    arguments = {
        **{name: value for name, value in given.items() if value is not None},
        **options,
        "worker_command": "corral.pool.dask.node",
        "worker_extra_args": [],
        "processes": 1,
        "security": _in_files(security, folder),
        "log_directory": str(folder),
        "job_script_prologue": [*(line.format(folder=folder) for line in MARKS), *prologue],
    }
    job_class = _job_class(cluster_class.job_cls)
    try:
        job_class("tls://scheduler", name="node", **arguments)  # a cluster that is refused its jobs would lie about
    except (TypeError, ValueError) as error:
        raise ConfigError(f"dask-jobqueue refuses these settings: {error}") from error
    return cluster_class(
        asynchronous=True,
        job_cls=job_class,
        scheduler_options=SCHEDULER_OPTIONS,
        silence_logs=False,
        **arguments,
    )


async def _submit(cluster: Any) -> None:
    try:
        await cluster
    except RuntimeError as error:  # all that dask-jobqueue tells: the command, its exit code and what it printed
        _, found, words = str(error).partition("stderr:\n")
        reason = words.strip() if found else str(error)
        raise EnvStartError(f"{cluster.job_cls.submit_command} refused the job: {reason}") from error


async def _to_its_end(submission: Coroutine[Any, Any, None]) -> None:
    """A submission that is given up ends first: until it has, nobody knows by what number to cancel its job."""
    task = asyncio.ensure_future(submission)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # whatever comes of it, it is given up
            await asyncio.wait_for(task, SUBMIT_PATIENCE)
        raise


def _ended(folder: Path) -> int:
    """How many jobs have ended."""
    return len(list(folder.glob("ended.*")))


async def _close(cluster: Any, folder: Path) -> None:
    ended = _ended(folder) + len(cluster.scheduler.workers)
    await cluster.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(END_PATIENCE):
            while _ended(folder) < ended:
                await asyncio.sleep(LOOK)


class _BatchNodes(Started):
    def __init__(self, cluster: Any, security: Security, launch: BatchNodes, folder: Path) -> None:
        super().__init__(cluster.scheduler, security)
        self._cluster = cluster
        self._launch = launch
        self._folder = folder

    async def scale(self, nodes: int) -> None:
        self._cluster.adapt(minimum_jobs=nodes, maximum_jobs=nodes)

    async def hopeless(self) -> None:
        while _ended(self._folder) < self._launch.nodes:
            await asyncio.sleep(LOOK)

    def troubles(self) -> str:
        logs = [path for path in sorted(self._folder.iterdir()) if not path.name.startswith(("ended.", "tls_"))]
        told = [f"the job's {path.name} ends{words}" for path in logs if (words := end_of_log(path)).startswith(":")]
        count = f"{_ended(self._folder)} of {self._launch.nodes} jobs of {self._launch.system} have started and ended"
        return "\n".join([count, *told[:3]])
