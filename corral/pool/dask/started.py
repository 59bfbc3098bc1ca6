"""SUPERVISOR SIDE. A cluster that was started, as its users see it, whatever started it."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.pool.logs import as_text, tail

if TYPE_CHECKING:
    from distributed import Scheduler, Security

LOG_TAIL = 4096
"""Bytes of a node's log that an error shows."""

SCHEDULER_OPTIONS: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""Dask's pages tell of the cluster without asking who reads: they are served to this machine only."""


class Started(ABC):
    """A scheduler in this process, and nodes that come and go."""

    def __init__(self, scheduler: Scheduler, security: Security) -> None:
        self._scheduler = scheduler
        self.security = security
        """What a client needs to be let in."""

    @property
    def address(self) -> str:
        """Where the scheduler is: ``tls://...``."""
        return str(self._scheduler.address)

    @abstractmethod
    async def scale(self, nodes: int) -> None:
        """Have so many nodes from now on; those that are new come when they come."""

    @abstractmethod
    async def hopeless(self) -> None:
        """Return when no node will come although none has; else wait for ever."""

    @abstractmethod
    def troubles(self) -> str:
        """What the nodes that did not come left to say."""

    async def arrival(self) -> None:
        """Wait until there is a node."""
        from distributed import SchedulerPlugin

        arrived = asyncio.Event()

        class Arrivals(SchedulerPlugin):  # type: ignore[misc]  # its base is untyped
            name = "corral-arrivals"

            def add_worker(self, *_args: Any, **_kwargs: Any) -> None:
                arrived.set()

        self._scheduler.add_plugin(Arrivals())
        try:
            if not self._scheduler.workers:
                await arrived.wait()
        finally:
            with contextlib.suppress(ValueError):
                self._scheduler.remove_plugin(name=Arrivals.name)


def worker_credentials(security: Security) -> dict[str, str]:
    """What a node needs to be let in, as arguments of ``Security``, by value: its files may not exist there."""
    arguments = {"ca_file": "tls_ca_file", "cert": "tls_worker_cert", "key": "tls_worker_key", "ciphers": "tls_ciphers"}
    found = {}
    for name, value in security.get_tls_config_for_role("worker").items():
        if value is not None:
            is_path = name != "ciphers" and "\n" not in value
            found[arguments[name]] = Path(value).read_text("ascii") if is_path else value
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Dask's own messages: what matters of them is told in the records."""
    from distributed.utils import silence_logging_cmgr

    with silence_logging_cmgr("critical"):
        yield


def end_of_log(path: Path) -> str:
    """The last words of a node, with a colon before them; or that there are none."""
    words = as_text(tail(str(path), 0, LOG_TAIL)[0]).strip()
    return f":\n{words}" if words else " without a word"
