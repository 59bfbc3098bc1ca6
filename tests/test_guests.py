"""Visits: who waits for an answer, and who has gone."""

from __future__ import annotations

import anyio
import pytest

from corral.guests import Guest, Place, Visits

pytestmark = pytest.mark.anyio

A: Place = ("trial", "a")
B: Place = ("task", "a")


async def test_a_visit_lasts_to_its_answer_or_until_its_client_has_gone() -> None:
    used, left = list[Place](), set[str]()
    visits = Visits(used.append)
    end = anyio.Event()

    async def wait(place: Place, name: str) -> None:
        async def gone() -> bool:
            return name in left

        with visits.to(place, gone):
            await end.wait()

    async with anyio.create_task_group() as tasks:
        for place, name in ((A, "one"), (A, "two"), (B, "three")):
            tasks.start_soon(wait, place, name)
        await anyio.wait_all_tasks_blocked()
        left |= {"one", "three"}
        await visits.look()
        assert sorted(used) == [B, A, A]  # those who have gone were here until now
        used.clear()
        await visits.look()
        assert used == [A]
        used.clear()
        end.set()
    assert used == [A]  # an answer that nobody waits for is no use


async def test_a_request_about_no_trial_is_no_visit() -> None:
    async def gone() -> bool:
        raise AssertionError("nobody asks")

    used = list[Place]()
    visits = Visits(used.append)
    with visits.to(None, gone):
        await visits.look()
    assert used == []


def test_a_guest_is_unused_since_its_last_use() -> None:
    guest = Guest("tr", "run", used_at=0.0)
    before = guest.unused
    guest.use()
    assert guest.unused < before
