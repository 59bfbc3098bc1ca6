"""Whether an agent fits this process: what travels between them are pickles, of Corral's classes and of user code."""

from __future__ import annotations

import platform
from importlib.metadata import version

from corral.pool.dask.messages import Greeting


def mismatch(greeting: Greeting) -> str | None:
    """What is wrong with an agent's versions, and what to do; None if nothing is."""
    pairs = [
        ("Python", _minor(greeting.python), _minor(platform.python_version())),
        ("Corral", greeting.corral, version("corral")),
        ("cloudpickle", greeting.cloudpickle, version("cloudpickle")),
    ]
    for what, there, here in pairs:
        if there != here:
            return f"it has {what} {there} and this process has {here}; have the same at both ends"
    return None


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
