"""SUPERVISOR SIDE. On which node a slot's next worker starts, and when it is better off on another: plain decisions.

Guarantees
    * Workers are shared out by the nodes' processors, and each goes where it has most of them.
    * A worker moves only from a node that has more of them than processors, and only where the more crowded one of the
      two is less so afterwards: moving comes to an end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from corral.pool.backend import Node


def choose_node(
    nodes: Sequence[Node], taken: Iterable[Node], avoided: Node | None = None, share: float = math.inf
) -> Node | None:
    """The node with the most processors for each worker, of those that take another one; None if none does.

    ``taken``: the node of each worker that there is. ``avoided``: where the slot's last worker failed to start; it is
    taken only where no other has room. ``share``: workers that none is to have more of, while others are still to come.
    """
    held = _count(nodes, taken)
    open_ones = [node for node in nodes if held[node] < min(share, math.inf if node.limit is None else node.limit)]
    return min(open_ones, key=lambda node: (node == avoided, (held[node] + 1) / node.cpus), default=None)


def is_crowded(node: Node, nodes: Sequence[Node], taken: Sequence[Node]) -> bool:
    """Whether workers of ``node`` share its processors, and one of them would have more on another node."""
    other = choose_node([other for other in nodes if other != node], taken)
    if other is None:
        return False
    held = _count([node, other], taken)
    return held[node] > node.cpus and (held[other] + 1) / other.cpus < held[node] / node.cpus


def _count(nodes: Iterable[Node], taken: Iterable[Node]) -> dict[Node, int]:
    held = dict.fromkeys(nodes, 0)
    for node in taken:
        if node in held:
            held[node] += 1
    return held
