"""SUPERVISOR SIDE. The local backend: one agent, in this process, called directly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import anyio

from corral.pool.agent import Agent, AgentSettings
from corral.pool.backend import Loss, Node, SlotSpec, Spawned
from corral.pool.config import available_cpus
from corral.pool.descriptors import make_room


class LocalBackend:
    """This machine as the only node. Its workers say nothing of a node: there is but one."""

    def __init__(self, settings: AgentSettings) -> None:
        self._agent = Agent(settings)
        self._nodes = (Node("", cpus=available_cpus()),)

    async def __aenter__(self) -> Self:
        await self._agent.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._agent.__aexit__(kind, error, trace)

    def nodes(self) -> Sequence[Node]:
        """This machine."""
        return self._nodes

    @property
    def expected_nodes(self) -> int:
        """It is there."""
        return 1

    def scale(self, slots: int) -> None:
        """Fork workers for them: they connect, and load when they are asked for. ConfigError for too many."""
        make_room(slots)
        self._agent.expect(slots)

    async def nodes_changed(self) -> None:
        """It stays."""
        await anyio.sleep_forever()

    async def spawn(self, node: Node, spec: SlotSpec) -> Spawned:
        """Start a worker. See ``SlotBackend``."""
        return Spawned(*await self._agent.start(spec))

    async def aclose(self) -> None:
        """End all workers, and start no other."""
        await self._agent.aclose()

    def losses(self) -> Sequence[Loss]:
        """None."""
        return ()

    def refusals(self) -> Sequence[str]:
        """None."""
        return ()

    @property
    def node_patience(self) -> float:
        """It is never waited for."""
        return math.inf

    @property
    def nursery_pid(self) -> int | None:
        """The process of which workers are forked, while there is one."""
        return self._agent.nursery_pid
