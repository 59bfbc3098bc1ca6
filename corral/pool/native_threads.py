"""SUPERVISOR SIDE. One native thread for each new interpreter, unless the user's environment says otherwise."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

NATIVE_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)  # fmt: skip
"""Set to 1 in workers, unless the user's environment has a value: N workers of N threads each would crowd each other,
and a worker with more than one thread cannot be forked soundly."""

_added_limits: list[str] = []
_limit_users = 0


@contextlib.contextmanager
def native_threads_limited() -> Iterator[None]:
    """While the block runs, interpreters that are started inherit a limit of one native thread.

    anyio passes no environment to the interpreters it starts, and what they import first, the user's main module, may
    load native libraries: so it must stand in this process's own environment for that moment.
    """
    global _limit_users
    if _limit_users == 0:
        _added_limits[:] = [name for name in NATIVE_THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(_added_limits, "1"))
    _limit_users += 1
    try:
        yield
    finally:
        _limit_users -= 1
        if _limit_users == 0:
            for name in _added_limits:
                os.environ.pop(name, None)
