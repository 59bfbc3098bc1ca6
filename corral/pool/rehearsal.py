"""WORKER SIDE. A rehearsal: a trial process that was made ahead of time plays a trial of Corral's own through.

Purpose
    A fork shares its worker's memory until it writes to it, and each page that it writes to first is copied: some 700
    of them for what any trial makes Python and Corral do, which takes longer than the doing itself. A process that
    waits for its lease anyway has them copied before anybody waits for it.
Guarantees
    Nothing of the user's is run: no environment, no builder. What a trial sees of the whole process (generators,
    current directory) is set when it is opened, and the folder of the rehearsal is gone at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from corral.environment import Environment
from corral.pool.link import Link
from corral.pool.messages import Close, Message, Open, Perform
from corral.pool.trial_process import TrialServer
from corral.pool.wire import Decoder, encode
from corral.tools import tool
from corral.types import Action, TrialSpec

FOLDER = "rehearsal"
"""Of the slot, for the workspace: what other trials leave in theirs is removed at any moment."""
_TASK = "rehearsal"


class _Sample(Environment):
    """An environment like any."""

    def get_task_prompt(self) -> str:
        return "Repeat."

    def score(self) -> float:
        return 1.0

    @tool
    def repeat(self, text: str, times: int = 1) -> str:
        """A tool like any."""
        return text * times


@cache
def _sample() -> Environment:
    """Made once: forks share it."""
    return _Sample(_TASK)


def _requests(runtime_id: str) -> Iterator[Message]:
    yield Open(TrialSpec(runtime_id, _TASK))
    yield Perform(runtime_id, Action.PROMPT)
    yield Perform(runtime_id, Action.TOOLS)
    yield Perform(runtime_id, Action.EXECUTE, ("repeat", {"text": "x"}))
    yield Perform(runtime_id, Action.SUBMIT, ("x",))
    yield Close(runtime_id)


def rehearse(work_root: Path, link: Link | None = None) -> None:
    """Answer the requests of a trial; nobody has made them. ``work_root`` is the slot's folder.

    It is broken off when somebody makes a request, on ``link``.
    """
    server, wire = TrialServer({_TASK: _sample()}, work_root / FOLDER, reused=False), Decoder()
    for request in _requests(_TASK):
        if link is not None and link.is_waiting():
            break
        for message in (request, server.answer(request)):
            for part in encode(message):
                wire.feed(part)
            wire.next()
    server.close()
