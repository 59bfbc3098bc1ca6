"""The function that the supervisor names and a worker runs: the one bridge between the two sides."""

from __future__ import annotations

import sys

from corral.errors import ConfigError
from corral.pool.wire import HostSpec

UNGUARDED = (
    "{what} started while a worker imported your script, and every worker would do so again. Guard the script: "
    'put what starts it under `if __name__ == "__main__":`'
)


def enter(spec: HostSpec) -> None:
    """Become a worker. Imported by name in the new interpreter; the worker's code is loaded there only."""
    from corral.pool.host import host_main

    host_main(spec)


def importing_main() -> bool:
    """Whether this process is a new worker that is importing the user's main module.

    A script that starts a run at its top level, without a guard, would start another one there, and so on.
    """
    return sys.orig_argv[-2:] == ["-m", "anyio.to_process"] and "__main__" not in sys.modules


def refuse_in_worker(what: str) -> None:
    """ConfigError with what to do, if the user's main module starts ``what`` while a worker imports it."""
    if importing_main():
        raise ConfigError(UNGUARDED.format(what=what))
