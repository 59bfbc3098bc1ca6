"""WORKER SIDE. The ordinary end of a trial process: libraries tidy up then, as at the end of any interpreter.

Purpose
    A trial process leaves by ``os._exit``, since it may be a fork in the middle of its worker. What libraries keep
    outside of the workspace, such as joblib its semaphores and its folders in shared memory, they remove in exit
    handlers.
Guarantees
    * Handlers that the trials registered run; those of the worker, which a fork inherits, do not.
    * It takes no longer than LEAVING_PATIENCE: a handler that hangs is left. Nobody waits for threads that still run.
Assumptions
    ``multiprocessing`` does the same in its own forks, by the same private parts of ``atexit``. Executors register with
    ``threading`` instead, which runs their handlers first; so here.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Any

LEAVING_PATIENCE = 5.0
"""Seconds. For handlers that wait for others, such as the processes of a pool that they end."""


def begin_anew() -> None:
    """In a fork: forget what its worker would do at its end, and which processes are its worker's."""
    atexit._clear()
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]  # the next one registers
    for own in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        own.atexit = False
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util._finalizer_registry.clear()
        sys.modules["multiprocessing.process"]._children = set()  # type: ignore[attr-defined]


def leave() -> None:
    """Do what the interpreter does at its end, short of ending."""
    handlers = getattr(threading, "_threading_atexits", ())
    of_executors = [handler for handler in reversed(handlers) if not _has_nothing_to_do(handler)]
    if not of_executors and atexit._ncallbacks() == 0 and not _multiprocessing_was_used():
        return  # else a thread would have to be started for nothing
    limit = threading.Timer(LEAVING_PATIENCE, os._exit, (0,))
    limit.daemon = True
    limit.start()
    for handler in of_executors:
        handler()
    atexit._run_exitfuncs()
    if _multiprocessing_was_used():
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)
        atexit._run_exitfuncs()


def _has_nothing_to_do(handler: Any) -> bool:
    """Of an executor's handler: whether no executor of that kind has run. A fork has it of whoever imported the module.

    Those of the standard library and of loky alike keep their threads in a dictionary of this name.
    """
    home = vars(sys.modules.get(getattr(getattr(handler, "func", None), "__module__", None) or "", object))
    threads = [home[name] for name in ("_threads_queues", "_threads_wakeups") if name in home]
    return bool(threads) and not any(threads)


def _multiprocessing_was_used() -> bool:
    """Whether it has something to tidy up. It registers its handler where it is imported: before a fork of that."""
    util = sys.modules.get("multiprocessing.util")
    return util is not None and bool(util._finalizer_registry or sys.modules["multiprocessing.process"]._children)
