"""SUPERVISOR SIDE. The driver: a Dask client on an asyncio loop in a thread of its own, and contact with every node.

Purpose
    The supervisor runs on asyncio or trio, and its loop is not Dask's. Here is all that knows Dask: who belongs to the
    cluster, the plugin on each node, and calls to the nodes, which go to them directly and not by way of the scheduler.
Guarantees
    * A call is made at most once. It gives the agent's answer, or raises NodeGone as soon as the node is lost.
    * A node is lost, once and for good, when it gives no sign of life for SILENCE, its connection breaks, its agent
      ends, or the scheduler drops it. What comes after is another node, by its incarnation.
    * Seconds count while this process runs: one that was busy or stopped itself does not take its nodes for dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from corral.errors import ErrorRecord
from corral.pool.backend import Node
from corral.pool.dask.client import connected, told
from corral.pool.dask.config import DaskConfig, is_safe
from corral.pool.dask.loops import run_driver
from corral.pool.dask.messages import Greeting, Leave, News, Watch, pack_request, unpack_answer
from corral.pool.dask.versions import mismatch
from corral.threads import loop_caller

if TYPE_CHECKING:
    from corral.pool.dask.plugin import AgentPlugin

SILENCE = 8.0
"""Seconds without an answer after which a node is lost. A sound one answers within a second."""
POLL = 1.0
"""Seconds between two looks at who belongs to the cluster."""
GREETING_PATIENCE = 70.0
"""Seconds for an agent to be started."""
UNKNOWN_PATIENCE = 20
"""Looks after which a Dask worker that still has no agent's plugin is passed over."""
END_PATIENCE = 20.0
"""Seconds for all agents to end."""
LOST_PATIENCE = 2.0
"""The same where a node was lost: it may not answer, and its lease ends what is there."""
TICK = 0.5
"""Seconds in which patience is counted."""


CLOSED = "the pool was closed"


class NodeGone(Exception):
    """The node of a call was lost. ``reason``, in words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class NodeCame:
    """A node takes workers from now on."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeWent:
    """A node is lost."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """A Dask worker is no node, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class NodeTold:
    """News of a node."""

    node: Node
    news: News


Event = NodeCame | NodeWent | NodeRefused | NodeTold


@dataclass(eq=False)
class _Contact:
    """A node that was greeted."""

    node: Node
    address: str
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    reason: str | None = None
    """Why it was lost."""


