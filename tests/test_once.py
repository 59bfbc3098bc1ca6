"""Operations: carried out once, joined, given again, undone."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import anyio
import pytest

from corral import once
from corral.endpoints import ENDPOINTS
from corral.errors import ConfigError, InfrastructureError, NotFound
from corral.once import Operation, Operations

pytestmark = pytest.mark.anyio


class Work:
    """Counts how often it is carried out, and ends when told to."""

    def __init__(self) -> None:
        self.times = 0
        self.go = anyio.Event()
        self.undone: list[Any] = []

    async def __call__(self) -> int:
        self.times += 1
        await self.go.wait()
        return self.times

    async def undo(self, value: Any) -> None:
        self.undone.append(value)


def begin(operations: Operations, work: Work, key: str = "k", *, request: bytes = b"r", undo: bool = False,
          grace: float = 100.0) -> Operation:  # fmt: skip
    return operations.begin("scope", key, request, work, work.undo if undo else None, grace)


async def test_the_same_key_joins_and_gives_again() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work, got = Operations(tasks), Work(), list[Any]()

        async def ask() -> None:
            got.append(await begin(operations, work).outcome())

        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        work.go.set()
        await anyio.wait_all_tasks_blocked()
        await ask()
        assert (got, work.times) == ([1, 1, 1], 1)
        assert await begin(operations, work, "another").outcome() == 2


async def test_errors_are_given_again_too() -> None:
    async def fail() -> None:
        raise LookupError("nothing here")

    async with anyio.create_task_group() as tasks:
        operations = Operations(tasks)
        for _ in range(2):
            with pytest.raises(LookupError, match="nothing here"):
                await operations.begin("s", "k", b"r", fail, None, 1.0).outcome()


async def test_a_key_stands_for_one_request() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        work.go.set()
        await begin(operations, work).outcome()
        with pytest.raises(ConfigError, match="'k' was used for another request"):
            begin(operations, work, request=b"something else")


async def test_who_leaves_disturbs_nobody() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        with anyio.move_on_after(0.01):
            await begin(operations, work, undo=True).outcome()
        operations.sweep()  # its client may come back
        work.go.set()
        assert await begin(operations, work, undo=True).outcome() == 1
        operations.sweep()
        await anyio.wait_all_tasks_blocked()
        assert (work.times, work.undone) == (1, [])


async def test_an_abandoned_operation_is_cancelled() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        operation = begin(operations, work, undo=True, grace=0.0)
        with anyio.move_on_after(0.01):
            await operation.outcome()
        operations.sweep()
        await anyio.wait_all_tasks_blocked()
        assert operation.ended.is_set()
        assert work.undone == []  # it never gave anything


async def test_what_nobody_fetched_is_undone() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        begin(operations, work, undo=True, grace=0.0)
        work.go.set()
        await anyio.wait_all_tasks_blocked()
        operations.sweep()
        await anyio.wait_all_tasks_blocked()
        assert work.undone == [1]


async def test_what_is_given_up_gives_no_result() -> None:
    """Neither to those who wait for it nor to who asks later: nothing would be taken for an answer."""
    async with anyio.create_task_group() as tasks:
        operations, work, got = Operations(tasks), Work(), list[Exception]()
        operation = begin(operations, work)

        async def ask() -> None:
            try:
                await operation.outcome()
            except InfrastructureError as error:
                got.append(error)

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        operation.scope.cancel()
        await anyio.wait_all_tasks_blocked()
        await ask()
    assert [str(error) for error in got] == ["the operation was given up"] * 2


async def test_an_undo_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(value: Any) -> None:
        raise LookupError(f"{value} is gone")

    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        work.go.set()
        operations.begin("s", "k", b"r", work, fail, 0.0)
        await anyio.wait_all_tasks_blocked()
        operations.sweep()
        await anyio.wait_all_tasks_blocked()
        assert await begin(operations, work).outcome() == 2
    assert "undoing what nobody came for failed" in caplog.text


async def test_a_trial_that_nobody_came_for_may_be_closed_already(caplog: pytest.LogCaptureFixture) -> None:
    """As idle: the log is not to tell of a fault."""

    class Front:
        async def forsake(self, runtime_id: str) -> None:
            raise NotFound("trial", runtime_id)

    (undo,) = [each.undo for each in ENDPOINTS if each.undo is not None]
    async with anyio.create_task_group() as tasks:
        operations = Operations(tasks)
        operations.begin("s", "k", b"r", opened, partial(undo, cast(Any, Front())), 0.0)
        await anyio.wait_all_tasks_blocked()
        operations.sweep()
    assert not caplog.records


async def opened() -> dict[str, str]:
    return {"trial_runtime_id": "tr_1"}


@pytest.mark.parametrize("fetched", [True, False])
async def test_nothing_is_kept_for_ever(fetched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what nobody came for: its client was killed."""
    monkeypatch.setattr(once, "KEPT_SECONDS", -1.0)
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        operation = begin(operations, work)
        operations.sweep()
        assert begin(operations, work) is operation  # it has not ended
        work.go.set()
        await anyio.wait_all_tasks_blocked()
        if fetched:
            assert await operation.outcome() == 1
        operations.sweep()
        assert await begin(operations, work).outcome() == 2


async def test_without_a_key_every_one_is_new() -> None:
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        work.go.set()
        given = [await operations.begin("s", None, b"r", work).outcome() for _ in range(3)]
    assert given == [1, 2, 3]


async def test_only_the_last_ones_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(once, "KEPT", 2)
    async with anyio.create_task_group() as tasks:
        operations, work = Operations(tasks), Work()
        work.go.set()
        for key in "abcd":
            await begin(operations, work, key).outcome()
        assert await begin(operations, work, "d").outcome() == 4
        assert await begin(operations, work, "a").outcome() == 5  # forgotten, so carried out again
        operations.drop("scope")
        assert await begin(operations, work, "d").outcome() == 6
