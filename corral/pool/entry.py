"""The function that the supervisor names and a worker runs: the one bridge between the two sides."""

from __future__ import annotations

import sys

from corral.pool.wire import HostSpec


def enter(spec: HostSpec) -> None:
    """Become a worker. Imported by name in the new interpreter; the worker's code is loaded there only."""
    from corral.pool.host import host_main

    host_main(spec)


def importing_main() -> bool:
    """Whether this process is a new worker that is importing the user's main module.

    A script that starts a run at its top level, without a guard, would start another one there, and so on.
    """
    return sys.orig_argv[-2:] == ["-m", "anyio.to_process"] and "__main__" not in sys.modules
