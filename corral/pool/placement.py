"""SUPERVISOR SIDE. On which node a slot's next worker starts: a plain decision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.pool.backend import Node


def choose_node(nodes: Sequence[Node], taken: Iterable[Node], avoided: Node | None = None) -> Node | None:
    """The node with the most processors for each worker, of those that take another one; None if none does.

    ``taken``: the node of each worker that there is. ``avoided``: where the slot's last worker failed to start; it is
    taken only where no other has room.
    """
    held = dict.fromkeys(nodes, 0)
    for node in taken:
        if node in held:
            held[node] += 1
    open_ones = [node for node in nodes if node.limit is None or held[node] < node.limit]
    return min(open_ones, key=lambda node: (node == avoided, (held[node] + 1) / node.cpus), default=None)
