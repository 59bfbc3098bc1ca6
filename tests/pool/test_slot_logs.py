"""The files that slots print to: one folder serves many runs, and no record holds what another run printed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from corral.errors import WorkerDied
from corral.pool.slot_logs import SlotLogs
from tests.support.pool_driving import once, opened, pool, python, respond
from tests.support.pool_waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")


@pytest.mark.anyio
async def test_runs_with_one_folder_keep_what_they_print_apart(tmp_path: Path, fresh: str) -> None:
    async with pool(log_dir=tmp_path, fresh=fresh) as one, pool(log_dir=tmp_path, fresh=fresh) as two:
        async with one.lease() as ours, two.lease() as theirs:
            own, other = await opened(ours), await opened(theirs)
            await python(ours, own, "print('of one')")
            await python(theirs, other, "print('of two')")
            with pytest.raises(WorkerDied) as caught:
                await respond(ours, own, "import os; print('the end'); os._exit(1)")
            assert caught.value.output == "of one\nthe end\n"
            with pytest.raises(WorkerDied) as caught:
                await respond(theirs, other, "import os; os._exit(1)")
            assert caught.value.output == "of two\n"
    async with pool(log_dir=tmp_path, fresh=fresh) as workers:
        await once(workers, "print('of three')")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slot-0.2.log", "slot-0.log"]
    lines = (tmp_path / "slot-0.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("of ")] == ["of one", "of three"]


@pytest.mark.anyio
async def test_a_slot_keeps_its_file_when_its_worker_is_replaced(tmp_path: Path) -> None:
    async with pool(log_dir=tmp_path) as workers:
        await once(workers, "print('before')")
        before = workers.statistics().workers[0].pid
        assert before
        os.kill(before, signal.SIGKILL)
        await eventually(lambda: workers.statistics().workers[0].pid not in (before, 0, None))
        await once(workers, "print('after')")
    assert [path.name for path in tmp_path.iterdir()] == ["slot-0.log"]
    assert {"before", "after"} <= set((tmp_path / "slot-0.log").read_text().splitlines())


def names(logs: SlotLogs, *slots: int) -> list[str]:
    return [logs.take(slot).name for slot in slots]


def test_a_file_is_free_again_when_the_last_worker_of_its_slot_is_gone(tmp_path: Path) -> None:
    here, there, third = SlotLogs(tmp_path), SlotLogs(tmp_path), SlotLogs(tmp_path)
    assert names(here, 0, 0, 1) == ["slot-0.log", "slot-0.log", "slot-1.log"]
    here.give_back(0)
    assert names(there, 0, 2) == ["slot-0.2.log", "slot-2.log"]
    here.give_back(0)
    assert names(third, 0, 1) == ["slot-0.log", "slot-1.2.log"]
    for logs in (here, there, third):
        logs.close()
    assert names(here, 0, 1) == ["slot-0.log", "slot-1.log"]
    here.close()


def test_a_file_that_was_removed_is_made_again_and_is_still_nobody_elses(tmp_path: Path) -> None:
    here, there, third = SlotLogs(tmp_path), SlotLogs(tmp_path), SlotLogs(tmp_path)
    here.take(0).unlink()
    assert names(here, 0) == ["slot-0.log"]
    assert names(there, 0) == ["slot-0.2.log"]
    here.give_back(0)
    here.give_back(0)
    assert names(third, 0) == ["slot-0.log"]
    there.close()
    third.close()


def test_where_there_are_no_locks_the_first_name_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    here, there = SlotLogs(tmp_path), SlotLogs(tmp_path)
    assert names(here, 0) == names(there, 0) == ["slot-0.log"]
    here.close()
    there.close()
