"""SUPERVISOR SIDE. How a worker's start can fail, apart from an error of the builder's own."""

from __future__ import annotations

import anyio
from anyio import BrokenWorkerProcess

from corral.errors import EnvStartError

ENDED = (BrokenWorkerProcess, anyio.EndOfStream, anyio.IncompleteRead, ProcessLookupError, ConnectionError)
"""What anyio raises when a new interpreter ends while it is spoken to."""


class SlowStart(EnvStartError):
    """A worker was not ready within ``start_timeout``."""


class LostStart(EnvStartError):
    """A worker ended while it started, without a word: user code that exits, or somebody who kills processes."""
