"""Trials in this process: what is opened after it was given up is closed, and who asks is told what still runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from corral import Environment, TaskDefinition, build_environments
from corral.errors import EnvStartError
from corral.hosts import InProcessHost
from corral.service import ServiceLimits
from corral.source import EnvironmentSource
from corral.threads import call_blocking
from corral.types import TrialSpec
from tests.support.services import service

pytestmark = pytest.mark.anyio

PATIENCE = 10.0


class Services:
    """A set-up that starts something, when it may; its environment's ``close`` ends that."""

    def __init__(self) -> None:
        self.begun, self.go, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.running: list[str] = []

    def build(self) -> dict[str, Environment]:
        services = self

        class Started(Environment):
            def close(self) -> None:
                services.running.remove(self.task_id)
                services.closed.set()

        task = TaskDefinition("t", "d", [], lambda answer: 1.0, "text", setup_fn=self.set_up)
        return build_environments([task], env_cls=Started)

    def set_up(self, env: Environment) -> None:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        self.running.append(env.task_id)


async def test_a_set_up_that_passed_its_limit_is_closed_when_it_ends(tmp_path: Path) -> None:
    services = Services()
    async with service(services.build, tmp_path, limits=ServiceLimits(setup_timeout=0.05)) as made:
        with pytest.raises(EnvStartError, match=r"did not end within 0\.05 s"):
            await made.create_trial("t")
        assert not services.closed.is_set()
        services.go.set()
        assert await call_blocking(services.closed.wait, PATIENCE)
    assert services.running == []
    await until(lambda: list(tmp_path.iterdir()) == [])  # its workspace is gone too


async def test_a_set_up_that_is_given_up_in_the_moment_it_ends_is_closed(tmp_path: Path) -> None:
    """Its thread has looked already, and found nobody who had gone; the news of its end is on the way."""
    services = Services()
    host = InProcessHost(EnvironmentSource(services.build), tmp_path, seed_globals=False)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.open, TrialSpec("tr_1", "t", 0, 0, {}))
        assert await call_blocking(services.begun.wait, PATIENCE)
        services.go.set()
        while host.is_busy:  # the event loop stands still meanwhile
            threading.Event().wait(0.001)
        assert services.running == ["t"]
        tasks.cancel_scope.cancel()
    assert await call_blocking(services.closed.wait, PATIENCE)
    await host.rest(PATIENCE)
    assert (services.running, host.is_busy) == ([], False)


async def test_it_is_busy_until_what_was_given_up_has_ended(tmp_path: Path) -> None:
    services = Services()
    host = InProcessHost(EnvironmentSource(services.build), tmp_path, seed_globals=False)
    with anyio.move_on_after(0.05) as limit:
        await host.open(TrialSpec("tr_1", "t", 0, 0, {}))
    assert limit.cancelled_caught
    await host.rest(0.01)
    assert (host.is_busy, services.closed.is_set()) == (True, False)
    services.go.set()
    await host.rest(PATIENCE)
    assert (host.is_busy, services.closed.is_set()) == (False, True)  # its close is a part of it


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():
            await anyio.sleep(0.01)
