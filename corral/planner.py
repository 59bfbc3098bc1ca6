"""Which trial may start now: admission as a plain object, without a clock, files or an event loop.

Every limit is a counted *resource*: trials in all, of one task, by one model, slots of the pool, the serial gate,
the lease for configuring. A *request* names how much it needs of each.

Guarantees
    - **Atomic.** A request is started only when everything it needs is free, and takes it all in that one step.
      So nothing holds one resource while it waits for another, and there is no deadlock.
    - **Work-conserving.** After ``admit()`` no waiting request could start.
    - **In order.** ``admit()`` starts what a walk over all waiting requests, lowest ``order`` first, would start.
      A request that cannot start holds back nobody but those that want the same.
    - **Cheap.** The cost of an admission does not grow with the number of requests that wait.

How
    Waiting requests form a tree. Each edge is one demand, an amount of a resource, in the order in which requests name
    them; a request waits at the node where its demands are all named. A node that cannot be entered, since its resource
    is short, is *parked* on that resource with all that waits below it: ten thousand tasks that wait for one free trial
    are one parked node. Elsewhere each node is listed in its parent's heap by its lowest rank,
    so the root knows the best request that is not parked. It is started, or the highest node on its way that cannot be
    entered is parked. A release puts back only the nodes that are parked on what was released, and of these only those
    that it suffices for.

    With a million requests, what an admission costs is the memory that it has to look at. So a request is known by one
    number, its *rank*, which all heaps share; those of a node stand in a line, since they mostly come in order; and
    what belongs to a request lies in lists, beside that of its neighbours: they hold all that were ever added.

Assumption: calls come from one thread. The caller carries the decisions out, and calls ``admit()`` after each change.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from corral.errors import ConfigError, ProtocolError
from corral.types import check_count

GLOBAL = "global"
"""Trials of the whole benchmark."""
GATE = "gate"
"""The gate of the trials that run one at a time."""
SLOT = "slot"
"""Slots of the worker pool."""
CONFIGURE = "configure"
"""Trials inside ``configure_additional_apps``."""


def model_resource(name: str) -> str:
    """The resource of the trials by the model ``name``."""
    return f"model:{name}"


def task_resource(task_id: str) -> str:
    """The resource of the trials of the task ``task_id``."""
    return f"task:{task_id}"


def episode_resource(episode_id: str) -> str:
    """The resource of those trials of the episode ``episode_id`` that share its slot."""
    return f"episode:{episode_id}"


@dataclass(frozen=True, slots=True)
class Request:
    """One trial that wants to start, and what it needs for that."""

    key: Hashable
    demands: Mapping[str, int]
    """How much of which resource. All of a resource's capacity means: with nothing beside it.

    Their order is a matter of speed: a resource that many share stands before those that few do.
    """
    order: int = 0
    """Lower starts first; equals start in the order they were added."""


_NUMBER_BITS = 32
_NUMBER = (1 << _NUMBER_BITS) - 1
"""A rank is an order, and in its lower bits the number of a request: how many were added before it."""

_GONE = object()
"""In place of the key of a request that waits no longer."""

_NO_RANKS: list[int] = []
"""The heap of all nodes without children, which nearly all are: one list less to look at in memory."""


@dataclass(eq=False, slots=True)
class _Resource:
    name: str
    capacity: int = sys.maxsize
    free: int = sys.maxsize
    """What is left of the capacity; less than nothing once that has shrunk below what runs."""
    parked: list[_Node] | None = None
    """The nodes that wait for more of it; None if there are none."""


@dataclass(eq=False, slots=True)
class _Node:
    """What waits for one more demand than its parent."""

    parent: _Node | None
    resource: _Resource
    amount: int
    requests: int = 0
    """How many wait right here."""
    front: int | None = None
    """The first rank of the line, in which they stand in order; None if nobody does."""
    back: int = 0
    """The last one, if there is a first."""
    heap: list[int] = field(default_factory=lambda: _NO_RANKS)
    """The ranks by which children are listed, some by which they were, and of requests that came out of order."""
    listed: int | None = None
    """By which rank it is in its parent's heap; None while it is parked, or nothing waits below it."""
    parked: bool = False

    def first(self) -> int | None:
        """The lowest rank here and below."""
        if not self.heap:
            return self.front
        return self.heap[0] if self.front is None or self.heap[0] < self.front else self.front

    def push(self, rank: int) -> None:
        """Put a rank into the heap."""
        if self.heap:
            heappush(self.heap, rank)
        else:
            self.heap = [rank]

    def short(self) -> _Node | None:
        """The highest node on the way here that cannot be entered."""
        node, short = self, None
        while node.parent is not None:
            if node.amount > node.resource.free:
                short = node
            node = node.parent
        return short

    def path(self) -> list[_Node]:
        """This node and those above it but for the root: their demands are those of a request that waits here."""
        node, path = self, []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path


