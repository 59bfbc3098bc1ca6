"""Which trials a run consists of, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from corral.episode import Episode, Links
from corral.errors import ConfigError, TaskGraphError
from corral.tasks import connected_components, missing_parents, topological_order
from corral.types import MAX_TRIALS, ConcurrencyMode, TaskInfo, TrialKey


@dataclass(frozen=True)
class Plan:
    """The tasks in the order in which they are run and reported, parents first, and the number of rounds."""

    tasks: dict[str, TaskInfo]
    trials_per_task: int

    @property
    def size(self) -> int:
        """Trials in all."""
        return len(self.tasks) * self.trials_per_task

    @property
    def has_chains(self) -> bool:
        """Whether a task uses another one's output."""
        return any(info.parents for info in self.tasks.values())

    @cached_property
    def needed(self) -> frozenset[str]:
        """The tasks whose outputs others use."""
        return frozenset(parent for info in self.tasks.values() for parent in info.parents)

    def has_mode(self, mode: ConcurrencyMode) -> bool:
        """Whether a task is of that class."""
        return any(info.mode == mode for info in self.tasks.values())

    def trials(self) -> Iterator[TrialKey]:
        """Every trial: round by round, in each round every task."""
        return (TrialKey(task_id, index) for index in range(self.trials_per_task) for task_id in self.tasks)

    def episodes(self) -> Iterator[Episode]:
        """Every episode: round by round, in each round every group of linked tasks."""
        parents = {task_id: info.parents for task_id, info in self.tasks.items()}
        groups = [(group[0], Links({task: parents[task] for task in group})) for group in connected_components(parents)]
        for index in range(self.trials_per_task):
            for first, links in groups:
                yield Episode(f"{first}#{index}", index, links)


def make_plan(catalogue: Mapping[str, TaskInfo], selection: tuple[str, ...] | None, trials_per_task: int) -> Plan:
    """The plan for the selected tasks (None: all). ConfigError for unknown ones, TaskGraphError for missing parents."""
    if not catalogue:
        raise ConfigError("there are no tasks: the environments are empty")
    chosen = list(catalogue) if selection is None else list(selection)
    if unknown := [task for task in chosen if task not in catalogue]:
        known = ", ".join(map(repr, list(catalogue)[:20])) + (" ..." if len(catalogue) > 20 else "")
        raise ConfigError(f"unknown task ids: {', '.join(map(repr, unknown))}; known: {known}")
    parents = {task_id: info.parents for task_id, info in catalogue.items()}
    topological_order(parents)  # a cycle anywhere is an error of the environments, selected or not
    if missing := missing_parents(parents, chosen):
        lines = "; ".join(f"{task!r} needs {', '.join(map(repr, needed))}" for task, needed in missing.items())
        raise TaskGraphError(f"task_ids leaves out tasks whose outputs others need: {lines}")
    order = topological_order({task_id: parents[task_id] for task_id in chosen})
    if len(order) * trials_per_task > MAX_TRIALS:
        raise ConfigError(
            f"{trials_per_task} trials of each of {len(order)} tasks are more than the {MAX_TRIALS:,} of a run"
        )
    return Plan({task_id: catalogue[task_id] for task_id in order}, trials_per_task)
