"""A worker's lifecycle, as data: states x events -> state.

The rules, which the table below holds:

* A worker is leased only when it is ready, and by one lease at a time: it leaves READY in the step that assigns it.
* A worker can die in any state in which it has a process. Its slot then has no worker until the next START.
* After GIVE_UP the slot stays out of use: its starts failed too often in a row.
* STOP is final. A stopping worker is never leased, restarted or given up.

An event that the table does not hold for a state raises ProtocolError and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum

from corral.errors import ProtocolError


class WorkerState(StrEnum):
    """Where the worker of a slot stands."""

    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def can_lease(self) -> bool:
        """Whether a lease may take it now."""
        return self is WorkerState.READY

    @property
    def is_over(self) -> bool:
        """Whether no worker will ever serve here again."""
        return self in (WorkerState.FAILED, WorkerState.STOPPED)


class WorkerEvent(StrEnum):
    """What can happen to it."""

    START = "start"
    LOADED = "loaded"
    LEASE = "lease"
    RETURN = "return"
    DIED = "died"
    GIVE_UP = "give up"
    STOP = "stop"


_S, _E = WorkerState, WorkerEvent

TABLE: dict[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (_S.ABSENT, _E.START): _S.STARTING,
    (_S.ABSENT, _E.GIVE_UP): _S.FAILED,
    (_S.ABSENT, _E.STOP): _S.STOPPED,
    (_S.STARTING, _E.LOADED): _S.READY,
    (_S.STARTING, _E.DIED): _S.ABSENT,
    (_S.STARTING, _E.STOP): _S.STOPPED,
    (_S.READY, _E.LEASE): _S.BUSY,
    (_S.READY, _E.DIED): _S.ABSENT,
    (_S.READY, _E.STOP): _S.STOPPED,
    (_S.BUSY, _E.RETURN): _S.READY,
    (_S.BUSY, _E.DIED): _S.ABSENT,
    (_S.BUSY, _E.STOP): _S.STOPPED,
    (_S.FAILED, _E.STOP): _S.STOPPED,
}


def next_state(state: WorkerState, event: WorkerEvent) -> WorkerState:
    """The state after ``event``; ProtocolError if it cannot happen in ``state``."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise ProtocolError(f"a worker that is {state} cannot have the event {event!r}") from None


def diagram() -> str:
    """The table as a Mermaid state diagram, for the documentation."""
    lines = [f"    {before} --> {after}: {event}" for (before, event), after in TABLE.items()]
    return "\n".join(["stateDiagram-v2", "    [*] --> absent", *lines])
