"""WORKER SIDE. The spare: an interpreter that has the environments loaded and waits, warm, for a lease.

It serves where a fork of a worker that has loaded them would not do. A worker that has nothing of the user's loaded
makes it by fork, to the user's code a new interpreter like any; another one starts an interpreter.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterable
from dataclasses import astuple
from socket import socket, socketpair
from typing import NoReturn

from corral.errors import ErrorRecord, describe_exit
from corral.lean import dataclass
from corral.pool.link import Link
from corral.pool.trial_process import EXIT_BROKEN, spare_main
from corral.pool.wire import HostSpec, Load, Loaded, LoadFailed, StartProcess, Ticket

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[4]); "
    "from corral.pool.trial_process import MainScript, spare_main; "
    "main = json.loads(sys.argv[5]); "
    "spare_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], MainScript(*main) if main else None)"
)


@dataclass
class Spare:
    """A spare, from its start until it is handed a ticket. Its pid is the parent's to wait for."""

    pid: int
    link: Link
    loaded: bool = False

    def answer(self) -> Loaded | LoadFailed:
        """Wait until it has loaded. If it could not, it is gone."""
        answer = self.link.receive()
        if isinstance(answer, Loaded):
            self.loaded = True
            return answer
        _, status = os.waitpid(self.pid, 0)
        if isinstance(answer, LoadFailed):
            return answer
        what = f"the interpreter {describe_exit(os.waitstatus_to_exitcode(status))}"
        return LoadFailed(ErrorRecord("ProcessEnded", what))

    def hand_over(self, ticket: Ticket) -> int:
        """Let it serve the lease of ``ticket``; its pid."""
        self.link.send(StartProcess(ticket, "spawn"))
        self.link.close()
        return self.pid


def start_spare(spec: HostSpec, load: Load) -> Spare:
    """A spare in a new interpreter."""
    ours, theirs = socketpair()
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-u", "-c", _BOOT, str(number), str(os.getpid()), spec.work_root]
        told = [json.dumps(sys.path), json.dumps(spec.main and astuple(spec.main))]
        process = subprocess.Popen([*command, *told], pass_fds=[number], stdin=subprocess.DEVNULL, process_group=0)
    process.returncode = 0  # waited for by pid, like a fork: the object need not
    return _told(Spare(process.pid, Link(ours)), load)


def fork_spare(spec: HostSpec, load: Load, own: Iterable[int]) -> Spare:
    """A spare by fork of this process, which has nothing of the user's loaded.

    ``own``: descriptors that it must not hold.
    """
    parent = os.getpid()
    ours, theirs = socketpair()
    with theirs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            ours.close()
            _become_spare(spec, theirs, parent, own)
    return _told(Spare(pid, Link(ours)), load)


def _become_spare(spec: HostSpec, control: socket, parent: int, own: Iterable[int]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        for descriptor in own:
            os.close(descriptor)
        random.seed()
        spare_main(control.detach(), parent, spec.work_root, spec.main)
    finally:
        os._exit(EXIT_BROKEN)


def _told(spare: Spare, load: Load) -> Spare:
    spare.link.send(load)
    return spare
