from __future__ import annotations

import anyio
import pytest

from corral.agents.remarks import listening, remark
from corral.threads import call_blocking


def test_a_remark_that_nobody_hears_is_nothing() -> None:
    remark("hello")
    with listening() as remarks:
        assert remarks.now == ""


def test_the_latest_remark_stands_and_others_are_not_heard() -> None:
    with listening() as outer:
        remark("one")
        with listening() as inner:
            remark("two")
        remark("three")
    remark("four")
    assert (outer.now, inner.now) == ("three", "two")


@pytest.mark.anyio
async def test_threads_and_tasks_are_heard_where_they_were_started() -> None:
    async def run(number: int, heard: dict[int, str]) -> None:
        with listening() as remarks:
            await call_blocking(remark, f"thread of {number}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_say, f"{remarks.now}, then its task")
        heard[number] = remarks.now

    heard: dict[int, str] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, 1, heard)
        tasks.start_soon(run, 2, heard)
    assert heard == {number: f"thread of {number}, then its task" for number in (1, 2)}


async def _say(text: str) -> None:
    remark(text)
