"""What users meet instead of a group of exceptions."""

from __future__ import annotations

import anyio
import pytest

from corral.errors import JournalError, ProtocolError
from corral.unwrap import TOLD, sole, unwrapped

pytestmark = pytest.mark.anyio


def group(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("unhandled errors in a TaskGroup", errors)


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


async def fail(error: BaseException, together: anyio.Event) -> None:
    await together.wait()
    raise error


async def fail_together(errors: list[JournalError]) -> None:
    """In task groups within each other."""
    together = anyio.Event()
    async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
        for tasks, error in zip((outer, inner, inner), errors, strict=True):
            tasks.start_soon(fail, error, together)
        await anyio.wait_all_tasks_blocked()
        together.set()


async def test_one_cause_that_many_tasks_meet_is_one_error() -> None:
    cause = OSError(28, "No space left on device")
    errors = [JournalError("cannot write x: no space") for _ in range(3)]
    for error in errors:
        error.__cause__ = cause
    with pytest.raises(JournalError, match="no space") as caught, unwrapped():
        await fail_together(errors)
    assert caught.value in errors
    assert (caught.value.__cause__, notes_of(caught.value)) == (cause, [])


async def test_others_that_came_with_it_are_told_once_each() -> None:
    first = JournalError("no space")
    wake = [ProtocolError("too late"), ValueError("odd"), ProtocolError("too late"), JournalError("no space")]
    assert sole(group(first, *wake)) is first
    assert notes_of(first) == ["besides: ProtocolError: too late", "besides: ValueError: odd"]


async def test_and_a_crowd_of_them_is_counted() -> None:
    first = sole(group(*(KeyError(number) for number in range(100))))
    assert repr(first) == "KeyError(0)"
    assert len(notes_of(first)) == TOLD + 1
    assert notes_of(first)[-1] == f"and {99 - TOLD} more"


async def test_a_request_to_stop_goes_before_what_it_broke_off() -> None:
    stop = KeyboardInterrupt()
    found = sole(group(ProtocolError("writing was interrupted"), group(stop, KeyboardInterrupt()), ValueError()))
    assert found is stop
    assert notes_of(found) == ["besides: ProtocolError: writing was interrupted", "besides: ValueError: "]


async def test_cancellations_are_no_errors() -> None:
    caught: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class() as cancelled:
            caught.append(cancelled)
            raise
    only, error = group(*caught), ValueError("odd")
    assert sole(only) is only
    assert (sole(group(*caught, error)), notes_of(error)) == (error, [])


async def test_what_is_no_group_is_left_alone() -> None:
    error = ValueError("odd")
    assert sole(error) is error
    with pytest.raises(ValueError, match="odd") as caught, unwrapped():
        raise error
    assert caught.value is error
