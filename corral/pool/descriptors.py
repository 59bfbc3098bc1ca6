"""SUPERVISOR SIDE. Room for a pool's connections: the descriptors that this process may have open.

Every worker, and its trial process, costs some; a process that has none left can neither let a worker in nor read
/proc. So room is made before the first worker is started, or it is said that there is none.
"""

from __future__ import annotations

import os

from corral.errors import ConfigError

PER_WORKER = 4
"""Descriptors that a worker and its trial process cost at most, as measured while they start and end."""
FEW = 16
"""Descriptors for the pool's own: the nursery, a folder that is looked into, processes that are being started."""
SPARE = 64
"""Descriptors that are good to have for all else: an agent's connections to its model, a server's clients."""


def make_room(workers: int) -> None:
    """Raise this process's limit to what a pool of so many needs, and some to spare, where it is lower.

    ConfigError where the system does not allow what is needed.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    needed = _open_now() + PER_WORKER * workers + FEW
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed + SPARE:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"a pool of {workers} needs some {needed} open files, and the system allows this process {hard} "
            "(ulimit -Hn): take a smaller pool, or have the limit raised"
        )
    wanted = needed + SPARE if hard == resource.RLIM_INFINITY else min(needed + SPARE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return SPARE
