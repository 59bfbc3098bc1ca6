"""BOTH SIDES. What an interpreter holds that was not meant for it: descriptors of whoever started it."""

from __future__ import annotations

import contextlib
import os


def close_inherited() -> None:
    """Close what this interpreter was started with beside its standard streams.

    asyncio and trio give a child nothing else; uvloop gives it all that is inheritable, with its own pipes to the
    child among that, by whose end the child's death is noticed: they would stay open in what the child starts. What
    this process opened itself is not inheritable, as Python has it.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with contextlib.suppress(OSError):  # that of the listing itself is closed
                if int(name) > 2 and os.get_inheritable(int(name)):
                    os.close(int(name))
