"""Blocking calls in daemon threads: values, errors, cancellation, reuse, and the way back into the loop."""

from __future__ import annotations

import contextvars
import gc
import subprocess
import sys
import threading
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from corral.threads import Bridge, call_blocking

pytestmark = pytest.mark.anyio

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def raise_it(error: BaseException) -> None:
    raise error


async def test_what_the_call_gives_comes_back() -> None:
    assert await call_blocking(divmod, 17, 5) == (3, 2)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_what_the_call_raises_comes_back(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        await call_blocking(raise_it, error)
    assert caught.value is error


async def test_the_call_runs_in_a_daemon_thread_beside_the_loop() -> None:
    thread = await call_blocking(threading.current_thread)
    assert thread.daemon
    assert thread is not threading.current_thread()


async def test_the_loop_goes_on_while_the_call_runs() -> None:
    release = threading.Event()

    async def wait_in_thread() -> None:
        assert await call_blocking(release.wait, 5.0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_in_thread)
        await anyio.lowlevel.checkpoint()
        release.set()


async def test_context_variables_are_seen() -> None:
    variable.set("mine")
    assert await call_blocking(variable.get) == "mine"


async def test_more_calls_at_once_than_any_default_limit() -> None:
    """120 calls that wait for each other: with fewer threads than that none would return."""
    barrier = threading.Barrier(120, timeout=10)

    async def meet() -> None:
        await call_blocking(barrier.wait)

    async with anyio.create_task_group() as tasks:
        for _ in range(120):
            tasks.start_soon(meet)


async def test_threads_are_used_again() -> None:
    await call_blocking(lambda: None)
    before = threading.active_count()
    for _ in range(50):
        await call_blocking(lambda: None)
    # A thread is idle a moment after its answer is there, so a second one may be started; not fifty.
    assert threading.active_count() <= before + 2


async def test_a_cancelled_call_is_given_up_at_once_and_its_late_answer_dropped() -> None:
    release, late = threading.Event(), threading.Event()

    def hang() -> str:
        release.wait(10)
        late.set()
        return "late"

    with anyio.fail_after(2):
        with anyio.move_on_after(0.01) as scope:
            await call_blocking(hang)
        assert scope.cancelled_caught
        assert await call_blocking(lambda: "next") == "next"
        release.set()
        assert await call_blocking(late.wait, 2.0)
        assert await call_blocking(lambda: "still serving") == "still serving"


async def test_nothing_of_a_call_is_kept_alive() -> None:
    class Large:
        pass

    large = Large()
    alive = weakref.ref(large)
    with pytest.raises(ValueError, match="x"):
        await call_blocking(lambda _: raise_it(ValueError("x")), large)
    assert await call_blocking(lambda value: value, large) is large
    del large
    await call_blocking(lambda: None)
    gc.collect()
    assert alive() is None


async def test_a_bridge_calls_back_into_the_loop() -> None:
    bridge = Bridge()
    loop_thread = threading.current_thread()

    async def inside(value: int) -> tuple[int, bool]:
        await anyio.lowlevel.checkpoint()
        return value + 1, threading.current_thread() is loop_thread

    async def failing() -> None:
        raise LookupError("from the loop")

    assert await call_blocking(lambda: bridge.call(inside, 1)) == (2, True)
    with pytest.raises(LookupError, match="from the loop"):
        await call_blocking(lambda: bridge.call(failing))


HANGING = """
import anyio, threading, sys
from corral.threads import call_blocking

async def main():
    with anyio.move_on_after(0.05):
        await call_blocking(threading.Event().wait)
    print("given up")

anyio.run(main, backend=sys.argv[1])
"""


def test_a_call_that_hangs_for_ever_does_not_keep_the_interpreter(anyio_backend: str) -> None:
    run: subprocess.CompletedProcess[Any] = subprocess.run(
        [sys.executable, "-c", HANGING, anyio_backend], capture_output=True, text=True, timeout=20, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "given up\n", "")
