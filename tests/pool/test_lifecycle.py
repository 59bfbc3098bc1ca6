"""The worker's lifecycle: the whole table, walked."""

from __future__ import annotations

from itertools import product

import pytest

from corral.errors import ProtocolError
from corral.pool.lifecycle import TABLE, WorkerEvent, WorkerState, diagram, next_state
from corral.pool.slots import Slot

S, E = WorkerState, WorkerEvent

EXPECTED: dict[WorkerState, dict[WorkerEvent, WorkerState]] = {
    S.ABSENT: {E.START: S.STARTING, E.GIVE_UP: S.FAILED, E.STOP: S.STOPPED},
    S.STARTING: {E.LOADED: S.READY, E.DIED: S.ABSENT, E.STOP: S.STOPPED},
    S.READY: {E.LEASE: S.BUSY, E.DIED: S.ABSENT, E.STOP: S.STOPPED},
    S.BUSY: {E.RETURN: S.READY, E.DIED: S.ABSENT, E.STOP: S.STOPPED},
    S.FAILED: {E.STOP: S.STOPPED},
    S.STOPPED: {},
}
"""The lifecycle once more, as rows: what the table must say."""

PAIRS = list(product(WorkerState, WorkerEvent))
ILLEGAL = [(state, event) for state, event in PAIRS if event not in EXPECTED[state]]


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda value: value.value.replace(" ", "_"))
def test_every_pair_leads_where_it_should_or_is_refused(state: WorkerState, event: WorkerEvent) -> None:
    if event in EXPECTED[state]:
        assert next_state(state, event) is EXPECTED[state][event]
    else:
        with pytest.raises(ProtocolError, match=f"{state}.*{event}"):
            next_state(state, event)


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=lambda value: value.value.replace(" ", "_"))
@pytest.mark.parametrize("was_ready", [False, True])
def test_an_illegal_event_changes_nothing(state: WorkerState, event: WorkerEvent, was_ready: bool) -> None:
    slot = Slot(0, state)
    if was_ready:
        slot.ready.set()
    ready = slot.ready
    with pytest.raises(ProtocolError):
        slot.advance(event)
    assert slot.state is state
    assert slot.ready is ready
    assert slot.ready.is_set() is was_ready


def test_only_a_ready_worker_can_be_leased() -> None:
    assert [state for state in S if state.can_lease] == [S.READY]
    assert {state for state in S if E.LEASE in EXPECTED[state]} == {S.READY}


def test_what_is_over_never_serves_again() -> None:
    """From a state that is over, no chain of events leads to one that can be leased."""
    for start in (state for state in S if state.is_over):
        reached = {start}
        while more := {TABLE[key] for key in TABLE if key[0] in reached} - reached:
            reached |= more
        assert not any(state.can_lease for state in reached)
    assert [state for state in S if state.is_over] == [S.FAILED, S.STOPPED]


def test_every_state_can_be_stopped_and_stopping_is_final() -> None:
    assert all(next_state(state, E.STOP) is S.STOPPED for state in S if state is not S.STOPPED)
    assert not [key for key in TABLE if key[0] is S.STOPPED]


def test_ready_is_set_exactly_while_there_is_a_worker_or_never_will_be() -> None:
    slot = Slot(0)
    seen = []
    for event in (E.START, E.LOADED, E.LEASE, E.DIED, E.START, E.LOADED, E.DIED, E.GIVE_UP, E.STOP):
        slot.advance(event)
        seen.append(slot.ready.is_set())
    assert seen == [False, True, True, False, False, True, False, True, True]


def test_the_diagram_has_every_row_of_the_table_once() -> None:
    lines = [line.strip() for line in diagram().splitlines()]
    assert lines[:2] == ["stateDiagram-v2", "[*] --> absent"]
    rows = [f"{state} --> {after}: {event}" for state, row in EXPECTED.items() for event, after in row.items()]
    assert sorted(lines[2:]) == sorted(rows)
