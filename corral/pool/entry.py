"""The function that the supervisor names and a worker runs: the one bridge between the two sides."""

from __future__ import annotations

import gc

from corral.errors import ConfigError
from corral.pool.main_script import refuse_while_importing
from corral.pool.messages import HostSpec, NurserySpec

UNGUARDED = (
    "{what} started while a worker imported your script, and every worker would do so again. Guard the script: "
    'put what starts it under `if __name__ == "__main__":`'
)


def enter(spec: HostSpec) -> None:
    """Become a worker. Imported by name in the new interpreter; the worker's code is loaded there only."""
    from corral.pool.host import host_main

    host_main(spec)


def enter_nursery(spec: NurserySpec) -> None:
    """Become the nursery."""
    gc.disable()  # what is loaded now stays: looking through it for garbage, again and again, finds none
    from corral.pool.nursery_main import nursery_main

    nursery_main(spec)


def refuse_in_worker(what: str) -> None:
    """ConfigError with what to do, if the user's main script starts ``what`` while a worker imports it."""
    refuse_while_importing(ConfigError(UNGUARDED.format(what=what)))
