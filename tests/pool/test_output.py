"""What trial processes print, and what they read: it never meets the pool's messages, and never blocks them."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import anyio
import pytest

from corral.errors import SerializationError, WorkerDied
from corral.pool.printed import OUTPUT_TAIL
from tests.support import pool_envs
from tests.support.pool_driving import once, opened, pool, python, respond

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough: what a worker does with its output does not depend on the supervisor's."""
    return "asyncio"


FIVE_MB = {
    "python_stdout": "import sys; sys.stdout.write('x' * 5_000_000); result = 1",
    "python_stderr": "import sys; sys.stderr.write('x' * 5_000_000); result = 1",
    "descriptor_1": "import os; result = [os.write(1, b'x' * 1_000_000) for _ in range(5)]",
    "descriptor_2": "import os; result = [os.write(2, b'x' * 1_000_000) for _ in range(5)]",
    "c_library": "import ctypes; libc = ctypes.CDLL(None); result = [libc.puts(b'x' * 1000) for _ in range(5000)][-1]",
    "child": "import subprocess; result = subprocess.run(['head', '-c', '5000000', '/dev/zero']).returncode",
}


async def test_five_megabytes_of_output_do_no_harm() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        for kind, code in FIVE_MB.items():
            with anyio.fail_after(15):
                assert await python(lease, runtime_id, code) is not None, kind
                assert await python(lease, runtime_id, "result = 1") == 1


async def test_the_error_of_a_death_holds_the_last_output(fresh: str) -> None:
    talk = """
        import os, sys
        print("from python"); print("to stderr", file=sys.stderr); os.write(1, b"from C\\n")
        os._exit(1)
    """
    async with pool(fresh=fresh) as workers:
        await once(workers, "print('of an earlier trial')")
        with pytest.raises(WorkerDied) as caught:
            await once(workers, talk)
    for line in ("from python", "to stderr", "from C"):
        assert line in caught.value.output
    assert "earlier" not in caught.value.output


async def test_so_it_does_where_the_process_has_ended_before_its_worker_runs_again() -> None:
    async with pool(pool_envs.build_where_forks_run_first) as workers:
        for _ in range(2):
            with pytest.raises(WorkerDied) as caught:
                await once(workers, "print('last words', flush=True); import os; os._exit(3)")
            assert caught.value.output.startswith("last words\n")


async def test_the_output_kept_is_bounded_and_is_the_end_of_it() -> None:
    with pytest.raises(WorkerDied) as caught:
        async with pool() as workers:
            await once(workers, "import os; os.write(1, b'x' * 1_000_000 + b'the end'); os._exit(1)")
    assert caught.value.output.endswith("the end")
    assert len(caught.value.output) <= OUTPUT_TAIL


async def test_a_crash_leaves_its_python_stack_in_the_output(fresh: str) -> None:
    with pytest.raises(WorkerDied) as caught:
        async with pool(fresh=fresh) as workers:
            await once(workers, "def read_null():\n    import ctypes; ctypes.string_at(0)\nread_null()")
    assert "Segmentation fault" in caught.value.output
    assert "read_null" in caught.value.output


async def test_a_traceback_has_no_colours_though_they_are_asked_for(
    fresh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON_COLORS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    fail = """
        import os, threading
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start(); thread.join(); os._exit(1)
    """
    with pytest.raises(WorkerDied) as caught:
        async with pool(fresh=fresh) as workers:
            await once(workers, fail)
    assert "ZeroDivisionError: division by zero" in caught.value.output


async def test_output_that_is_no_text_does_no_harm() -> None:
    with pytest.raises(WorkerDied) as caught:
        async with pool() as workers:
            await once(workers, "import os; print('\\ud800'); os.write(2, bytes(range(256))); os._exit(1)")
    assert "\\ud800" in caught.value.output
    assert "\\xff" in caught.value.output


async def test_standard_input_is_at_its_end(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the supervisor may read is left to it."""
    read, write = os.pipe()
    os.write(write, b"1\n2\n3\n")
    kept = os.dup(0)
    os.dup2(read, 0)
    look = """
        import subprocess, sys
        try:
            input()
        except EOFError:
            result = ["end of file", sys.stdin.read(), subprocess.run(["cat"], capture_output=True).stdout.decode()]
    """
    try:
        async with pool(fresh=fresh) as workers:
            assert await once(workers, look) == ["end of file", "", ""]
        os.close(write)
        assert os.read(0, 100) == b"1\n2\n3\n"
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(read)


async def test_a_result_that_cannot_be_sent_costs_its_trial_only() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        with pytest.raises(SerializationError, match=r"tool 'python'.*lock"):
            await respond(lease, runtime_id, "import threading; result = threading.Lock()")
        assert await python(lease, await opened(lease), "result = 1") == 1


async def test_an_argument_that_cannot_be_sent_costs_nothing() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        arguments: Any = ("python", {"code": sys.stdin})
        with pytest.raises(SerializationError, match="TextIOWrapper"):
            await lease.perform(runtime_id, "execute", (*arguments[:1], io.TextIOWrapper(io.BytesIO())), "tool")  # type: ignore[arg-type]
        assert await python(lease, runtime_id, "result = 1") == 1


async def test_errors_that_cannot_be_rebuilt_arrive_as_text() -> None:
    class_with_two_arguments = """
        class Odd(Exception):
            def __init__(self, first, second):
                super().__init__(f"{first} and {second}")
        raise Odd(1, 2)
    """
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        response = await respond(lease, runtime_id, class_with_two_arguments)
        assert not response.success
        assert response.error == "Odd: 1 and 2"


async def test_large_results_arrive_whole() -> None:
    async with pool() as workers, workers.lease() as lease:
        text = await python(lease, await opened(lease), "result = 'abc' * 7_000_000")
    assert len(text) == 21_000_000
    assert text[-3:] == "abc"


async def test_a_large_result_that_nobody_wants_any_more_holds_up_nothing() -> None:
    async with pool() as workers, workers.lease() as lease:
        runtime_id = await opened(lease)
        with anyio.move_on_after(0.05):
            await respond(lease, runtime_id, "result = 'abc' * 20_000_000")
    with anyio.fail_after(10):
        async with pool() as workers:
            assert await once(workers, "result = 1") == 1
