"""WORKER SIDE. A spare: an interpreter of a trial process's own, which loads the environments by itself.

It serves where a fork of a worker that has loaded them would not do. A worker that has nothing of the user's loaded
makes it by fork, to the user's code a new interpreter like any; another one starts an interpreter. It is told what to
load and the ticket of its lease when these are known, and needs nobody's answer in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from socket import socket, socketpair
from typing import NoReturn

from corral.environment import Environment
from corral.errors import ErrorRecord, describe_exit
from corral.pool import guards, rehearsal
from corral.pool.link import Link
from corral.pool.main_script import MainScript, places_of_modules
from corral.pool.messages import HostSpec, Load, Loaded, LoadFailed, StartProcess
from corral.pool.trial_process import EXIT_BROKEN, TrialServer, load_failed, run, try_main
from corral.runtime import describe, load

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[4]); "
    "from corral.pool.spare import MainScript, spare_main; "
    "main = json.loads(''.join(sys.argv[5:])); "
    "main = main and MainScript(main[0], main[1], tuple(main[2])); "
    "spare_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], main)"
)
LONGEST = 100_000
"""Characters of one argument: Linux takes no more than 128 KiB."""


class Spare:
    """Its worker's side of one. Its pid is the worker's to wait for."""

    def __init__(self, pid: int, control: socket, load: Load) -> None:
        self.pid = pid
        self._control = control
        self._link = Link(control)
        self._loaded = False
        with contextlib.suppress(OSError):  # gone at once: its end will tell
            self._link.send(load)

    def fileno(self) -> int:
        """Readable when it has loaded, or failed to."""
        return self._control.fileno()

    def answer(self) -> Loaded | LoadFailed | None:
        """Wait until it has loaded, or failed to. None if it ended without a word."""
        answer = self._link.receive()
        assert answer is None or isinstance(answer, Loaded | LoadFailed)
        self._loaded = isinstance(answer, Loaded)
        return answer

    def hand_over(self, order: StartProcess) -> None:
        """Let it serve the lease of a ticket, as soon as it has loaded. OSError if it is gone."""
        self._link.send(order)

    def failure(self, status: int) -> ErrorRecord | None:
        """Why it could not load, after it has ended with ``status``; None if it could."""
        self._control.setblocking(False)  # what it started may hold its end
        answer = None if self._loaded else self.answer()
        if self._loaded:
            return None
        if isinstance(answer, LoadFailed):
            return answer.record
        return ended_while_loading(status)

    def close(self) -> None:
        """Let go of it."""
        self._control.close()


def ended_while_loading(status: int) -> ErrorRecord:
    """What there is to say of a spare that ended without a word."""
    return ErrorRecord("ProcessEnded", f"the interpreter {describe_exit(status)}")


def start_spare(spec: HostSpec, load: Load) -> Spare:
    """A spare in a new interpreter."""
    import subprocess  # most workers fork

    ours, theirs = socketpair()
    with theirs:
        number = theirs.fileno()
        command = [sys.executable, "-u", "-c", _BOOT, str(number), str(os.getpid()), spec.work_root]
        # As JSON, for the script may have put into sys.argv what no command line can hold.
        main = json.dumps(spec.main and astuple(spec.main))
        parts = [main[at : at + LONGEST] for at in range(0, len(main), LONGEST)]
        told = [*command, json.dumps(places_of_modules()), *parts]
        process = subprocess.Popen(told, pass_fds=[number], stdin=subprocess.DEVNULL, process_group=0)
    process.returncode = 0  # waited for by pid, like a fork: the object need not
    return Spare(process.pid, ours, load)


def fork_spare(spec: HostSpec, load: Load, held: Iterable[int]) -> Spare:
    """A spare by fork of this process, which has nothing of the user's loaded.

    ``held``: descriptors that it must not hold.
    """
    parent = os.getpid()
    ours, theirs = socketpair()
    with theirs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: threads; there are none
            pid = os.fork()
        if pid == 0:
            ours.close()
            _become_spare(spec, theirs, parent, held)
    return Spare(pid, ours, load)


def _become_spare(spec: HostSpec, control: socket, parent: int, held: Iterable[int]) -> NoReturn:
    try:
        os.setpgid(0, 0)
        for descriptor in held:
            os.close(descriptor)
        random.seed()
        spare_main(control.detach(), parent, spec.work_root, spec.main)
    finally:
        os._exit(EXIT_BROKEN)


def spare_main(descriptor: int, parent: int, work_root: str, main: MainScript | None) -> NoReturn:
    """The spare itself: import the main script, load the environments, then serve the lease of the ticket."""
    guards.die_with_parent(parent)
    guards.ignore_terminal_signals()
    guards.reopen_streams()
    failed = try_main(main)
    control = Link(socket(fileno=descriptor))
    match control.receive():
        case Load(reused=reused) as request if failed is None:
            environments = _load(control, request)
        case Load() if failed is not None:
            control.send(failed)
            os._exit(1)
        case _:
            os._exit(EXIT_BROKEN)
    match control.receive():
        case StartProcess(ticket, _, ahead):
            control.close()
            link = Link.connect(ticket)
            if ahead:
                rehearsal.rehearse(Path(work_root), link)
            run(link, TrialServer(environments, Path(work_root), reused=reused))
        case _:
            os._exit(0)


def _load(control: Link, request: Load) -> Mapping[str, Environment]:
    try:
        environments: Mapping[str, Environment] = load(pickle.loads(request.builder))
        control.send(Loaded({} if request.described else describe(environments), "spawn"))
    except BaseException as error:
        control.send(load_failed(error))
        os._exit(1)
    return environments
