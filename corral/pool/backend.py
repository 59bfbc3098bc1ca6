"""SUPERVISOR SIDE. The seam between a pool and where its workers run: this machine, or the nodes of an engine.

Purpose
    The pool keeps slots, leases, placement and the respawn budget, and knows neither pids nor files nor sockets. A
    backend knows nodes: it spawns a slot's worker on one, and what it gives can be asked, killed and waited for.
Guarantees
    * A request is made at most once, and those of one trial process one after the other.
    * What was spawned tells by ``gone`` when it is lost, whether it was in use or idle, alone or with its node. A
      worker of a node that was lost stays lost: whatever starts there anew is another incarnation.
Assumptions
    Nothing above may take a pid for one of this machine, nor share files or a clock with a node. Time-outs live above:
    who waits gives up, kills, and has another one spawned.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

from corral.errors import TrialError
from corral.lean import dataclass
from corral.pool.messages import Done, Load, Loaded, Message, ProcessEnded
from corral.types import FreshMode


@dataclass(frozen=True, slots=True)
class Node:
    """A machine, or a share of one, that takes workers."""

    name: str
    incarnation: str = ""
    """Of its agent: drawn when that starts."""
    cpus: int = 1
    limit: int | None = None
    """Workers that it takes at most. None: as many as come."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A node that was lost, and why."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True)
class SlotRef:
    """One worker: its slot and pid, the node it is on, and the incarnation of the agent there that started it."""

    slot: int
    pid: int
    node: str | None = None
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A worker that is to be spawned."""

    slot: int
    load: Load
    patience: float
    """Seconds until it has to be loaded."""
    what: str
    """What loading does, in words."""
    node: str | None = None
    """The name of the node, where there are several."""


Asked = Done | Coroutine[Any, Any, Any]
"""The answer to a request, where it came at once; else what gives its value, or raises, once it has come."""


async def result_of(asked: Asked) -> Any:
    """What the answer holds."""
    return asked.value if isinstance(asked, Done) else await asked


class SlotProcess(Protocol):
    """A trial process, as its lease sees it."""

    log_start: int
    """Where the output of the trial that it serves begins in its slot's log."""
    unheard: bool
    """Whether it was gone before it had read its last request, and so did nothing for it."""
    clean: bool
    """Whether no trial has left anything behind in it."""

    @property
    def pid(self) -> int:
        """On its node."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked something."""

    def is_seen(self) -> bool:
        """Whether it is seen from here to be there, with no thread but the one that answers. No: it is to be asked."""

    @property
    def end(self) -> ProcessEnded | None:
        """How it ended."""

    @property
    def output(self) -> str:
        """The tail of what it printed for the trial that it served last, once it has ended."""

    async def request(self, message: Message, phase: str) -> Any:
        """What the answer holds. A TrialError with what ended it, where there is none. Cancelled, it is killed."""

    def ask(self, message: Message, phase: str) -> Asked:
        """The same, without a coroutine where the answer comes at once."""

    async def finish(self) -> None:
        """Let it close its trials and end."""

    async def kill(self, doom: TrialError | None = None) -> None:
        """Kill it and wait until nothing of it is left. ``doom`` becomes the reason that its requests raise."""

    async def memory(self) -> int:
        """Bytes that it and all below it hold now."""


class SlotWorker(Protocol):
    """The worker of a slot, as the pool sees it."""

    gone: anyio.Event
    """Set when it is lost, for whatever reason."""

    @property
    def ref(self) -> SlotRef:
        """Which one it is."""

    @property
    def pid(self) -> int:
        """On its node."""

    @property
    def status(self) -> int | None:
        """How it ended: exit code, or minus signal. None before, and where that is not known."""

    @property
    def fell_with_node(self) -> bool:
        """Whether it was lost because its node was."""

    async def start_process(self, fresh: FreshMode) -> SlotProcess | None:
        """Make a trial process; None if this worker was gone before it could. EnvStartError if it could not be made."""

    async def stop(self) -> None:
        """End it with all that it started: ask, then kill."""

    async def kill(self) -> None:
        """Kill it at once and wait until it is gone."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """A worker that has loaded the environments."""

    worker: SlotWorker
    loaded: Loaded
    seconds: float
    """From its spawn until then."""


class SlotBackend(Protocol):
    """Where workers run. An asynchronous context manager: leaving it ends what is left."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def nodes(self) -> Sequence[Node]:
        """Those that take workers now."""

    def scale(self, slots: int) -> None:
        """So many slots will have a worker, numbered from 0: get ready for them what can be made ahead of time."""

    @property
    def expected_nodes(self) -> int:
        """How many there will be, if nothing goes wrong; 0 where that is not known."""

    async def nodes_changed(self) -> None:
        """Wait until ``nodes`` gives something else, or will never."""

    async def spawn(self, node: Node, spec: SlotSpec) -> Spawned:
        """Start a worker and have it load. EnvStartError, or ConfigError, if it could not; then nothing of it is left.

        NodeLost if the node was lost meanwhile: nobody is to blame.
        """

    async def aclose(self) -> None:
        """Spawn nothing more, and end what is left."""

    def losses(self) -> Sequence[Loss]:
        """Nodes that were lost so far. (What was spawned there says so itself.)"""

    def refusals(self) -> Sequence[str]:
        """Why nodes that there are take no workers, a sentence each."""

    @property
    def node_patience(self) -> float:
        """Seconds that a slot without a worker waits for a node that has room, before it is given up."""

    @property
    def nursery_pid(self) -> int | None:
        """The process of this machine of which workers are forked, while there is one."""
