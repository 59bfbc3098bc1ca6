"""NODE SIDE. The event loop of a node's processes: uvloop where it is installed, for it computes less for each call.

The driver's own loop stays asyncio's: it is in the user's process, where uvloop would take over the signal by which a
process learns of the ends of its children.
"""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of the best kind that there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
