"""What every test gets: both event loops, stack dumps of a hanging test, and no child process left behind."""

from __future__ import annotations

import faulthandler
import os
import signal
import uuid
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import psutil
import pytest

from corral.pool import supervisor
from corral.pool.config import WorkerPoolConfig
from corral.pool.messages import Load

MARK = "CORRAL_TEST_RUN"
"""Processes inherit this variable: so a child of a killed child, which nobody is the parent of, is found too."""

PATIENCE = 5.0
"""Seconds that a process may live on after its test: the engine's own promise."""


def pytest_configure(config: pytest.Config) -> None:
    if not faulthandler.is_enabled():
        faulthandler.enable()
    os.environ[MARK] = uuid.uuid4().hex
    for number in ("SIGINT", "SIGHUP"):  # what runs in the background, or by nohup, ignores them, and so would commands
        if hasattr(signal, number) and signal.getsignal(getattr(signal, number)) is signal.SIG_IGN:
            default = signal.default_int_handler if number == "SIGINT" else signal.SIG_DFL
            signal.signal(getattr(signal, number), default)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of an async test (``@pytest.mark.anyio``): each such test runs on both."""
    return str(request.param)


ON_NODES = {
    "test_ahead", "test_builders", "test_chain_faults", "test_chains", "test_crowds", "test_deaths", "test_evidence",
    "test_faults", "test_lost_slots", "test_main_script", "test_output", "test_pool", "test_resume", "test_runner",
    "test_runner_faults", "test_service", "test_states", "test_wear",
}  # fmt: skip
"""Modules whose tests run once more with the pool's workers on Dask's nodes, unless they are marked ``local``: half of
them on each event loop, a tenth of them with all other slow tests."""


ON_UVLOOP = {"test_builders", "test_deaths", "test_nursery", "test_pool"}
"""Modules whose async tests run on uvloop too, with all slow tests: it starts and reaps processes in its own way."""

UVLOOP = ("asyncio", {"use_uvloop": True})


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    chosen = any("anyio_backend" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if module in ON_UVLOOP and "anyio_backend" in metafunc.fixturenames and not chosen:
        marks = [pytest.mark.slow, pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")]
        loops = ["asyncio", "trio", pytest.param(UVLOOP, id="uvloop", marks=marks)]
        metafunc.definition.add_marker(pytest.mark.parametrize("anyio_backend", loops))  # the mark replaces the fixture
    if module in ON_NODES and not metafunc.definition.get_closest_marker("local"):
        marks = [pytest.mark.slow, pytest.mark.timeout(120)]
        if zlib.crc32(metafunc.definition.originalname.encode()) % 10:
            marks.append(pytest.mark.nodes)
        kinds = ["local", pytest.param("dask", marks=marks)]
        metafunc.parametrize("backend", kinds, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    other_loop = [item for item in items if _loop_of(item) not in (None, _loop_on_nodes(item))]
    left_out = [item for item in other_loop if _is_on_nodes(item)]
    for item in other_loop:
        if "dask" in item.path.parts:  # each is on one loop, but for those who want them all
            item.add_marker("slow")
            item.add_marker("nodes")
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def _is_on_nodes(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and _parameters(item).get("backend") == "dask"


def _loop_of(item: pytest.Item) -> object:
    return _parameters(item).get("anyio_backend")


def _loop_on_nodes(item: pytest.Item) -> str:
    name = getattr(item, "originalname", item.name)
    return ("asyncio", "trio")[zlib.crc32(name.encode()) % 2]


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


@pytest.fixture(scope="session")
def dask_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Dask cluster of two nodes, ``a`` and ``b``, for all tests of this process."""
    pytest.importorskip("distributed")
    from tests.support.dask_cluster import cluster

    with cluster(tmp_path_factory.mktemp("dask")) as running:
        running.add("a")
        running.add("b")
        yield running


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the pool's workers run that a test starts: on this machine, or on the nodes of a cluster."""
    kind = str(getattr(request, "param", "local"))
    if kind == "dask":
        nodes = request.getfixturevalue("dask_nodes")

        def backend_of(config: WorkerPoolConfig, load: Load) -> Any:
            from corral.pool.dask.backend import DaskBackend
            from corral.pool.dask.config import DaskConfig

            dask = DaskConfig(nodes.address, nodes.certificates, environment=dict(os.environ))
            return DaskBackend(settings_of(config, load), dask)

        settings_of = supervisor.agent_settings
        monkeypatch.setattr(supervisor, "backend_of", backend_of)
    return kind


def _is_ours(process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == os.environ.get(MARK)
    except (psutil.Error, OSError):
        return False


def left_behind(before: set[int]) -> list[psutil.Process]:
    """The live processes that were started since ``before`` was taken and descend from this one."""
    new = set(psutil.pids()) - before
    if not new:  # after most tests: to go through all processes takes longer than many a test
        return []
    found = {child.pid: child for child in psutil.Process().children(recursive=True) if child.pid in new}
    for pid in new - found.keys():
        try:
            process = psutil.Process(pid)
        except psutil.Error:
            continue
        if _is_ours(process):
            found[pid] = process
    return [process for process in found.values() if _lives(process) and not _serves_on(process, before)]


def _serves_on(process: psutil.Process, before: set[int]) -> bool:
    """Whether it is a fork of one that was there before: of a worker of a server that many tests share."""
    try:
        parent = process.parent()
        return (
            parent is not None
            and parent.pid in before
            and parent.pid != os.getpid()
            and process.cmdline() == parent.cmdline()
        )
    except psutil.Error:
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _describe(process: psutil.Process) -> str:
    try:
        return f"pid {process.pid}: {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return f"pid {process.pid}"


@pytest.fixture(autouse=True)
def no_process_left(request: pytest.FixtureRequest, backend: str) -> Iterator[None]:
    """Fail a test that leaves a process running, and end that process. A cluster for many tests is there before."""
    if "dask_nodes" in request.fixturenames:
        request.getfixturevalue("dask_nodes")
    before = set(psutil.pids())
    yield
    left = left_behind(before)
    if not left:
        return
    _, left = psutil.wait_procs(left, timeout=PATIENCE)
    # A process is only known by its parents: one that was started meanwhile is looked for once more.
    left = [process for process in {*left, *left_behind(before)} if _lives(process)]
    if left:
        names = [_describe(process) for process in left]
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=PATIENCE)
        pytest.fail("the test left running:\n  " + "\n  ".join(names), pytrace=False)
