"""Trials that must run alone, after a call that was given up: the next one waits for its end, or tells of it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from corral import Environment, lingering, tool
from corral.errors import EnvStartError, ToolTimeout
from corral.open_trial import OpenTrial
from corral.service import ServiceLimits, TrialService
from corral.types import Action
from tests.support.benches import Bench, Mode, bench
from tests.support.services import service

pytestmark = pytest.mark.anyio

WARNING = (
    "it began while a call of a#0, which was given up and cannot be killed, still ran in this process: "
    "a trial of the class {mode!r} must run alone here"
)


class Kiln:
    """Of which there is only one: who fires it holds it until it may let go."""

    def __init__(self, mode: Mode) -> None:
        self.mode: Mode = mode
        self.let_go = threading.Event()

    def build(self) -> dict[str, Environment]:
        kiln = self

        class Potter(Bench):
            @tool
            def fire(self) -> None:
                """Fire it."""
                assert kiln.let_go.wait(20)

        class Broken(Bench):
            def __init__(self, task_id: str) -> None:
                super().__init__(task_id, kiln.mode)
                self.handle = threading.Lock()  # which cannot be copied: each trial's is constructed
                if self.seed:
                    raise LookupError("no clay")

        return {
            "a": Potter("a", self.mode),
            "b": Potter("b", self.mode),
            "other": Bench("other"),
            "broken": Broken("broken"),
        }


@asynccontextmanager
async def after_a_call_that_goes_on(mode: Mode, folder: Path) -> AsyncIterator[tuple[TrialService, Kiln]]:
    """A trial has ended at its limit; its call has not."""
    kiln = Kiln(mode)
    async with service(kiln.build, folder, limits=ServiceLimits(tool_timeout=0.05)) as made:
        try:
            first = await made.create_trial("a")
            with pytest.raises(ToolTimeout):
                await made.perform(first.runtime_id, Action.EXECUTE, "fire", {})
            with anyio.fail_after(lingering.LINGER / 2):  # its record waits for nothing
                assert (await made.close_trial(first.runtime_id)).warnings == ()
            yield made, kiln
        finally:
            kiln.let_go.set()


async def warnings_of(made: TrialService, task_id: str) -> tuple[str, ...]:
    trial = await made.create_trial(task_id)
    return (await made.close_trial(trial.runtime_id)).warnings


@pytest.mark.parametrize(("mode", "task_id"), [("serial", "b"), ("process", "b"), ("serial", "other")])
async def test_the_next_trial_waits_for_it(mode: Mode, task_id: str, tmp_path: Path) -> None:
    """Beside a serial one nothing runs, whatever its class."""
    opened: list[OpenTrial] = []

    async def open_next(made: TrialService) -> None:
        opened.append(await made.create_trial(task_id))

    async with after_a_call_that_goes_on(mode, tmp_path) as (made, kiln), anyio.create_task_group() as tasks:
        tasks.start_soon(open_next, made)
        await anyio.wait_all_tasks_blocked()
        await anyio.sleep(0.05)
        assert opened == []
        kiln.let_go.set()
        with anyio.fail_after(lingering.LINGER):
            while not opened:
                await anyio.sleep(0.01)
        assert (await made.close_trial(opened[0].runtime_id)).warnings == ()


async def test_a_thread_class_trial_does_not_wait_for_one_of_process_class(tmp_path: Path) -> None:
    """They run beside each other anyway."""
    async with after_a_call_that_goes_on("process", tmp_path) as (made, _):
        with anyio.fail_after(lingering.LINGER / 2):
            assert await warnings_of(made, "other") == ()


@pytest.mark.parametrize("mode", ["serial", "process"])
async def test_one_that_hangs_is_waited_for_once_and_told_of_as_long_as_it_does(
    mode: Mode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "LINGER", 0.2)
    expected = (WARNING.format(mode=mode),)
    async with after_a_call_that_goes_on(mode, tmp_path) as (made, kiln):
        began = anyio.current_time()
        assert await warnings_of(made, "b") == expected
        assert anyio.current_time() - began < 5
        monkeypatch.setattr(lingering, "LINGER", 1000.0)  # counts for those that are given up from now on
        with anyio.fail_after(5):
            assert await warnings_of(made, "b") == expected
            with pytest.raises(EnvStartError, match="no clay") as failure:
                await made.create_trial("broken", seed=1)
        closed: Any = failure.value.closed
        assert closed.warnings == expected
        kiln.let_go.set()
        with anyio.fail_after(5):
            while await warnings_of(made, "b"):
                await anyio.sleep(0.01)


async def test_who_gives_up_waiting_leaves_the_gate_open(tmp_path: Path) -> None:
    async with after_a_call_that_goes_on("serial", tmp_path) as (made, kiln):
        with anyio.move_on_after(0.05) as impatient:
            await made.create_trial("b")
        assert impatient.cancelled_caught
        kiln.let_go.set()
        with anyio.fail_after(lingering.LINGER):
            assert await warnings_of(made, "b") == ()


def test_the_record_of_the_next_trial_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "LINGER", 0.1)
    kiln = Kiln("serial")

    def policy(lab: Any, prompt: str) -> Any:
        if prompt == "task a":
            lab.call("fire")
        return 1

    result = bench(kiln.build, policy, tmp_path, task_ids=["a", "b"], tool_timeout=0.05, retries=0)
    kiln.let_go.set()
    lost, graded = result.trials
    assert (lost.failure, lost.warnings) == ("tool_timeout", ())
    assert (graded.score, graded.warnings) == (1.0, (WARNING.format(mode="serial"),))
