"""CHILD SIDE: every fault that user code can have, at every point where user code runs.

A fault is armed from outside, by a file that names its phase and its kind; the first process that comes to that phase
takes the file away and commits the fault. So it strikes once, and where it is meant to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from corral import Environment, TaskDefinition, build_environments, tool

FOLDER = "CORRAL_TEST_FAULTS"
"""The variable that names the folder of the armed fault."""


class Unbuildable(Exception):
    """Needs more than it passes on: it cannot be made again from its arguments."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


def _raise() -> NoReturn:
    raise RuntimeError("no good")


def _raise_unbuildable() -> NoReturn:
    raise Unbuildable("here", "no good")


def _exit() -> NoReturn:
    sys.exit(3)


def _exit_hard() -> NoReturn:
    os._exit(9)


def _crash() -> None:
    ctypes.string_at(0)


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _hang() -> NoReturn:
    while True:
        time.sleep(60)


def _hang_with_the_interpreter() -> None:
    re.match("(a+)+$", "a" * 60 + "b")


def _fill_memory() -> NoReturn:
    held = []
    for _ in range(10):
        held.append(bytearray(b"x" * 50_000_000))
    (Path(os.environ[FOLDER]) / "filled").touch()
    while True:
        time.sleep(60)


def _print_garbage() -> None:
    for descriptor in (1, 2):
        os.write(descriptor, bytes(range(256)) * 64)


def _print_much() -> None:
    for _ in range(160):
        os.write(2, b"x" * 2**16)


def _give_a_lock() -> Any:
    return threading.Lock()


def _close_descriptors() -> None:
    os.closerange(3, 65536)
    time.sleep(60)


def _start_a_grandchild() -> None:
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    with (Path(os.environ[FOLDER]) / "grandchildren").open("a") as file:
        file.write(f"{child.pid}\n")
    child.returncode = 0  # nobody shall complain that it still runs


FAULTS: dict[str, Callable[[], Any]] = {
    "raises": _raise,
    "raises what cannot be rebuilt": _raise_unbuildable,
    "sys.exit(3)": _exit,
    "os._exit(9)": _exit_hard,
    "SIGSEGV": _crash,
    "SIGKILL": _kill_itself,
    "SIGSTOP": _stop_itself,
    "hangs in Python": _hang,
    "hangs and holds the GIL": _hang_with_the_interpreter,
    "fills the memory": _fill_memory,
    "garbage on descriptors 1 and 2": _print_garbage,
    "10 MB on standard error": _print_much,
    "a result that cannot be sent": _give_a_lock,
    "closes all descriptors": _close_descriptors,
    "leaves a grandchild": _start_a_grandchild,
}


def strike(phase: str) -> Any:
    """Commit the fault that is armed for ``phase``, if there is one."""
    armed = Path(os.environ[FOLDER]) / "armed"
    taken = armed.with_name(f"taken-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        wanted, _, fault = armed.read_text().partition("\n")
        if wanted == phase:
            armed.rename(taken)
            return FAULTS[fault]()
    return None


def at_import() -> None:
    """As the user's main script, which every worker imports."""
    with (Path(os.environ[FOLDER]) / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    strike("spawn")
    from corral.pool.link import Link

    connect = Link.connect

    def connect_late(ticket: Any) -> Any:
        strike("hello")
        return connect(ticket)

    Link.connect = staticmethod(connect_late)  # type: ignore[method-assign]


class Faulty(Environment):
    """Has the armed fault in the phase that it is armed for."""

    def get_task_prompt(self) -> str:
        return self.task_id

    @tool
    def work(self) -> Any:
        """Work."""
        return strike("tool")

    @tool
    def linger(self) -> None:
        """Leave something behind that strikes when nobody is served."""
        threading.Thread(target=_strike_later, daemon=True).start()

    def score(self) -> Any:
        given = strike("scoring")
        return 1.0 if given is None else given

    def close(self) -> None:
        _kept.append(strike("close"))


_kept: list[Any] = []


def _strike_later() -> None:
    while not (Path(os.environ[FOLDER]) / "go").exists():
        time.sleep(0.01)
    _kept.append(strike("between leases"))


def build() -> dict[str, Environment]:
    """A faulty task for each fault, each behind one that is used to see whether all is well."""
    _kept.append(strike("load"))
    os.register_at_fork(after_in_child=lambda: _kept.append(strike("fork")))
    return build_environments([_task(name) for name in task_ids()], env_cls=Faulty, concurrency="process")


def task_ids() -> list[str]:
    """In the order in which they are to run."""
    return [*(f"{number:02}-{role}" for number in range(len(FAULTS)) for role in ("before", "struck")), "99-after"]


def _task(name: str) -> TaskDefinition:
    return TaskDefinition(name, name, [], lambda: 1.0, "text", setup_fn=lambda env: _kept.append(strike("set-up")))
