"""The pool's private socket: who is let in, who is not, and where it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from corral.errors import ProtocolError, SerializationError
from corral.pool import channel, glance, guards
from corral.pool.channel import Channel, Listener, Visitor, open_listener
from corral.pool.hello import Ticket
from corral.pool.link import Link, WatchedLink
from corral.pool.messages import Done, Finish, Message, Perform
from corral.pool.wire import LARGE, NOWHERE, encode
from corral.threads import call_blocking
from corral.types import Action

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def paired() -> AsyncIterator[tuple[Channel, Link]]:
    """Both ends of a connection in one process."""
    ours, theirs = socket.socketpair()
    ends = Channel(ours), Link(theirs)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def connect(ticket: Ticket) -> socket.socket:
    """A stranger: knows the address and nothing else."""
    family = socket.AF_UNIX if isinstance(ticket.address, str) else socket.AF_INET
    sock = socket.socket(family)
    sock.settimeout(5)
    try:
        sock.connect(ticket.address)
    except OSError:
        sock.close()
        raise
    return sock


async def let_in(listener: Listener, visitor: Visitor) -> None:
    """The right ticket opens the door, and a message passes each way."""
    link = await call_blocking(Link.connect, visitor.ticket)
    try:
        with anyio.fail_after(5):
            await visitor.arrived.wait()
            assert visitor.channel is not None
            assert visitor.pid == os.getpid()
            await visitor.channel.send(Finish())
            assert await call_blocking(link.receive) == Finish()
            link.send(Done(3))
            assert await visitor.channel.receive() == Done(3)
    finally:
        link.close()
        if visitor.channel is not None:
            visitor.channel.close()


async def test_who_has_a_ticket_is_let_in(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        await let_in(listener, listener.expect())


def hellos(ticket: Ticket) -> dict[str, bytes]:
    """What a stranger may say."""
    good = ticket.hello(1)
    return {
        "wrong_secret": Ticket(ticket.address, ticket.number, b"x" * 32).hello(1),
        "wrong_number": Ticket(ticket.address, ticket.number + 1, ticket.secret).hello(1),
        "wrong_magic": b"GET / HT" + good[8:],
        "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
        "pickle": b"cos\nsystem\n(S'touch /tmp/harm'\ntR." * 2,
    }


@pytest.mark.parametrize("kind", ["wrong_secret", "wrong_number", "wrong_magic", "text", "pickle"])
async def test_a_stranger_is_turned_away_and_does_no_harm(tmp_path: Path, kind: str) -> None:
    async with open_listener(tmp_path) as listener:
        visitor = listener.expect()
        with connect(visitor.ticket) as stranger:
            stranger.sendall(hellos(visitor.ticket)[kind])
            assert await call_blocking(closed_by_other, stranger), "the stranger was let in, or left waiting"
            assert not visitor.arrived.is_set()
            await let_in(listener, visitor)


def closed_by_other(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_half_a_hello_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HELLO_PATIENCE", 0.2)
    async with open_listener(tmp_path) as listener:
        visitor = listener.expect()
        with connect(visitor.ticket) as slow, connect(visitor.ticket) as silent, connect(visitor.ticket) as gone:
            slow.sendall(visitor.ticket.hello(1)[:-1])
            gone.sendall(b"CORR")
            gone.close()
            await let_in(listener, visitor)
            assert await call_blocking(closed_by_other, slow)
            assert await call_blocking(closed_by_other, silent)


async def test_a_hello_in_parts_is_a_hello(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        visitor = listener.expect()
        with connect(visitor.ticket) as sock:
            for byte in visitor.ticket.hello(77):
                sock.sendall(bytes([byte]))
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(5):
                await visitor.arrived.wait()
            assert visitor.pid == 77
            assert visitor.channel is not None
            visitor.channel.close()


async def test_a_ticket_is_good_for_one_connection(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        visitor = listener.expect()
        await let_in(listener, visitor)
        with connect(visitor.ticket) as second:
            second.sendall(visitor.ticket.hello(1))
            assert await call_blocking(closed_by_other, second)


async def test_a_forgotten_ticket_is_void(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        visitor = listener.expect()
        listener.forget(visitor)
        with connect(visitor.ticket) as sock:
            sock.sendall(visitor.ticket.hello(1))
            assert await call_blocking(closed_by_other, sock)


async def test_tickets_differ_and_are_no_guess(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        tickets = [listener.expect().ticket for _ in range(100)]
    assert len({ticket.number for ticket in tickets}) == 100
    assert len({ticket.secret for ticket in tickets}) == 100
    assert {len(ticket.secret) for ticket in tickets} == {32}


async def test_a_path_too_long_for_a_socket_falls_back_to_loopback(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60) / ("y" * 60)
    folder.mkdir(parents=True)
    async with open_listener(folder) as listener:
        visitor = listener.expect()
        assert isinstance(visitor.ticket.address, tuple)
        assert visitor.ticket.address[0] == "127.0.0.1"
        await let_in(listener, visitor)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets are not to be had")
async def test_the_socket_is_a_file_where_the_path_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a short path, wherever temporary folders are
    async with open_listener(Path()) as listener:
        address = listener.expect().ticket.address
        assert isinstance(address, str)
        assert stat.S_ISSOCK(os.stat(address).st_mode)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Unix sockets are not to be had")
async def test_a_folder_that_was_removed_is_made_anew_for_the_next_visitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("private")
    folder.mkdir(mode=0o700)
    async with open_listener(folder) as listener:
        await let_in(listener, listener.expect())
        shutil.rmtree(folder)
        visitor = listener.expect()
        assert visitor.ticket.address == str(folder / "pool.sock")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        await let_in(listener, visitor)


async def test_a_folder_that_can_hold_no_socket_falls_back_to_loopback(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    async with open_listener(folder) as listener:
        shutil.rmtree(folder)
        folder.touch()  # in the way, as a full disk would be
        visitor = listener.expect()
        assert isinstance(visitor.ticket.address, tuple)
        await let_in(listener, visitor)


async def test_closing_ends_connections_that_are_still_at_the_door(tmp_path: Path) -> None:
    async with open_listener(tmp_path) as listener:
        ticket = listener.expect().ticket
        stranger = connect(ticket)
        await anyio.wait_all_tasks_blocked()
    assert await call_blocking(closed_by_other, stranger)
    stranger.close()
    with pytest.raises(OSError, match=r"refused|No such file"):
        connect(ticket)


# ---- the channel itself ----


async def test_large_messages_pass_both_ways_at_once() -> None:
    """Larger than any socket buffer, so each side must read while it waits to write."""
    array = np.arange(500_000)
    async with paired() as (ours, theirs):

        def echo() -> None:
            message = theirs.receive()
            assert isinstance(message, Perform)
            theirs.send(Done(message.arguments[0]))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call_blocking, echo)
                await ours.send(Perform("t", Action.EXECUTE, (array,)))
                answer = await ours.receive()
    assert isinstance(answer, Done)
    assert np.array_equal(answer.value, array)


async def test_what_cannot_be_sent_leaves_the_stream_whole() -> None:
    async with paired() as (ours, theirs):
        with pytest.raises(SerializationError):
            await ours.send(Done(lambda: 1))
        await ours.send(Done("next"))
        assert await call_blocking(theirs.receive) == Done("next")


async def test_an_answer_that_is_there_is_given_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "SHORT", 10.0)  # on a busy machine an answer may take its time
    monkeypatch.setattr(channel, "TURN", 10.0)
    async with paired() as (ours, theirs):
        theirs.send(Done("first"))
        assert await ours.receive() == Done("first")  # at once: the next is looked for
        ours._decoder.processor = NOWHERE
        theirs.send(Done("second"))
        assert ours.ask(Finish()) == Done("second")
        assert theirs.receive() == Finish()


async def test_an_answer_that_is_not_there_is_waited_for() -> None:
    async with paired() as (ours, theirs):
        for number in range(3):
            assert ours.ask(Done(number)) is None
            assert theirs.receive() == Done(number)
            theirs.send(Done(-number))
            with anyio.fail_after(5):
                assert await ours.receive() == Done(-number)


async def test_a_large_question_is_sent_to_its_end_while_its_answer_is_waited_for() -> None:
    array = np.arange(500_000)
    async with paired() as (ours, theirs):

        def echo() -> None:
            message = theirs.receive()
            assert isinstance(message, Done)
            theirs.send(message)

        with anyio.fail_after(10):
            assert ours.ask(Done(array)) is None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call_blocking, echo)
                answer = await ours.receive()
    assert isinstance(answer, Done)
    assert np.array_equal(answer.value, array)


@pytest.mark.parametrize("size", [1, 500_000])
@pytest.mark.parametrize("read", [False, True])
async def test_whether_the_last_message_was_read_is_known_when_the_other_end_is_gone(size: int, read: bool) -> None:
    async with paired() as (ours, theirs):
        message = Done("x" * size)
        if read:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call_blocking, theirs.receive)
                await ours.send(message)
        else:
            assert ours.ask(message) is None
        theirs.close()
        with anyio.fail_after(5), pytest.raises(anyio.EndOfStream):
            await ours.receive()
        assert ours.unread is not read


async def test_what_is_sent_to_one_that_is_gone_is_not_read() -> None:
    async with paired() as (ours, theirs):
        theirs.close()
        assert ours.ask(Finish()) is None
        with pytest.raises(anyio.EndOfStream):
            await ours.receive()
        assert ours.unread


async def test_a_question_that_cannot_be_sent_leaves_the_stream_whole() -> None:
    async with paired() as (ours, theirs):
        with pytest.raises(SerializationError):
            ours.ask(Done(lambda: 1))
        assert ours.ask(Done("next")) is None
        assert await call_blocking(theirs.receive) == Done("next")


async def test_a_question_to_nobody_meets_the_end_of_the_stream() -> None:
    async with paired() as (ours, theirs):
        theirs.send(Done(1))
        assert await ours.receive() == Done(1)
        theirs.close()
        assert ours.ask(Done(2)) is None
        with anyio.fail_after(5), pytest.raises(anyio.EndOfStream):
            await ours.receive()


@pytest.mark.parametrize("part", [0, 5])
async def test_the_other_end_gone_is_an_end_of_stream(part: int) -> None:
    """Also in the middle of a frame."""
    ours, theirs = socket.socketpair()
    ends = Channel(ours)
    theirs.sendall(b"\x00" * part)
    theirs.close()
    with anyio.fail_after(5), pytest.raises(anyio.EndOfStream):
        await ends.receive()
    with anyio.fail_after(5), pytest.raises(anyio.EndOfStream):
        await ends.send(Done(b"x" * 2**22))
    ends.close()


async def test_garbage_is_a_protocol_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        end = Channel(ours)
        theirs.sendall(b"printf: this is no message\n")
        with anyio.fail_after(5), pytest.raises(ProtocolError):
            await end.receive()
        end.close()


def test_a_worker_reads_none_when_the_supervisor_is_gone() -> None:
    ours, theirs = socket.socketpair()
    link = Link(theirs)
    ours.close()
    assert link.receive() is None
    with pytest.raises(OSError, match="pipe"):
        link.send(Done(1))
    link.close()


@pytest.mark.skipif(not hasattr(socket, "MSG_NOSIGNAL"), reason="there is no such flag")
def test_with_sigpipe_at_its_default_a_worker_is_told_that_the_supervisor_is_gone() -> None:
    """It still has to end what it started."""
    done = subprocess.run([sys.executable, "-c", PIPED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


PIPED = """
import signal, socket
from corral.pool.link import Link
from corral.pool.messages import Done
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ours, theirs = socket.socketpair()
ours.close()
try:
    Link(theirs).send(Done(1))
except BrokenPipeError:
    print("told")
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="elsewhere an end-of-file has to do")
@pytest.mark.parametrize("message", [Done("x" * 100), Done(np.zeros(LARGE // 8))], ids=["small", "large"])
def test_a_watched_link_ends_with_the_supervisor_whoever_holds_its_other_end(message: Done) -> None:
    """What was sent before is read; half a message is not waited for."""
    ours, theirs = socket.socketpair()
    supervisor = subprocess.Popen(["sleep", "300"])
    lifeline = guards.lifeline(supervisor.pid)
    link = WatchedLink(theirs, lifeline)
    with ours:
        ours.sendall(b"".join(encode(Done(1))))
        assert link.receive() == Done(1), "the supervisor is there"
        half = b"".join(encode(message))
        ours.sendall(b"".join(encode(Done(2))) + half[: len(half) // 2])
        supervisor.kill()
        supervisor.wait()
        assert link.receive() == Done(2)
        assert link.receive() is None
    link.close()
    os.close(lifeline)


def test_messages_are_a_closed_union() -> None:
    assert Done in Message.__args__
