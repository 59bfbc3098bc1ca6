"""The plan: which trials, in which order, and selections that cannot be run."""

from __future__ import annotations

import pytest

from corral.errors import ConfigError, TaskGraphError
from corral.plan import make_plan
from corral.types import MAX_TRIALS, TaskInfo, TrialKey


def catalogue(**parents: str) -> dict[str, TaskInfo]:
    return {task: TaskInfo(task, parents=tuple(needed)) for task, needed in parents.items()}


DIAMOND = catalogue(end="lr", l="t", r="t", t="", alone="")


def test_parents_first_and_round_by_round() -> None:
    plan = make_plan(DIAMOND, None, 2)
    assert list(plan.tasks) == ["t", "l", "r", "end", "alone"]
    assert plan.size == 10
    assert list(plan.trials())[:6] == [TrialKey(task, 0) for task in plan.tasks] + [TrialKey("t", 1)]


def test_a_selection_keeps_its_own_order() -> None:
    assert list(make_plan(catalogue(a="", b="", c=""), ("c", "a"), 1).tasks) == ["c", "a"]


def test_episodes_are_groups_of_linked_tasks() -> None:
    episodes = list(make_plan(DIAMOND, None, 2).episodes())
    assert [(e.episode_id, e.trial_index, e.tasks, e.is_chain) for e in episodes] == [
        ("t#0", 0, ["t", "l", "r", "end"], True),
        ("alone#0", 0, ["alone"], False),
        ("t#1", 1, ["t", "l", "r", "end"], True),
        ("alone#1", 1, ["alone"], False),
    ]


def test_only_what_is_selected_links_tasks() -> None:
    """Without their end, two parents have nothing to do with each other."""
    plan = make_plan(catalogue(a="", b="", end="ab"), ("a", "b"), 1)
    assert [e.tasks for e in plan.episodes()] == [["a"], ["b"]]
    assert not plan.has_chains


def test_no_tasks() -> None:
    with pytest.raises(ConfigError, match="there are no tasks"):
        make_plan({}, None, 1)


def test_unknown_tasks_are_named_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="unknown task ids: 'x', 'y'; known: 'end', 'l'"):
        make_plan(DIAMOND, ("x", "t", "y"), 1)


def test_a_selection_that_leaves_out_parents() -> None:
    with pytest.raises(TaskGraphError, match=r"^task_ids leaves out .*: 'end' needs 'l'; 'r' needs 't'$"):
        make_plan(DIAMOND, ("end", "r"), 1)


def test_a_cycle_is_an_error_even_where_it_is_not_selected() -> None:
    with pytest.raises(TaskGraphError, match="cycle"):
        make_plan(catalogue(a="b", b="a", c=""), ("c",), 1)


@pytest.mark.parametrize("trials", [10**30, MAX_TRIALS])
def test_more_trials_than_a_run_can_hold(trials: int) -> None:
    with pytest.raises(
        ConfigError, match=f"^{trials} trials of each of 4 tasks are more than the 10,000,000 of a run$"
    ):
        make_plan(catalogue(a="", b="", c="", d=""), None, trials)
