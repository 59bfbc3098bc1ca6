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
    Waiting requests form a tree. Each edge is one demand, an amount of a resource, the widely shared resources first
    and the tasks last; a request waits at the node where its demands are all named. A node that cannot be entered,
    since its resource is short, is *parked* on that resource with all that waits below it: ten thousand tasks that
    wait for one free trial are one parked node. Elsewhere each node is listed in its parent's heap under its best
    request, so the best request that is not parked is found by walking down. A release puts back only the nodes
    that are parked on what was released, and of these only those that it suffices for. Requests mostly come in the
    order in which they are to start, so those of a node stand in a line: with a million of them, what an admission
    costs is the memory that it has to look at.

Assumption: calls come from one thread. The caller carries the decisions out, and calls ``admit()`` after each change.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count

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

_BREADTH = {GLOBAL: 0, GATE: 1, SLOT: 2, CONFIGURE: 3, "model": 4, "task": 6}
"""How widely a kind of resource is shared: only the speed depends on it. A kind that is not named here is a 5."""


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
    """How much of which resource. All of a resource's capacity means: with nothing beside it."""
    order: int = 0
    """Lower starts first; equals start in the order they were added."""


_Entry = tuple[int, int, int, "Request | _Node"]
"""A place in a line or a heap: the order and the sequence number of a request, a tie-breaker, and who stands there."""


_NO_ENTRIES: list[_Entry] = []
_NO_CHILDREN: dict[tuple[str, int], _Node] = {}
"""Of all nodes without children, which nearly all are: what they do not have need not be looked at in memory."""


@dataclass(eq=False, slots=True)
class _Node:
    """What waits for one more demand than its parent."""

    parent: _Node | None = None
    resource: str = ""
    amount: int = 0
    line: list[_Entry] = field(default_factory=list)
    """The requests that wait here, in order; some of them may have been withdrawn."""
    gone: int = 0
    """How many entries at the start of the line have left it."""
    heap: list[_Entry] = field(default_factory=lambda: _NO_ENTRIES)
    """The children that something waits below, by their best request; entries may have been replaced since."""
    children: dict[tuple[str, int], _Node] = field(default_factory=lambda: _NO_CHILDREN)
    entry: _Entry | None = None
    """Its entry in the parent's heap; None while it is parked, or nothing waits below it."""
    parked: bool = False

    def child(self, demand: tuple[str, int]) -> _Node:
        """The node for one more demand."""
        if self.children is _NO_CHILDREN:
            self.children, self.heap = {}, []
        if demand not in self.children:
            self.children[demand] = _Node(self, *demand)
        return self.children[demand]

    def line_up(self, entry: _Entry) -> None:
        """Let a request wait here."""
        if not self.line or self.line[-1] < entry:
            self.line.append(entry)
        else:  # seldom: one that was put off, or whose demands have changed
            insort(self.line, entry, lo=self.gone)

    def leave_line(self) -> None:
        """The first in the line goes."""
        self.gone += 1
        if self.gone * 2 > len(self.line):  # every so often, so that each of the others is moved but once or twice
            del self.line[: self.gone]
            self.gone = 0

    def best(self) -> _Entry | None:
        """Who comes first here: a request of the line, or a child."""
        first = self.line[self.gone] if self.gone < len(self.line) else None
        if self.heap and (first is None or self.heap[0] < first):
            return self.heap[0]
        return first


