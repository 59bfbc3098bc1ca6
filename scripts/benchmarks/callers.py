"""One way each to have a value echoed by another process: Corral's, its peers', and the floors beneath them."""

from __future__ import annotations

import multiprocessing
import socket
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from anyio import to_process, to_thread

from benchmarks.environments import build_echo_on_pool
from benchmarks.measuring import Call
from benchmarks.pools import serving
from benchmarks.work import (
    echo,
    receive_frame,
    receive_with_buffers,
    send_frame,
    send_with_buffers,
    serve_pipe,
    serve_pipe_with_buffers,
    serve_socket,
)

SPAWN = multiprocessing.get_context("spawn")

PIPE, PIPE5, SOCKET = "multiprocessing.Pipe", "multiprocessing.Pipe, protocol 5", "socketpair, bytes as they are"
EXECUTOR, LOKY, CORRAL = "ProcessPoolExecutor", "loky", "Corral, a tool call"


async def corral_call(stack: AsyncExitStack) -> Call:
    """The whole way of an agent's tool call: router, validation, wire, environment, record."""
    served = await stack.enter_async_context(serving(build_echo_on_pool, 1))
    trial = await served.open("process")
    stack.push_async_callback(trial.close)

    async def call(value: Any) -> Any:
        if isinstance(value, str):
            return await trial.call("echo", {"text": value})
        return await trial.call("echo_values", {"values": value})

    return call


def _blocking(ask: Callable[[Any], Any]) -> Call:
    """The event loop stands still while the call runs."""

    async def call(value: Any) -> Any:
        return ask(value)

    return call


async def executor_call(stack: AsyncExitStack) -> Call:
    executor = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN))
    return _blocking(lambda value: executor.submit(echo, value).result())


async def executor_on_asyncio_call(stack: AsyncExitStack) -> Call:
    """As asynchronous code uses it: other tasks go on while the call runs."""
    import asyncio

    executor = stack.enter_context(ProcessPoolExecutor(1, mp_context=SPAWN))

    async def call(value: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, echo, value)

    return call


async def pool_call(stack: AsyncExitStack) -> Call:
    pool = SPAWN.Pool(1)
    stack.callback(pool.join)
    stack.callback(pool.close)
    return _blocking(lambda value: pool.apply(echo, (value,)))


async def loky_call(stack: AsyncExitStack) -> Call:
    from loky import ProcessPoolExecutor as LokyExecutor

    executor = LokyExecutor(1, timeout=None)
    stack.callback(executor.shutdown)
    return _blocking(lambda value: executor.submit(echo, value).result())


async def pebble_call(stack: AsyncExitStack) -> Call:
    from pebble import ProcessPool

    pool = ProcessPool(1, context=SPAWN)
    stack.callback(pool.join)
    stack.callback(pool.close)
    return _blocking(lambda value: pool.schedule(echo, (value,)).result())


async def trio_parallel_call(stack: AsyncExitStack) -> Call:
    import trio_parallel

    context = await stack.enter_async_context(trio_parallel.open_worker_context())

    async def call(value: Any) -> Any:
        return await context.run_sync(echo, value)

    return call


async def to_process_call(stack: AsyncExitStack) -> Call:
    async def call(value: Any) -> Any:
        return await to_process.run_sync(echo, value)

    return call


def _serve(stack: AsyncExitStack, serve: Callable[[Any], None], theirs: Any) -> None:
    process = SPAWN.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    stack.callback(process.join)


def _ask_pipe(stack: AsyncExitStack) -> Callable[[Any], Any]:
    ours, theirs = SPAWN.Pipe()
    _serve(stack, serve_pipe, theirs)
    stack.callback(ours.send, None)

    def ask(value: Any) -> Any:
        ours.send(value)
        return ours.recv()

    return ask


async def thread_and_pipe_call(stack: AsyncExitStack) -> Call:
    """A pool of threads, each with a process at the other end of a pipe: this is one of them."""
    ask = _ask_pipe(stack)

    async def call(value: Any) -> Any:
        return await to_thread.run_sync(ask, value)

    return call


async def pipe_call(stack: AsyncExitStack) -> Call:
    return _blocking(_ask_pipe(stack))


async def pipe_with_buffers_call(stack: AsyncExitStack) -> Call:
    ours, theirs = SPAWN.Pipe()
    _serve(stack, serve_pipe_with_buffers, theirs)
    stack.callback(send_with_buffers, ours, None)

    def ask(value: Any) -> Any:
        send_with_buffers(ours, value)
        return receive_with_buffers(ours)

    return _blocking(ask)


async def socket_call(stack: AsyncExitStack) -> Call:
    ours, theirs = socket.socketpair()
    _serve(stack, serve_socket, theirs)
    stack.callback(ours.close)

    def ask(value: Any) -> Any:
        send_frame(ours, memoryview(value.encode() if isinstance(value, str) else value).cast("B"))
        return receive_frame(ours)

    return _blocking(ask)


Make = Callable[[AsyncExitStack], Awaitable[Call]]


def callers(backend: str) -> dict[str, Make]:
    """What can be measured on an event loop: ``asyncio``, ``uvloop`` or ``trio``."""
    own: dict[str, Make] = {
        f"{EXECUTOR}, run_in_executor": executor_on_asyncio_call,
    }
    if backend == "trio":
        own = {"trio-parallel": trio_parallel_call}
    found: dict[str, Make] = {
        CORRAL: corral_call,
        "anyio.to_process": to_process_call,
        "a thread and a Pipe": thread_and_pipe_call,
        EXECUTOR: executor_call,
        **own,
        "multiprocessing.Pool": pool_call,
        LOKY: loky_call,
        "pebble": pebble_call,
        PIPE: pipe_call,
        PIPE5: pipe_with_buffers_call,
        SOCKET: socket_call,
    }
    if sys.platform == "win32":
        del found[SOCKET]
    return found
