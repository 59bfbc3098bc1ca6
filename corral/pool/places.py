"""SUPERVISOR SIDE. Where the workers of a pool's slots are: each is given a node, and moves when others come.

Guarantees
    * A slot that has no worker is given a node as soon as one has room.
    * Slots wait for nodes that are about to come, for NODES_PATIENCE, rather than crowd those that are there.
    * Nodes that come later than that get their share: workers of crowded nodes move there, between two leases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

import anyio

from corral.pool.backend import Node, SlotBackend
from corral.pool.placement import choose_node, is_crowded
from corral.pool.slots import Slot, Slots
from corral.pool.starts import NoNode

NODES_PATIENCE = 30.0
"""Seconds from the start of a pool."""
LOOK = 1.0
"""Seconds between two looks whether it is worth to wait on."""
PLACING = 0.02
"""Seconds in which slots without a worker are given a node: who moves is decided when that is known."""


class Places:
    """On the nodes of a backend."""

    def __init__(self, backend: SlotBackend, slots: Slots) -> None:
        self._backend = backend
        self._slots = slots
        self._began = time.monotonic()

    async def give(self, slot: Slot) -> Node:
        """A node for the slot's next worker. NoNode if none has room for ``node_patience`` seconds."""
        avoided, slot.node = slot.node, None
        with anyio.move_on_after(self._backend.node_patience):
            while True:
                share = self._share()
                if node := choose_node(self._backend.nodes(), self._taken(), avoided, share):
                    slot.node = node
                    return node
                with anyio.move_on_after(LOOK if share < math.inf else math.inf):
                    await self._backend.nodes_changed()
        raise NoNode(self._backend.node_patience, self._backend.refusals())

    def is_crowded(self, slot: Slot) -> bool:
        """Whether its worker would be better off on a node that came after it."""
        nodes = self._backend.nodes()
        return len(nodes) > 1 and slot.node is not None and is_crowded(slot.node, nodes, self._taken())

    async def even_out(self, renew: Callable[[Slot], Awaitable[None]]) -> None:
        """Move idle workers whenever nodes come; ``renew`` ends one. Who has a leased one moves it."""
        while True:
            await self._backend.nodes_changed()
            await anyio.sleep(PLACING)
            while slot := self._slots.take_one(self.is_crowded):
                try:
                    await renew(slot)
                finally:
                    self._slots.give_back(slot)
                await anyio.sleep(PLACING)

    def _taken(self) -> list[Node]:
        return [slot.node for slot in self._slots.all if slot.node is not None]

    def _share(self) -> float:
        """How many workers no node is to have more of, as long as others are about to come."""
        to_come = self._backend.expected_nodes
        waits = time.monotonic() - self._began < NODES_PATIENCE and len(self._backend.nodes()) < to_come
        return math.ceil(len(self._slots.all) / to_come) if waits else math.inf
