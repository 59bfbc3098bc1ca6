"""One episode: a trial round of tasks that use each other's outputs. Which may start, which never will.

Pure, and linear in tasks and dependencies. A task without dependencies is an episode of its own.

Guarantees
    * A task is ready once, when all its parents have succeeded, or unreachable once, when all its parents have ended
      and one of them is broken. So which parent it names does not depend on the order in which they ended.
    * A parent is broken if it did not succeed, or is unreachable itself. The nearest one is that with the fewest steps
      from the task that failed; of equally near ones, the first in the plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from corral.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A task that will not be run."""

    task_id: str
    broken_by: str
    """The nearest parent that broke it."""
    failed: str
    """The task that did not succeed, from which the way leads there: ``broken_by`` itself, or further up."""


class Links:
    """Linked tasks, in plan order. All rounds of them share one: there may be a hundred thousand."""

    __slots__ = ("children", "parents", "place")

    def __init__(self, parents: Mapping[str, Iterable[str]]) -> None:
        """``parents`` maps each task to the tasks whose outputs it uses, all of them among the linked."""
        self.parents = {task_id: tuple(dict.fromkeys(needed)) for task_id, needed in parents.items()}
        self.place = {task_id: place for place, task_id in enumerate(self.parents)}
        self.children: dict[str, list[str]] = {task_id: [] for task_id in self.parents}
        for task_id, needed in self.parents.items():
            for parent in needed:
                self.children[parent].append(task_id)


class Episode:
    """The tasks of one round, in plan order, and how far they are."""

    __slots__ = ("_broken", "_links", "_open", "_waits_for", "episode_id", "trial_index")

    def __init__(self, episode_id: str, trial_index: int, links: Links) -> None:
        self.episode_id = episode_id
        self.trial_index = trial_index
        self._links = links
        self._waits_for = {task_id: len(needed) for task_id, needed in links.parents.items() if needed}
        self._open = set(links.parents)
        self._broken: dict[str, tuple[int, str]] = {}
        """Of each broken task: how many steps it is from the one that failed, and which that is."""

    @property
    def is_chain(self) -> bool:
        """Whether it has more than one task."""
        return self.size > 1

    @property
    def size(self) -> int:
        """How many tasks it has."""
        return len(self._links.parents)

    @property
    def is_over(self) -> bool:
        """Whether every task has ended or is unreachable."""
        return not self._open

    @property
    def tasks(self) -> list[str]:
        """Its tasks, in plan order."""
        return list(self._links.parents)

    def ready(self) -> list[str]:
        """The tasks that can start before anything has ended."""
        return [task_id for task_id, needed in self._links.parents.items() if not needed]

    def ended(self, task_id: str, *, succeeded: bool) -> tuple[list[str], list[Unreachable]]:
        """A task has ended: which tasks can start now, and which never will, each with its nearest broken parent."""
        if task_id not in self._open:
            raise ProtocolError(f"task {task_id!r} ended twice in episode {self.episode_id!r}")
        self._open.discard(task_id)
        if not succeeded:
            self._broken[task_id] = 0, task_id
        ready: list[str] = []
        lost: list[Unreachable] = []
        over = deque([task_id])
        while over:
            for child in self._last_awaited(over.popleft()):
                if (broken_by := self._nearest_broken(child)) is None:
                    ready.append(child)
                    continue
                steps, failed = self._broken[broken_by]
                self._broken[child] = steps + 1, failed
                self._open.discard(child)
                lost.append(Unreachable(child, broken_by, failed))
                over.append(child)
        return ready, lost

    def _last_awaited(self, parent: str) -> list[str]:
        """Those of its children that have waited for no other parent any more."""
        for child in self._links.children[parent]:
            self._waits_for[child] -= 1
        return [child for child in self._links.children[parent] if not self._waits_for[child]]

    def _nearest_broken(self, task_id: str) -> str | None:
        broken = [parent for parent in self._links.parents[task_id] if parent in self._broken]
        return min(broken, key=lambda parent: (self._broken[parent][0], self._links.place[parent]), default=None)
