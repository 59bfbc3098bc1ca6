"""A look before sleeping pays where answers come at once, stops where they do not, and loses nothing either way."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import anyio
import pytest

from corral.pool import glance
from corral.pool.channel import Channel
from corral.pool.glance import MOST_SKIPPED, Glance
from corral.pool.link import Link
from corral.pool.messages import Done
from corral.pool.wire import NOWHERE


class Clock:
    """Time that goes by only where told: a step for each look at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(glance, "perf_counter", clock)
    return clock


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def wait(look: Glance, clock: Clock, seconds: float) -> None:
    """One wait that ends after ``seconds``, without a look."""
    assert look.take(NOWHERE) is None
    clock.now += seconds
    look.learn()


def test_there_is_no_look_before_the_first_short_wait(pair: tuple[socket.socket, socket.socket], clock: Clock) -> None:
    ours, theirs = pair
    look = Glance(ours)
    theirs.sendall(b"there already")
    assert look.take(NOWHERE) is None
    clock.now += 2 * glance.SHORT
    look.learn()
    assert look.take(NOWHERE) is None


def test_after_a_short_wait_what_is_there_is_taken_at_once(
    pair: tuple[socket.socket, socket.socket], clock: Clock
) -> None:
    ours, theirs = pair
    look = Glance(ours)
    wait(look, clock, glance.SHORT / 2)
    theirs.sendall(b"at once")
    assert look.take(NOWHERE) == b"at once"
    theirs.sendall(b"and again")
    assert look.take(NOWHERE) == b"and again"


@pytest.mark.parametrize(
    ("own", "peer", "looks"), [(1, 1, False), (1, 0, True), (1, NOWHERE, True), (NOWHERE, NOWHERE, True)]
)
def test_a_peer_on_the_own_processor_is_not_looked_for(
    pair: tuple[socket.socket, socket.socket],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    own: int,
    peer: int,
    looks: bool,
) -> None:
    monkeypatch.setattr(glance, "here", lambda: own)
    ours, theirs = pair
    look = Glance(ours)
    wait(look, clock, glance.SHORT / 2)
    theirs.sendall(b"x")
    assert look.take(peer) == (b"x" if looks else None)


def test_one_side_steps_aside_from_its_peer_now_and_then(
    pair: tuple[socket.socket, socket.socket], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[float] = []

    def step_aside() -> bool:
        steps.append(clock.now)
        return True

    monkeypatch.setattr(glance, "here", lambda: 1)
    monkeypatch.setattr(glance, "step_aside", step_aside)
    ours, theirs = pair
    stays, steps_aside = Glance(theirs), Glance(ours, steps_aside=True)
    wait(stays, clock, 0.0)
    wait(steps_aside, clock, 0.0)
    for _ in range(3):
        theirs.sendall(b"x")
        ours.sendall(b"x")
        assert stays.take(1) is None
        assert steps_aside.take(1) == b"x"  # it is on another one now
        theirs.sendall(b"y")
        assert steps_aside.take(1) is None  # it was moved back, and leaves it at that for a while
        assert ours.recv(1) == b"y"
        clock.now += glance.STEP_PAUSE
    assert len(steps) == 3
    for _ in range(round(glance.STEP_PAUSE / glance.HIT_EARNS)):
        theirs.sendall(b"z")
        assert steps_aside.take(0) == b"z"  # the step paid
    theirs.sendall(b"x")
    assert steps_aside.take(1) == b"x"
    assert len(steps) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="the processors of a thread are Linux's")
def test_a_step_aside_changes_nothing_for_good() -> None:
    allowed = os.sched_getaffinity(0)
    assert glance.here() in allowed
    assert glance.step_aside() == (len(allowed) > 1)
    assert os.sched_getaffinity(0) == allowed
    assert glance.here() in allowed
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert not glance.step_aside()
        assert glance.here() == min(allowed)
    finally:
        os.sched_setaffinity(0, allowed)


def test_messages_tell_where_their_sender_ran(pair: tuple[socket.socket, socket.socket]) -> None:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    ours, theirs = map(Link, pair)
    ours.send(Done(1))
    assert theirs.receive() == Done(1)
    if sys.platform == "linux":
        assert theirs._decoder.processor in allowed
    else:
        assert theirs._decoder.processor == NOWHERE


def test_the_end_of_the_stream_is_seen(pair: tuple[socket.socket, socket.socket], clock: Clock) -> None:
    ours, theirs = pair
    look = Glance(ours)
    wait(look, clock, 0.0)
    theirs.close()
    assert look.take(NOWHERE) == b""


def test_looks_in_vain_become_rare_and_come_back(pair: tuple[socket.socket, socket.socket], clock: Clock) -> None:
    ours, theirs = pair
    look = Glance(ours)
    wait(look, clock, 0.0)
    waits_between: list[int] = []
    skipped = 0
    while len(waits_between) < 9:
        clock.step = glance.GLANCE / 4
        before = clock.now
        assert look.take(NOWHERE) is None
        looked = clock.now - before > 1.5 * clock.step  # it looked at the clock more than once
        clock.step = 0.0
        look.learn()
        look._pays = True  # the wait that followed was short
        if looked:
            waits_between.append(skipped)
            skipped = 0
        else:
            skipped += 1
    assert waits_between == [0, 1, 2, 4, 8, 16, 32, MOST_SKIPPED, MOST_SKIPPED]
    look._skip = 0
    theirs.sendall(b"x")
    assert look.take(NOWHERE) == b"x"
    assert look._to_skip == MOST_SKIPPED // 2


def test_a_long_wait_ends_the_looks(pair: tuple[socket.socket, socket.socket], clock: Clock) -> None:
    ours, theirs = pair
    look = Glance(ours)
    wait(look, clock, 0.0)
    wait_that_was_long = 2 * glance.SHORT
    clock.step = glance.GLANCE
    assert look.take(NOWHERE) is None
    clock.step = 0.0
    clock.now += wait_that_was_long
    look.learn()
    theirs.sendall(b"x")
    assert look.take(NOWHERE) is None


@pytest.mark.anyio
async def test_answers_that_come_at_once_leave_others_their_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    channel, turns = Channel(ours), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        peer = Link(theirs)
        received = 0
        with anyio.fail_after(30):
            while turns < 5:
                peer.send(Done(received))
                assert await channel.receive() == Done(received)
                received += 1
        tasks.cancel_scope.cancel()
    channel.close()


@pytest.mark.anyio
async def test_a_reader_that_is_cancelled_stops_even_if_answers_come_at_once(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    channel, peer = Channel(ours), Link(theirs)
    with anyio.move_on_after(0.05) as scope:
        while True:
            peer.send(Done(None))
            await channel.receive()
    assert scope.cancelled_caught
    channel.close()
