"""Logs for the run only: what they take of the disk stays small, however much is printed, and evidence stays true."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from corral.errors import WorkerDied
from corral.pool import log_watch
from corral.pool.logs import tail
from tests.support.pool_driving import once, opened, pool, python, respond

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="files have holes there only"),
]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, and holds little for much."""
    monkeypatch.setattr(log_watch, "INTERVAL", 0.01)
    monkeypatch.setattr(log_watch, "MOST", 2 * 2**20)


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


async def shortened(path: Path) -> None:
    with anyio.fail_after(10):
        while on_disk(path) > log_watch.MOST:
            await anyio.sleep(0.01)


def test_the_end_of_a_long_log_stays_where_it_was(tmp_path: Path) -> None:
    log = tmp_path / "slot-0.log"
    log.write_bytes(b"early" * 10**6 + b"the end")
    log_watch.shorten(log)
    assert on_disk(log) < log_watch.KEPT + 2**16
    assert log.stat().st_size == 5 * 10**6 + 7
    assert tail(str(log), 0, 12) == (b"earlythe end", 5 * 10**6 + 7)
    with log.open("rb") as file:
        assert file.read(5) == bytes(5)


def test_a_log_that_takes_little_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "slot-0.log"
    log.write_bytes(b"early" * 10**5)
    log_watch.shorten(log)
    assert log.read_bytes() == b"early" * 10**5
    log_watch.shorten(tmp_path / "gone.log")


async def test_a_trial_that_prints_without_end_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with pool(fresh=fresh) as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        (log,) = tmp_path.glob("corral-*/slot-0.log")
        for _ in range(3):
            await python(lease, runtime_id, "import os; result = os.write(1, b'x' * 10**7)")
            await shortened(log)
        with pytest.raises(WorkerDied) as caught:
            await respond(lease, runtime_id, "import os; print('the end'); os._exit(1)")
    assert caught.value.output.endswith("the end\n")


async def test_trials_that_share_a_process_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with pool(fresh=fresh, reuse="worker") as workers:
        for _ in range(3):
            await once(workers, "import os; result = os.write(1, b'x' * 3 * 10**6)")
            (log,) = tmp_path.glob("corral-*/slot-0.log")
            await shortened(log)
        with pytest.raises(WorkerDied) as caught:
            await once(workers, "import os; print('of the last one'); os._exit(1)")
    assert caught.value.output == "of the last one\n"


async def test_logs_that_somebody_wants_are_kept_whole(tmp_path: Path) -> None:
    async with pool(log_dir=tmp_path) as workers:
        await once(workers, "import os; result = os.write(1, b'x' * 10**7)")
        await anyio.sleep(10 * log_watch.INTERVAL)
    assert on_disk(tmp_path / "slot-0.log") >= 10**7
