"""SUPERVISOR SIDE. The Dask backend: the nodes of a cluster, and what was spawned on each."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from corral.errors import ProtocolError
from corral.pool.agent import AgentSettings
from corral.pool.backend import Loss, Node, SlotSpec, Spawned
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.engine import Engine, Event, NodeCame, NodeGone, NodeRefused, NodeTold, NodeWent
from corral.pool.dask.launch import LocalNodes, size_of
from corral.pool.dask.messages import (
    AgentOrder,
    Nothing,
    NotStarted,
    Request,
    Spawn,
    WorkerIs,
    pack_request,
    unpack_answer,
)
from corral.pool.dask.remote import RemoteWorker
from corral.pool.main_script import places_of_modules
from corral.pool.starts import NodeLost

if TYPE_CHECKING:
    from corral.pool.dask.plugin import AgentPlugin


_log = logging.getLogger(__name__)


class DaskBackend:
    """Workers on the nodes of a Dask cluster. See ``SlotBackend``."""

    nursery_pid: int | None = None

    def __init__(self, settings: AgentSettings, config: DaskConfig) -> None:
        self._settings = settings
        self._config = config
        self._engine = Engine(config, self._plugin, settings.memory_limit, self._hear)
        self._workers: dict[int, RemoteWorker] = {}
        self._nodes: dict[str, Node] = {}
        self._losses: dict[str, Loss] = {}
        """By incarnation."""
        self._refusals: list[str] = []
        self._changed = anyio.Event()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._engine.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all agents with all that they started."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                await self._engine.close()
            for worker in list(self._workers.values()):
                worker.lose(None)

    @property
    def node_patience(self) -> float:
        """Seconds that a slot waits for a node with room."""
        return self._config.node_timeout

    def nodes(self) -> Sequence[Node]:
        """Those that were greeted and are not lost."""
        return tuple(self._nodes.values())

    @property
    def expected_nodes(self) -> int:
        """Those of the launch; of a cluster that runs already nothing is known."""
        return 0 if self._config.scheduler is not None else size_of(self._config.launch or LocalNodes())

    def losses(self) -> Sequence[Loss]:
        """Those that were lost."""
        return tuple(self._losses.values())

    def refusals(self) -> Sequence[str]:
        """Why Dask workers that there are take no workers."""
        return tuple(self._refusals)

    def scale(self, slots: int) -> None:
        """Nothing: a cluster is as large as its owner, or its launch, has made it, and slots wait for room."""

    async def nodes_changed(self) -> None:
        """Wait for a node that comes or goes, or for room on one."""
        await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _hear(self, event: Event) -> None:
        match event:
            case NodeCame(node):
                self._nodes[node.incarnation] = node
            case NodeWent(node, reason):
                self._losses[node.incarnation] = Loss(node, reason)
                del self._nodes[node.incarnation]
                for worker in [worker for worker in self._workers.values() if worker.node == node]:
                    worker.lose(None)
            case NodeTold(_, news):
                for gone in news.gone:
                    if lost := self._workers.get(gone.worker):
                        lost.lose(gone.status)
            case NodeRefused(reason):
                self._refusals.append(reason)
                _log.warning("%s", reason)
        self._forget_lost()
        self._change()

    def _forget_lost(self) -> None:
        self._workers = {number: worker for number, worker in self._workers.items() if not worker.gone.is_set()}

    def _reason(self, node: Node) -> str | None:
        loss = self._losses.get(node.incarnation)
        return loss.reason if loss else None

    async def _call(self, incarnation: str, request: Request) -> Any:
        return unpack_answer(await self._engine.call(incarnation, pack_request(request)))

    async def spawn(self, node: Node, spec: SlotSpec) -> Spawned:
        """Start a worker. See ``SlotBackend``."""
        call = partial(self._call, node.incarnation)
        worker = RemoteWorker(node, spec.slot, call, lambda: self._reason(node))
        self._workers[worker.number] = worker
        try:
            answer = await call(Spawn(worker.number, replace(spec, node=node.name)))
        except NodeGone as gone:
            raise NodeLost(f"node {node.name} was lost: {gone.reason}") from None
        except BaseException:
            await worker.kill()
            raise
        match answer:
            case WorkerIs(pid, loaded, seconds):
                worker.pid = pid
                return Spawned(worker, loaded, seconds)
            case NotStarted():
                raise answer.error()
            case Nothing():
                raise NodeLost(f"node {node.name} was told to stop")
            case _:
                raise ProtocolError(f"an agent answered with a {type(answer).__name__}")

    def _plugin(self) -> AgentPlugin:
        from corral.pool.dask.plugin import AgentPlugin

        config = self._config
        order = AgentOrder(self._settings, config.lease, _own_path(), os.getcwd())
        name = f"corral_{secrets.token_hex(6)}"
        return AgentPlugin(name, pickle.dumps(order), config.prefix, config.interpreter, dict(config.environment))


def _own_path() -> tuple[str, ...]:
    """Where this process finds modules, without what belongs to its interpreter: another one has its own."""
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found = (os.path.abspath(place) for place in places_of_modules())
    return tuple(
        place for place in found if os.path.isdir(place) and not any(_is_below(place, folder) for folder in own)
    )


def _is_below(place: str, folder: str) -> bool:
    return (os.path.realpath(place) + os.sep).startswith(folder + os.sep)
