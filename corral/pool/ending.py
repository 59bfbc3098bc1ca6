"""How a trial process ended that gave no answer: the facts, which can travel, and the error that they make."""

from __future__ import annotations

from corral.errors import EnvStartError, TrialError, WorkerDied
from corral.lean import dataclass
from corral.pool.backend import SlotRef
from corral.pool.messages import ProcessEnded


class NoAnswer(Exception):
    """A trial process gave no answer, and will give none. ``said``: what is wrong with what came instead.

    ``unheard``: it was gone before it had read the request.
    """

    def __init__(self, said: str = "", *, unheard: bool = False) -> None:
        self.said = said
        self.unheard = unheard
        super().__init__(said)


@dataclass(frozen=True, slots=True)
class Ending:
    """The facts, once the process is gone."""

    pid: int
    slot: SlotRef
    """The worker that made it."""
    end: ProcessEnded | None
    """The worker's report of it."""
    worker_status: int | None = None
    """How the worker itself ended, if it did: exit code, or minus signal."""
    lost: bool = False
    """Whether the process still ran when its connection was gone, and was killed for that."""
    said: str = ""
    """What was wrong with what came from it."""
    unheard: bool = False
    """Whether it was gone before it had read the request."""

    def error(self, phase: str, output: str) -> TrialError:
        """The error of a request that was at ``phase``. ``output``: what the process printed last."""
        end, slot = self.end, self.slot
        at = {"pid": self.pid, "slot": slot.slot}
        if end is not None and end.record is not None:
            return EnvStartError.because("starting a trial process", end.record)
        if self.lost:
            return WorkerDied.lost(phase, **at, node=slot.node, output=output, reason=self.said)
        if end is None or end.status is None:
            died = self.worker_status
            return WorkerDied.with_its_worker(phase, worker=slot.pid, **at, node=slot.node, status=died, output=output)
        return WorkerDied.during(phase, **at, node=slot.node, status=end.status, output=output)
