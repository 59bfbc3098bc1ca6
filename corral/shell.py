"""How Corral's commands begin and end, whatever happens to them: one sentence and an exit status, never a traceback.

Guarantees
    * A signal that comes before the command deals with signals itself, also while its modules are imported, ends it
      with a sentence and 128 plus the signal's number. A signal that was ignored (``nohup``) stays so.
    * Output that cannot be written (a full disk) ends it with a sentence and status 1. A reader that has seen enough is
      no failure. Text that the output's encoding has no form for is escaped.
    * A sentence that quotes text from elsewhere does nothing to a terminal: its control characters are escaped.
    * It learns how its children end, though whoever started it had that ignored (SIGCHLD), as some daemons do.
    * Standard descriptors that were closed are open on nothing: no file of the command's takes their numbers, into
      which libraries write what goes wrong.
    * Arguments that cannot be used are told in a sentence, without the usage text, and end it with status 2.

It imports nothing of Corral: so it stands before all that takes time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from typing import NoReturn

EXIT_FAILED, EXIT_USAGE = 1, 2

STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
"""The signals that end a command, where the system has them."""


class Stopped(KeyboardInterrupt):
    """A signal came. Event loops let it through, as they do Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        """End the command."""
        self.exit(EXIT_USAGE, f"corral: {message}; see {self.prog} --help\n")


def stopping_signals() -> list[signal.Signals]:
    """Those that end a command here: not what whoever started it has it ignore."""
    known = [getattr(signal, name) for name in STOPPING if hasattr(signal, name)]
    return [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]


def run(module: str) -> int:
    """Import the command's module and run its ``main``; the exit status."""
    _open_standard_streams()
    if hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in stopping_signals():
        signal.signal(number, _stop)
    try:
        status = int(importlib.import_module(module).main())
        if _came is not None and status == 128 + signal.SIGINT:  # it took the signal for a Ctrl-C
            status = 128 + _came
    except SystemExit as end:  # of argparse
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt as stopped:
        for number in stopping_signals():
            signal.signal(number, signal.SIG_IGN)  # it is ending
        came = signal.Signals(getattr(stopped, "number", signal.SIGINT))
        say(f"stopped by {came.name}")
        status = 128 + came
    return flushed(status)


def flushed(status: int) -> int:
    """Write what is left of the output; the exit status that follows."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        let_go_of_output()
    except OSError as error:
        let_go_of_output()
        say(f"standard output cannot be written: {error.strerror or error}")
        return status or EXIT_FAILED
    return status


_came: int | None = None


def _stop(number: int, _frame: object) -> NoReturn:
    global _came
    _came = number
    raise Stopped(number)


def say(what: object) -> None:
    """One sentence on standard error. Of its control characters, only line ends have an effect."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(what))
    with contextlib.suppress(OSError):
        sys.stderr.write(f"corral: {shown}\n")


def _open_standard_streams() -> None:
    for number, mode in enumerate("rww"):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, ("stdin", "stdout", "stderr")[number], os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error has it


def let_go_of_output() -> None:
    """What is left in the buffer goes nowhere: the interpreter's own last flush must not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
