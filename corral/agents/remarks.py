"""What goes on inside an agent that no router sees, for the progress display: that its model does not answer, say.

An agent says it where it happens; whoever runs the agent may listen. Neither knows the other: the remark goes by a
context variable, which threads and tasks that an agent starts inherit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["Remarks", "listening", "remark"]


class Remarks:
    """What one run of an agent has to say. ``now`` is empty while that is nothing."""

    def __init__(self) -> None:
        self.now = ""


_ears: ContextVar[Remarks | None] = ContextVar("corral_remarks", default=None)


@contextmanager
def listening() -> Iterator[Remarks]:
    """What is remarked inside the block."""
    remarks = Remarks()
    token = _ears.set(remarks)
    try:
        yield remarks
    finally:
        _ears.reset(token)


def remark(text: str) -> None:
    """Say how things are from now on; nothing (``""``) when all is well again. Unheard where nobody listens."""
    if (ears := _ears.get()) is not None:
        ears.now = text
