"""One episode: a trial round of tasks that use each other's outputs. Which may start, which never will.

Pure, and linear in tasks and dependencies. A task without dependencies is an episode of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corral.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A task that will not be run, and the nearest parent that broke it."""

    task_id: str
    broken_by: str


class Episode:
    """The tasks of one round, in plan order, and how far they are."""

    def __init__(self, episode_id: str, trial_index: int, parents: Mapping[str, Iterable[str]]) -> None:
        """``parents`` maps each task of the episode to the tasks whose outputs it uses, all of the episode."""
        self.episode_id = episode_id
        self.trial_index = trial_index
        self._waits_for = {task_id: set(needed) for task_id, needed in parents.items()}
        self._children: dict[str, list[str]] = {task_id: [] for task_id in parents}
        for task_id, needed in self._waits_for.items():
            for parent in needed:
                self._children[parent].append(task_id)
        self._open = set(parents)

    @property
    def is_chain(self) -> bool:
        """Whether it has more than one task."""
        return len(self._waits_for) > 1

    @property
    def is_over(self) -> bool:
        """Whether every task has ended or is unreachable."""
        return not self._open

    @property
    def tasks(self) -> list[str]:
        """Its tasks, in plan order."""
        return list(self._waits_for)

    def ready(self) -> list[str]:
        """The tasks that can start before anything has ended."""
        return [task_id for task_id, needed in self._waits_for.items() if not needed]

    def ended(self, task_id: str, *, succeeded: bool) -> tuple[list[str], list[Unreachable]]:
        """A task has ended: which tasks can start now, and which never will, each with its nearest broken parent."""
        if task_id not in self._open:
            raise ProtocolError(f"task {task_id!r} ended twice in episode {self.episode_id!r}")
        self._open.discard(task_id)
        if not succeeded:
            return [], self._cut_off(task_id)
        ready = []
        for child in self._children[task_id]:
            self._waits_for[child].discard(task_id)
            if child in self._open and not self._waits_for[child]:
                ready.append(child)
        return ready, []

    def _cut_off(self, broken: str) -> list[Unreachable]:
        lost: list[Unreachable] = []
        front = deque([broken])
        while front:  # breadth first, so that each task names its nearest broken parent
            parent = front.popleft()
            for child in self._children[parent]:
                if child in self._open:
                    self._open.discard(child)
                    lost.append(Unreachable(child, parent))
                    front.append(child)
        return lost