class Planner:
    """Decides which requests start. A resource without a capacity is counted but not limited."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self._resources: dict[str, _Resource] = {}
        self._root = _Node(None, _Resource(""), 0)
        self._children: dict[tuple[_Node, str, int], _Node] = {}
        self._numbers: dict[Hashable, int] = {}
        """Of all requests that ever waited, the last one of each key. What has ended stays: to look here, where a
        million may be, is what is spared when a request starts and when it ends."""
        self._holders: dict[Hashable, int] = {}
        """The numbers of those that run."""
        self._waiting: list[Hashable] = []
        """By number, as the next two: its key, as long as it waits, then _GONE."""
        self._nodes: list[_Node] = []
        """Where it waits; once it runs, the demands on the path to this node are what it holds."""
        self._behind: list[int | None] = []
        """The rank of who stands behind it in its line."""
        self.waiting = 0
        """How many requests wait."""
        self.evaluations = 0
        """How many times a request was looked at: what the cost per admission is measured by."""
        for name, capacity in capacities.items():
            self.resize(name, capacity)

    # --- What there is ---

    @property
    def running(self) -> int:
        """How many requests were started and not released as a whole."""
        return len(self._holders)

    def capacity(self, resource: str) -> int:
        """How much of ``resource`` there is."""
        return self._resource(resource).capacity

    def in_use(self, resource: str) -> int:
        """How much of ``resource`` is taken."""
        known = self._resource(resource)
        return known.capacity - known.free

    def blocked_on(self, key: Hashable) -> str | None:
        """The resource that keeps a waiting request from starting; None if nothing does, or it does not wait."""
        if (number := self._number(key)) is None:
            return None
        short = self._nodes[number].short()
        return None if short is None else short.resource.name

    def blocked(self) -> dict[str, int]:
        """How many requests wait for each resource. Its cost grows with the number of different demands."""
        counts: Counter[str] = Counter()
        for node in self._children.values():
            if node.requests and (short := node.short()) is not None:
                counts[short.resource.name] += node.requests
        return dict(counts)

    # --- What happens ---

    def add(self, request: Request) -> None:
        """Let ``request`` wait. One that could never start is refused with ConfigError."""
        if request.key in self._holders or self._number(request.key) is not None:
            raise ProtocolError(f"the planner already knows {request.key!s}")
        for name, amount in request.demands.items():
            check_count(amount, f"demand of {request.key!s} for {name}")
            if amount > (capacity := self._resource(name).capacity):
                raise ConfigError(f"{request.key!s} needs {amount} of {name}, and there are never more than {capacity}")
        node = self._node(request.demands)
        number = self._numbers[request.key] = len(self._nodes)
        rank = (request.order << _NUMBER_BITS) + number
        self.waiting += 1
        self._waiting.append(request.key)
        self._nodes.append(node)
        self._behind.append(None)
        node.requests += 1
        if node.front is None:
            node.front = node.back = rank
        elif node.back < rank:
            self._behind[node.back & _NUMBER] = rank
            node.back = rank
        else:  # seldom: one that was put off, or whose demands have changed
            node.push(rank)
        self._list(node)

    def admit(self) -> list[Hashable]:
        """Start every request that can start, in order; their keys. Once more without a change starts nothing."""
        started = []
        while (rank := self._root.first()) is not None:
            number = rank & _NUMBER
            node = self._nodes[number]
            self.evaluations += 1
            if (short := node.short()) is not None:
                self._park(short)
                self._strike(short, rank)
                continue
            if (key := self._waiting[number]) is not _GONE:  # otherwise it was withdrawn
                self._waiting[number] = _GONE
                self._holders[key] = number
                self.waiting -= 1
                node.requests -= 1
                for taken in node.path():
                    taken.resource.free -= taken.amount
                started.append(key)
            if node.front == rank:
                node.front = self._behind[number]
            else:
                heappop(node.heap)
            self._strike(node, rank)
        return started

    def holds(self, key: Hashable) -> list[str]:
        """The resources of which a running request still holds something; none if it does not run."""
        number = self._holders.get(key)
        return [] if number is None else [node.resource.name for node in self._nodes[number].path()]

    def release(self, key: Hashable, resources: Iterable[str] | None = None) -> None:
        """Give back what ``key`` holds: all of it, which ends it, or some resources early.

        Releasing what is not held is an error of the caller and changes nothing.
        """
        if (number := self._holders.get(key)) is None:
            raise ProtocolError(f"{key!s} holds nothing that could be released")
        given = self._nodes[number].path()
        if resources is None:
            del self._holders[key]
        else:
            held = {node.resource.name: node.amount for node in given}
            names = list(resources)
            if extra := Counter(names) - Counter(held.keys()):
                raise ProtocolError(f"{key!s} does not hold {', '.join(extra)}")
            given = [node for node in given if node.resource.name in names]
            self._nodes[number] = self._node({name: held[name] for name in held if name not in names})
        for node in given:
            node.resource.free += node.amount
            if node.resource.parked is not None:
                self._wake(node.resource)

    def withdraw(self, key: Hashable) -> bool:
        """Take a waiting request away; False if it does not wait (it may have been started)."""
        if (number := self._number(key)) is None:
            return False
        self.waiting -= 1
        self._waiting[number] = _GONE  # its rank stays in the tree until it is the lowest there
        self._nodes[number].requests -= 1
        return True

    def resize(self, resource: str, capacity: int) -> None:
        """Change how much there is of ``resource``. What runs goes on, even over the new capacity.

        A capacity that would leave a waiting request without hope is refused with ConfigError.
        """
        check_count(capacity, f"capacity of {resource}")
        known = self._resource(resource)
        if capacity < known.capacity:
            greedy = [node for node in self._children.values() if node.resource is known and node.amount > capacity]
            for node in greedy:
                if (key := self._someone_below(node)) is not _GONE:
                    raise ConfigError(f"{resource} cannot shrink to {capacity}: {key!s} waits for {node.amount} of it")
        known.free += capacity - known.capacity
        known.capacity = capacity
        if known.parked is not None:
            self._wake(known)

    # --- The tree ---

    def _number(self, key: Hashable) -> int | None:
        """The number of a request, if it waits."""
        number = self._numbers.get(key)
        return None if number is None or self._waiting[number] is _GONE else number

    def _someone_below(self, node: _Node) -> Hashable:
        """The key of a request that waits for what this node demands, and maybe more; _GONE if there is none."""
        at = zip(self._waiting, self._nodes, strict=True)
        return next((key for key, place in at if key is not _GONE and node in place.path()), _GONE)

    def _resource(self, name: str) -> _Resource:
        if (known := self._resources.get(name)) is None:
            known = self._resources[name] = _Resource(name)
        return known

    def _node(self, demands: Mapping[str, int]) -> _Node:
        """The node at which all of ``demands`` are named."""
        node = self._root
        for name, amount in demands.items():
            if (child := self._children.get((node, name, amount))) is None:
                child = self._children[node, name, amount] = _Node(node, self._resource(name), amount)
            node = child
        return node

    def _list(self, node: _Node) -> None:
        """Tell the nodes above, as far as it is news to them, what the lowest rank at ``node`` is."""
        while (parent := node.parent) is not None and not node.parked and (first := node.first()) is not None:
            if node.listed is not None and node.listed <= first:
                return
            node.listed = first
            parent.push(first)
            node = parent

    def _strike(self, node: _Node, rank: int) -> None:
        """The lowest rank of all has left ``node``, or that is parked: list it, and those above, by what follows."""
        while (parent := node.parent) is not None:
            heap = parent.heap
            if node.listed == rank:
                node.listed = first = None if node.parked else node.first()
                if first is None:
                    heappop(heap)
                else:
                    heapreplace(heap, first)
            while heap and heap[0] == rank:  # seldom: listed by it twice, with a lower one in between
                heappop(heap)
            node = parent

    def _park(self, node: _Node) -> None:
        """Let a node wait for more of its resource, if it does not already."""
        if not node.parked:
            node.parked = True
            if node.resource.parked is None:
                node.resource.parked = []
            node.resource.parked.append(node)

    def _wake(self, resource: _Resource) -> None:
        """Put back the nodes that are parked on ``resource`` and for which it now suffices."""
        parked = resource.parked or []
        resource.parked = [node for node in parked if node.amount > resource.free] or None
        for node in parked:
            if node.amount <= resource.free:
                node.parked = False
                self._list(node)
