"""Builders that cannot work: one clear error, soon, from few processes. And those that can, however they were made."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral.errors import ConfigError, EnvStartError, SerializationError
from corral.pool.starts import MAX_STARTS
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python
from tests.support.pool_waiting import gone, lives

pytestmark = pytest.mark.anyio


async def failure(build: Callable[[], Any], **settings: Any) -> Exception:
    """What entering the pool raises, within ten seconds."""
    with anyio.fail_after(10):
        try:
            async with pool(build, **settings):
                pass
        except Exception as error:
            return error
    pytest.fail("the pool opened")


async def test_a_builder_that_raises(fresh: str) -> None:
    error = await failure(pool_envs.build_raising, size=4, fresh=fresh)
    assert isinstance(error, EnvStartError)
    assert "building the environments (tests.support.pool_envs:build_raising)" in str(error)
    assert "ImportError: no module named chemistry" in str(error)
    assert error.record is not None
    assert "build_raising" in error.record.traceback
    assert re.search(r" \(pool_envs\.py, line \d+\)$", str(error))
    assert str(error.__cause__) == f"\n\n{error.record.traceback}"


async def test_a_builder_that_asks_to_exit(fresh: str) -> None:
    error = await failure(pool_envs.build_exiting, fresh=fresh)
    assert isinstance(error, EnvStartError)
    assert "no licence" in str(error)


async def test_a_builder_that_dies() -> None:
    error = await failure(pool_envs.build_dying, size=4)
    assert isinstance(error, EnvStartError)
    assert "the worker process ended with exit code 9 before it was ready" in str(error)
    assert "the simulator says goodbye" in str(error)


async def test_a_builder_that_dies_in_a_new_interpreter() -> None:
    error = await failure(pool_envs.build_dying, fresh="spawn")
    assert isinstance(error, EnvStartError)
    assert "exit code 9" in str(error)


async def test_a_builder_that_hangs_is_named_with_the_place(fresh: str) -> None:
    began = time.monotonic()
    error = await failure(pool_envs.build_hanging, start_timeout=1.0, fresh=fresh)
    assert isinstance(error, EnvStartError)
    assert "not ready within start_timeout = 1 s" in str(error)
    assert "hang_in_the_licence_check" in str(error)
    assert "build_hanging" in str(error)
    assert time.monotonic() - began < 8, "what hangs is not tried again"


@pytest.mark.parametrize("build", [pool_envs.build_nothing, pool_envs.build_list])
async def test_a_builder_that_gives_no_environments(fresh: str, build: Callable[[], Any]) -> None:
    error = await failure(build, fresh=fresh)
    assert isinstance(error, ConfigError)
    assert "mapping" in str(error)


async def test_failed_starts_are_few(tmp_path: Path) -> None:
    """Each start leaves a mark; the first worker starts alone, so a pool of eight makes no more than a pool of one."""

    def build() -> Any:
        import os

        (tmp_path / str(os.getpid())).touch()
        raise RuntimeError("not today")

    error = await failure(build, size=8)
    assert "not today" in str(error)
    assert len(list(tmp_path.iterdir())) <= MAX_STARTS


async def test_a_builder_that_fails_at_first_is_tried_again(tmp_path: Path) -> None:
    def build() -> Any:
        import os

        (tmp_path / str(os.getpid())).touch()
        if len(list(tmp_path.iterdir())) < 2:
            raise ConnectionError("the licence server is busy")
        return pool_envs.build()

    async with pool(build) as workers:
        assert await once(workers, "result = 1") == 1
    assert len(list(tmp_path.iterdir())) == 2


async def test_workers_that_somebody_kills_while_they_start_are_started_until_one_gets_through(tmp_path: Path) -> None:
    """The first one loads, so the builder works; that the next ones die, again and again, is no fault of its."""

    def build() -> Any:
        import os
        import signal

        (tmp_path / str(os.getpid())).touch()
        if 1 < len(list(tmp_path.iterdir())) <= 1 + 2 * MAX_STARTS:
            os.kill(os.getpid(), signal.SIGKILL)
        return pool_envs.build()

    async with pool(build, max_trials_per_worker=1) as workers:
        with anyio.fail_after(40):
            assert [await once(workers, "result = 1") for _ in range(2)] == [1, 1]
    assert len(list(tmp_path.iterdir())) >= 2 + 2 * MAX_STARTS


async def test_later_workers_that_cannot_start_leave_the_others_serving(tmp_path: Path) -> None:
    """The first one loads; every further one fails: the pool goes on with what it has."""

    def build() -> Any:
        import os

        (tmp_path / str(os.getpid())).touch()
        if len(list(tmp_path.iterdir())) > 1:
            raise ConnectionError("one licence only")
        return pool_envs.build()

    async with pool(build, size=2) as workers:
        with anyio.fail_after(15):
            for _ in range(4):
                assert await once(workers, "result = 1") == 1
    assert len(list(tmp_path.iterdir())) <= 1 + MAX_STARTS


async def test_a_pool_whose_worker_cannot_be_replaced_says_why(tmp_path: Path) -> None:
    """Whoever waits, or comes later, is told; nobody waits for ever."""

    def build() -> Any:
        import os

        (tmp_path / str(os.getpid())).touch()
        if len(list(tmp_path.iterdir())) > 1:
            raise ConnectionError("the licence has run out")
        return pool_envs.build()

    async with pool(build, max_trials_per_worker=1) as workers:
        await once(workers, "result = 1")
        for _ in range(2):
            with anyio.fail_after(15), pytest.raises(EnvStartError, match="the licence has run out"):
                await once(workers, "result = 1")
        assert workers.statistics().workers[0].state == "failed"


@pytest.mark.slow
async def test_a_new_interpreter_that_hangs_while_it_loads_is_given_up(tmp_path: Path) -> None:
    """The first one loads in time. The next one, made ahead, does not, which is charged to nobody; nor does the one
    in its place: the trial that needs it is told where.
    """

    def build() -> Any:
        is_first = not (tmp_path / "loaded").exists()
        (tmp_path / "loaded").touch()
        if not is_first and not (tmp_path / "well again").exists():
            pool_envs.hang_in_the_licence_check()
        return pool_envs.build()

    async with pool(build, fresh="spawn", start_timeout=3.0) as workers, workers.lease() as lease:
        await opened(lease)
        await lease.kill()
        with (
            anyio.fail_after(20),
            pytest.raises(EnvStartError, match=r"(?s)start_timeout = 3 s.*hang_in_the_licence_check"),
        ):
            await opened(lease)
        (tmp_path / "well again").touch()
        with anyio.fail_after(20):
            assert await python(lease, await opened(lease), "result = 1") == 1


async def test_a_load_for_a_fork_that_fails_later_is_an_error_of_its_trial_only(tmp_path: Path) -> None:
    """The pool spawns, so the worker itself loads only when a task insists on a fork."""

    def build() -> Any:
        import os

        if os.getsid(0) == os.getpid():  # as a worker does, and no trial process
            raise ConnectionError("no licence for the worker")
        return pool_envs.build_mixed()

    async with pool(build, fresh="spawn") as workers, workers.lease() as lease:
        with pytest.raises(EnvStartError, match="no licence for the worker"):
            await opened(lease, "fork")
        assert await python(lease, await opened(lease, "auto"), "result = 1") == 1


async def test_what_cannot_be_sent_is_refused_before_anything_starts() -> None:
    lock = threading.Lock()
    with pytest.raises(
        SerializationError, match=r"test_builders:.*lock.*make what cannot be sent.*inside the function"
    ):
        pool(lambda: {"a": lock})


async def test_lambdas_and_closures_are_sent() -> None:
    names = ["x", "y"]
    async with pool(lambda: {name: pool_envs.Lab(name) for name in names}) as workers:
        assert sorted(workers.catalogue) == ["x", "y"]
        assert await once(workers, "result = env.task_id", "y") == "y"


async def test_classes_of_a_function_are_sent(fresh: str) -> None:
    class Local(pool_envs.Lab):
        def get_task_prompt(self) -> str:
            return "local"

    async with pool(lambda: {"a": Local("a")}, fresh=fresh) as workers:
        assert await once(workers, "result = env.get_task_prompt()") == "local"


@pytest.mark.local
async def test_an_interpreter_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    error = await failure(pool_envs.build)
    assert isinstance(error, EnvStartError)
    assert str(error).startswith("starting an interpreter failed: FileNotFoundError")
    assert "no-python" in str(error)


async def test_a_log_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = await failure(pool_envs.build, log_dir=tmp_path / "file" / "logs")
    assert isinstance(error, ConfigError)
    assert "log_dir" in str(error)


async def test_a_helper_that_loading_started_serves_every_trial_and_ends_with_the_pool() -> None:
    """A licence server, a gateway to another language: what trials start is ended with them, but not this."""

    def build() -> Any:
        import os
        import subprocess

        helper = subprocess.Popen(["sleep", "300"])
        os.environ["CORRAL_TEST_HELPER"] = str(helper.pid)
        helper.returncode = 0  # nobody shall complain that it still runs
        return pool_envs.build()

    stray = "import os; pid = os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '300')\n"
    async with pool(build) as workers:
        found = [await once(workers, stray + "result = [int(os.environ['CORRAL_TEST_HELPER']), pid]") for _ in range(3)]
        (helper,) = {helper for helper, _ in found}
        assert lives(helper)
        await gone(*(pid for _, pid in found))
    await gone(helper)


async def test_a_class_where_an_environment_should_be() -> None:
    error = await failure(lambda: {"a": pool_envs.Lab})
    assert isinstance(error, ConfigError)
    assert str(error).endswith("'a' is mapped to the class Lab: call it")
