"""SUPERVISOR SIDE. What the environment of a new interpreter says besides what the user's does."""

from __future__ import annotations

import os

NATIVE_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
)  # fmt: skip
"""Set to 1 in workers, unless the user's environment has a value: N workers of N threads each would crowd each other,
and a worker with more than one thread cannot be forked soundly."""


PLAIN = {"PYTHON_COLORS": "0"}
"""What a worker prints goes to its log, and from there to records: Python's tracebacks have no colours there, though
FORCE_COLOR may ask for some. From Python 3.13 on."""


def worker_environment() -> dict[str, str]:
    """The environment of a new worker. Set from its spawn on: its first import may load native libraries."""
    return {**dict.fromkeys(NATIVE_THREADS, "1"), **PLAIN, **os.environ}