class Planner:
    """Decides which requests start. A resource without a capacity is counted but not limited."""

    def __init__(self, capacities: Mapping[str, int]) -> None:
        self._capacity = {name: check_count(amount, f"capacity of {name}") for name, amount in capacities.items()}
        self._in_use: dict[str, int] = {}
        self._root = _Node()
        self._waiting: dict[Hashable, _Entry] = {}
        self._withdrawn: set[int] = set()
        """The sequence numbers of requests that were withdrawn and still stand in a line."""
        self._running: dict[Hashable, Mapping[str, int]] = {}
        self._parked: dict[str, list[_Node]] = {}
        self._numbers = count()
        self.evaluations = 0
        """How many times a node or a request was looked at: what the cost per admission is measured by."""

    # --- What there is ---

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many requests were started and not released as a whole."""
        return len(self._running)

    def in_use(self, resource: str) -> int:
        """How much of ``resource`` is taken."""
        return self._in_use.get(resource, 0)

    def blocked_on(self, key: Hashable) -> str | None:
        """The resource that keeps a waiting request from starting; None if nothing does, or it does not wait."""
        entry = self._waiting.get(key)
        if entry is None or not isinstance(request := entry[-1], Request):
            return None
        return next((name for name, amount in _path(request.demands) if not self._suffices(name, amount)), None)

    def blocked(self) -> dict[str, int]:
        """How many requests wait for each resource, as of the last ``admit()``. Its cost grows with their number."""
        counts = {name: sum(_below(node) for node in nodes if node.parked) for name, nodes in self._parked.items()}
        return {name: number for name, number in counts.items() if number}

    # --- What happens ---

    def add(self, request: Request) -> None:
        """Let ``request`` wait. One that could never start is refused with ConfigError."""
        if request.key in self._waiting or request.key in self._running:
            raise ProtocolError(f"the planner already knows {request.key!s}")
        for resource, amount in request.demands.items():
            check_count(amount, f"demand of {request.key!s} for {resource}")
            if amount > self._capacity.get(resource, amount):
                raise ConfigError(
                    f"{request.key!s} needs {amount} of {resource}, and there are never more than "
                    f"{self._capacity[resource]}"
                )
        node = self._root
        for demand in _path(request.demands):
            node = node.child(demand)
        entry = (request.order, next(self._numbers), 0, request)
        self._waiting[request.key] = entry
        node.line_up(entry)
        self._list(node)

    def admit(self) -> list[Request]:
        """Start every request that can start, in order. Calling it again without a change starts nothing."""
        started = []
        while (request := self._start_best()) is not None:
            started.append(request)
        return started

    def release(self, key: Hashable, resources: Iterable[str] | None = None) -> None:
        """Give back what ``key`` holds: all of it, which ends it, or some resources early.

        Releasing what is not held is an error of the caller and changes nothing.
        """
        held = self._running.get(key)
        if held is None:
            raise ProtocolError(f"{key!s} holds nothing that could be released")
        if resources is None:
            del self._running[key]
            given = held
        else:
            names = list(resources)
            if extra := Counter(names) - Counter(held.keys()):
                raise ProtocolError(f"{key!s} does not hold {', '.join(extra)}")
            given = {name: held[name] for name in names}
            self._running[key] = {name: amount for name, amount in held.items() if name not in given}
        for name, amount in given.items():
            self._in_use[name] -= amount
            self._wake(name)

    def withdraw(self, key: Hashable) -> bool:
        """Take a waiting request away; False if it does not wait (it may have been started)."""
        entry = self._waiting.pop(key, None)
        if entry is not None:
            self._withdrawn.add(entry[1])  # it stays in its line until it is the first there
        return entry is not None

    def resize(self, resource: str, capacity: int) -> None:
        """Change how much there is of ``resource``. What runs goes on, even over the new capacity.

        A capacity that would leave a waiting request without hope is refused with ConfigError.
        """
        check_count(capacity, f"capacity of {resource}")
        if capacity < self._capacity.get(resource, capacity + 1):
            for _, _, _, request in self._waiting.values():
                if isinstance(request, Request) and request.demands.get(resource, 0) > capacity:
                    raise ConfigError(
                        f"{resource} cannot shrink to {capacity}: {request.key!s} waits for "
                        f"{request.demands[resource]} of it"
                    )
        self._capacity[resource] = capacity
        self._wake(resource)

    # --- The tree ---

    def _suffices(self, resource: str, amount: int) -> bool:
        capacity = self._capacity.get(resource)
        return capacity is None or self._in_use.get(resource, 0) + amount <= capacity

    def _start_best(self) -> Request | None:
        """Start the best request that can start: walk down along the best entries, park what cannot be entered."""
        path = [self._root]
        while True:
            node = path[-1]
            best = self._best(node)
            if node.entry is not None and (best is None or best[:2] != node.entry[:2]):
                # Its best request was withdrawn: it is listed too early.
                self._relist(path)
                path = [self._root]
                continue
            if best is None:
                return None  # Only the root is listed nowhere.
            self.evaluations += 1
            who = best[-1]
            if isinstance(who, Request):
                node.leave_line()
                self._take(who)
                self._relist(path)
                return who
            if self._suffices(who.resource, who.amount):
                path.append(who)
                continue
            heappop(node.heap)
            who.entry, who.parked = None, True
            self._parked.setdefault(who.resource, []).append(who)
            self._relist(path)
            path = [self._root]

    def _take(self, request: Request) -> None:
        del self._waiting[request.key]
        self._running[request.key] = request.demands
        for name, amount in request.demands.items():
            self._in_use[name] = self._in_use.get(name, 0) + amount

    def _best(self, node: _Node) -> _Entry | None:
        """Who comes first at ``node``. What stands before it and no longer counts is dropped."""
        heap = node.heap
        while heap and heap[0][-1].entry is not heap[0]:  # type: ignore[union-attr]  # there are only nodes in heaps
            heappop(heap)
        if self._withdrawn:
            while node.gone < len(node.line) and (number := node.line[node.gone][1]) in self._withdrawn:
                self._withdrawn.discard(number)
                node.leave_line()
        return node.best()

    def _relist(self, path: list[_Node]) -> None:
        """The last node of ``path`` lost its best entry: list each node of it under what is now its best.

        Each node of the path is on top of its parent's heap.
        """
        for node in reversed(path):
            best = self._best(node)
            if (parent := node.parent) is None:
                return
            if best is not None:
                node.entry = (*best[:2], next(self._numbers), node)
                heapreplace(parent.heap, node.entry)
            else:
                node.entry = None
                heappop(parent.heap)

    def _list(self, node: _Node) -> None:
        """Tell the nodes above, as far as it is news to them, that ``node`` has something to start."""
        while (parent := node.parent) is not None and not node.parked and (best := node.best()) is not None:
            if node.entry is not None and node.entry[:2] <= best[:2]:
                return
            node.entry = (*best[:2], next(self._numbers), node)
            heappush(parent.heap, node.entry)
            node = parent

    def _wake(self, resource: str) -> None:
        """Put back the nodes that are parked on ``resource`` and for which it now suffices."""
        parked = self._parked.get(resource)
        if not parked:
            return
        self._parked[resource] = [node for node in parked if not self._suffices(resource, node.amount)]
        for node in parked:
            if self._suffices(resource, node.amount):
                node.parked = False
                self._list(node)


def _below(node: _Node) -> int:
    """How many requests wait at a node and below it. One that was withdrawn counts until it comes to the top."""
    return len(node.line) - node.gone + sum(_below(child) for child in node.children.values() if not child.parked)


def _path(demands: Mapping[str, int]) -> list[tuple[str, int]]:
    """The demands from the most widely shared resource to the least."""
    return sorted(demands.items(), key=lambda demand: (_BREADTH.get(demand[0].partition(":")[0], 5), demand))
