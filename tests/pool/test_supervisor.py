"""What a pool does with a worker that comes at the wrong moment."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from corral.pool import WorkerPool, WorkerPoolConfig
from corral.pool.worker import Worker
from tests.support.benches import benches

pytestmark = pytest.mark.anyio


async def test_a_worker_that_is_ready_just_when_the_pool_closes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer has come, and the pool closes before its task goes on: nobody else would ever end it."""
    load, loaded = Worker.load, anyio.Event()

    with anyio.fail_after(30):
        async with WorkerPool(benches(a="process"), WorkerPoolConfig(size=1)) as pool:

            async def late(worker: Worker, *arguments: Any, **options: Any) -> Any:
                answer = await load(worker, *arguments, **options)
                loaded.set()
                with anyio.CancelScope(shield=True):
                    while not pool._closing:
                        await anyio.sleep(0.001)
                return answer

            monkeypatch.setattr(Worker, "load", late)
            pool.resize(2)
            await loaded.wait()
