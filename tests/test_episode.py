"""An episode against a naive one, on random graphs in random orders, and what it says of broken parents."""

from __future__ import annotations

import random

import pytest

from corral.episode import Episode, Unreachable
from corral.errors import ProtocolError


def episode(**parents: str) -> Episode:
    return Episode("e", 0, {task: tuple(needed) for task, needed in parents.items()})


def test_a_diamond_from_top_to_end() -> None:
    diamond = episode(t="", l="t", r="t", end="lr")
    assert diamond.ready() == ["t"]
    assert diamond.ended("t", succeeded=True) == (["l", "r"], [])
    assert diamond.ended("r", succeeded=True) == ([], [])
    assert diamond.ended("l", succeeded=True) == (["end"], [])
    assert not diamond.is_over
    assert diamond.ended("end", succeeded=False) == ([], [])
    assert diamond.is_over


def test_a_broken_parent_cuts_off_all_below_and_each_names_its_nearest() -> None:
    chain = episode(a="", b="a", c="b", d="c", other="")
    assert chain.ended("a", succeeded=False) == (
        [],
        [Unreachable("b", "a"), Unreachable("c", "b"), Unreachable("d", "c")],
    )
    assert not chain.is_over
    chain.ended("other", succeeded=True)
    assert chain.is_over


def test_a_task_that_is_cut_off_never_becomes_ready_by_its_other_parent() -> None:
    diamond = episode(l="", r="", end="lr")
    assert diamond.ended("l", succeeded=False) == ([], [Unreachable("end", "l")])
    assert diamond.ended("r", succeeded=True) == ([], [])
    assert diamond.is_over


def test_one_task_is_no_chain() -> None:
    assert not episode(a="").is_chain
    assert episode(a="", b="a").is_chain


@pytest.mark.parametrize("task", ["a", "cut", "unknown"])
def test_a_task_ends_once(task: str) -> None:
    each = episode(a="", cut="a")
    each.ended("a", succeeded=False)
    with pytest.raises(ProtocolError, match="ended twice"):
        each.ended(task, succeeded=True)


@pytest.mark.parametrize("seed", range(200))
def test_every_task_ends_exactly_once_on_any_graph(seed: int) -> None:
    """Each task is either ready once, after all its parents have succeeded, or cut off once by a broken parent."""
    dice = random.Random(seed)
    tasks = [str(i) for i in range(dice.randint(1, 12))]
    parents = {task: dice.sample(tasks[:i], dice.randint(0, min(i, 3))) for i, task in enumerate(tasks)}
    each = Episode("e", 0, parents)
    running, succeeded, failed, cut = each.ready(), set[str](), set[str](), set[str]()
    started = list(running)
    while running:
        task = running.pop(dice.randrange(len(running)))
        good = dice.random() < 0.7
        (succeeded if good else failed).add(task)
        ready, lost = each.ended(task, succeeded=good)
        for child in ready:
            assert set(parents[child]) <= succeeded
        for item in lost:
            assert item.broken_by in parents[item.task_id]
            assert item.broken_by in failed | cut | {other.task_id for other in lost}
            cut.add(item.task_id)
        running += ready
        started += ready
    assert each.is_over
    assert sorted([*started, *cut]) == sorted(tasks)