class Engine:
    """Open it, make calls, close it; from any event loop. What happens to nodes is told to ``hear``, on that loop."""

    def __init__(
        self, config: DaskConfig, plugin: Callable[[], AgentPlugin], memory: int | None, hear: Callable[[Event], None]
    ) -> None:
        """``plugin``: makes what is put into Dask workers. ``memory``: bytes that a slot may need."""
        self._config = config
        self._make_plugin = plugin
        self._memory = memory
        self._hear = hear
        self._contacts: dict[str, _Contact] = {}
        """By incarnation."""
        self._addresses: dict[str, _Contact | None] = {}
        """Dask workers that are known; None: being greeted, or refused."""
        self._lost: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._given_up = False
        """Before it was open."""
        self._failures: list[BaseException] = []
        """What broke the driver, if anything did."""
        self._calls: set[anyio.Event] = set()
        """Those that wait for an answer: what ends the wait."""

    # ---- from the supervisor's loop ----

    async def open(self) -> None:
        """Reach, or launch, the cluster. ConfigError and EnvStartError if that cannot be."""
        self._call_there = loop_caller()
        opened, self._ended = anyio.Event(), anyio.Event()
        failures = self._failures

        def run() -> None:
            if hasattr(signal, "SIGPIPE"):  # of a node that is gone: at its default it would end this whole process
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
            try:
                run_driver(partial(self._main, lambda: self._tell(opened.set)))
            except BaseException as error:
                failures.append(error)
            finally:
                self._tell(opened.set)
                self._tell(self._end_calls)

        threading.Thread(target=run, name="corral dask", daemon=True).start()
        try:
            await opened.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._give_up()
            raise
        if failures:
            raise told(failures[0], self._config)

    async def call(self, incarnation: str, body: bytes) -> bytes:
        """The answer of a node's agent. NodeGone if there will be none. Cancelled, the call goes on by itself."""
        done = anyio.Event()
        outcome: list[bytes | BaseException] = []

        def finish(value: bytes | BaseException) -> None:
            outcome.append(value)
            self._tell(done.set)

        self._calls.add(done)
        try:
            self._there(self._begin, incarnation, body, finish)
            await done.wait()
        finally:
            self._calls.discard(done)
        value = outcome.pop() if outcome else self._over_now()
        if isinstance(value, BaseException):
            raise value
        return value

    def _end_calls(self) -> None:
        """The driver's loop has ended: whoever still waits for it, or for an answer, need not any longer."""
        self._ended.set()
        for done in self._calls:
            done.set()

    async def _give_up(self) -> None:
        self._given_up = True
        if self._loop is not None:
            with contextlib.suppress(NodeGone):
                self._there(self._cancel_opening)
        await self._ended.wait()

    def _cancel_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """End all agents, and what was launched."""
        if self._loop is not None:
            with contextlib.suppress(NodeGone):
                self._there(self._over.set)
            await self._ended.wait()

    def _there(self, function: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            raise self._over_now() from None

    def _over_now(self) -> NodeGone:
        """Why there is no answer from a driver that has ended."""
        return NodeGone(f"its driver failed: {ErrorRecord.of(self._failures[0])}" if self._failures else CLOSED)

    def _tell(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):  # the supervisor's loop has ended: nobody is waiting any more
            self._call_there(function)

    # ---- on the driver's own loop ----

    async def _main(self, opened: Callable[[], None]) -> None:
        self._over, self._opening = asyncio.Event(), asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._given_up:
            return
        async with contextlib.AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(connected(self._config))
            self._plugin = self._make_plugin()
            stack.push_async_callback(self._take_plugin_out)
            with contextlib.suppress(Exception):  # of one worker; its greeting will tell, and others can be sound
                await self._client.register_plugin(self._plugin, name=self._plugin.name)
            opened()
            while not self._over.is_set():
                await self._look()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), POLL)
            await self._leave()

    async def _leave(self) -> None:
        leave = pack_request(Leave())
        calls = [self._ask(contact, leave) for contact in self._contacts.values()]
        with contextlib.suppress(Exception):
            await _within(SILENCE, _all(calls))
        for task in [*self._tasks, *(call for contact in self._contacts.values() for call in contact.calls)]:
            task.cancel()

    async def _take_plugin_out(self) -> None:
        patience = LOST_PATIENCE if self._lost else END_PATIENCE
        with contextlib.suppress(Exception):
            await _within(patience, self._client.unregister_worker_plugin(self._plugin.name))

    async def _look(self) -> None:
        """Find out who belongs to the cluster now. A scheduler that does not answer changes nothing."""
        try:
            known = (await _within(SILENCE, self._client.scheduler.identity()))["workers"]
        except (OSError, NodeGone):
            return
        for address, facts in known.items():
            if address not in self._addresses:
                self._addresses[address] = None
                self._start(self._meet(address, facts))
        for address, contact in list(self._addresses.items()):
            if address not in known:
                del self._addresses[address]
                if contact is not None:
                    self._lose(contact, "the scheduler dropped it")

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _meet(self, address: str, facts: dict[str, Any]) -> None:
        """Greet the agent of a Dask worker, and watch it until it is lost."""
        name = _name_of(address, facts)
        try:
            greeting = await self._greet(address)
        except (OSError, NodeGone):
            self._addresses.pop(address, None)  # it is greeted again, if it still belongs to the cluster
            return
        except _Refused as refusal:
            refused = NodeRefused(f"node {name}: {refusal}")
            self._tell(lambda: self._hear(refused))
            return
        node = Node(name, greeting.incarnation, max(1, int(facts.get("nthreads") or 1)), self._limit(facts))
        contact = self._addresses[address] = self._contacts[node.incarnation] = _Contact(node, address)
        self._tell(lambda: self._hear(NodeCame(node)))
        await self._watch(contact)

    async def _greet(self, address: str) -> Greeting:
        if not is_safe(address):
            raise _Refused(f"its address {address} is neither encrypted nor of this machine alone")
        for _ in range(UNKNOWN_PATIENCE):
            reply = await _within(GREETING_PATIENCE, self._send(address, lost=tuple(self._lost)))
            if reply is not None:
                break
            await asyncio.sleep(TICK)
        else:
            raise _Refused("Corral cannot be loaded there: install 'corral[dask]', of this version, in its environment")
        if "failed" in reply:
            raise _Refused(reply["failed"])
        greeting = Greeting.from_line(reply["greeting"])
        if wrong := mismatch(greeting):
            raise _Refused(wrong)
        return greeting

    async def _send(self, address: str, **message: Any) -> Any:
        return await getattr(self._client.rpc(address), self._plugin.name)(**message)

    def _limit(self, facts: dict[str, Any]) -> int | None:
        limits = [self._config.slots_per_node] if self._config.slots_per_node else []
        if self._memory and facts.get("memory_limit"):
            limits.append(max(1, int(facts["memory_limit"]) // self._memory))
        return min(limits, default=None)

    async def _watch(self, contact: _Contact) -> None:
        watch = pack_request(Watch())
        while contact.reason is None:
            try:
                news = unpack_answer(await _within(SILENCE, self._ask(contact, watch)))
            except NodeGone as gone:
                self._lose(contact, gone.reason)
            except OSError as error:
                self._lose(contact, f"its connection broke: {ErrorRecord.of(error)}")
            else:
                if news.gone:
                    self._tell(lambda news=news: self._hear(NodeTold(contact.node, news)))  # type: ignore[misc]

    async def _ask(self, contact: _Contact, body: bytes) -> bytes:
        reply = await self._send(contact.address, incarnation=contact.node.incarnation, body=body)
        if reply is None or "body" not in reply:
            raise NodeGone("its agent ended")
        return bytes(reply["body"])

    def _lose(self, contact: _Contact, reason: str) -> None:
        if contact.reason is not None:
            return
        contact.reason = reason
        self._lost.add(contact.node.incarnation)
        del self._contacts[contact.node.incarnation]
        if self._addresses.get(contact.address) is contact:
            del self._addresses[contact.address]  # it is greeted again, if it still belongs to the cluster
        self._tell(lambda: self._hear(NodeWent(contact.node, reason)))
        for task in list(contact.calls):
            task.cancel()

    def _begin(self, incarnation: str, body: bytes, finish: Callable[[bytes | BaseException], None]) -> None:
        contact = self._contacts.get(incarnation)
        if contact is None:
            finish(NodeGone("it is gone"))
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(contact, body, finish))
        contact.calls.add(task)
        task.add_done_callback(contact.calls.discard)

    async def _carry_out(self, contact: _Contact, body: bytes, finish: Callable[[bytes | BaseException], None]) -> None:
        try:
            finish(await self._ask(contact, body))
        except asyncio.CancelledError:
            finish(NodeGone(contact.reason or CLOSED))
        except (OSError, NodeGone) as error:
            # Whatever broke, the request may have been carried out: the node is not asked again.
            reason = error.reason if isinstance(error, NodeGone) else f"its connection broke: {ErrorRecord.of(error)}"
            self._lose(contact, reason)
            finish(NodeGone(contact.reason or reason))
        except Exception as error:
            finish(error)


class _Refused(Exception):
    """Why a Dask worker is no node."""


async def _all(calls: list[Coroutine[Any, Any, Any]]) -> None:
    await asyncio.gather(*calls, return_exceptions=True)


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    """What ``work`` gives, within so many seconds of this loop's own time. NodeGone after them."""
    task = asyncio.ensure_future(work)
    try:
        for _ in range(round(seconds / TICK)):
            await asyncio.wait([task], timeout=TICK)
            if task.done():
                return task.result()
    finally:
        task.cancel()
    raise NodeGone(f"it gave no sign of life for {seconds:g} s")


def _name_of(address: str, facts: dict[str, Any]) -> str:
    """The Dask worker's name, if somebody gave it one; else where it is."""
    name = facts.get("name")
    place = address.rpartition("://")[2]
    return name if isinstance(name, str) and name and place not in name else place
