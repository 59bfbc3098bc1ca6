"""An episode against a naive one, on random graphs in random orders, and what it says of broken parents."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest

from corral.episode import Episode, Links, Unreachable
from corral.errors import ProtocolError


def episode(**parents: Iterable[str]) -> Episode:
    return Episode("e", 0, Links({task: tuple(needed) for task, needed in parents.items()}))


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
        [Unreachable("b", "a", "a"), Unreachable("c", "b", "a"), Unreachable("d", "c", "a")],
    )
    assert not chain.is_over
    chain.ended("other", succeeded=True)
    assert chain.is_over


def test_a_task_is_cut_off_when_its_last_parent_has_ended() -> None:
    diamond = episode(l="", r="", end="lr")
    assert diamond.ended("l", succeeded=False) == ([], [])
    assert diamond.ended("r", succeeded=True) == ([], [Unreachable("end", "l", "l")])
    assert diamond.is_over


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
@pytest.mark.parametrize(("broken", "named"), [("ab", "a"), ("bc", "b"), ("ac", "a"), ("abc", "a"), ("c", "c")])
def test_of_several_broken_parents_the_first_in_the_plan_is_named_however_they_ended(
    order: str, broken: str, named: str
) -> None:
    each = episode(a="", b="", c="", end="cba", after=("end",))
    lost = [item for task in order for item in each.ended(task, succeeded=task not in broken)[1]]
    assert lost == [Unreachable("end", named, named), Unreachable("after", "end", named)]


@pytest.mark.parametrize("order", ["ax", "xa"])
def test_one_that_failed_is_nearer_than_one_that_was_cut_off(order: str) -> None:
    """``mid`` comes first in the plan and is cut off by ``a``; ``x`` fails itself."""
    each = episode(a="", mid="a", x="", end=("mid", "x"))
    lost = dict.fromkeys(item for task in order for item in each.ended(task, succeeded=False)[1])
    assert set(lost) == {Unreachable("mid", "a", "a"), Unreachable("end", "x", "x")}


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
    """Each task is either ready once, after all its parents have succeeded, or cut off once by a broken parent.

    What becomes of each task, and which parent it names, depends on the graph and on who fails, never on the order.
    """
    dice = random.Random(seed)
    tasks = [str(i) for i in range(dice.randint(1, 12))]
    parents = {task: dice.sample(tasks[:i], dice.randint(0, min(i, 3))) for i, task in enumerate(tasks)}
    bad = {task for task in tasks if dice.random() < 0.3}
    outcomes = [play(parents, bad, random.Random(order)) for order in range(5)]
    assert outcomes == [naive(parents, bad)] * 5


def play(parents: dict[str, list[str]], bad: set[str], dice: random.Random) -> dict[str, str]:
    """Of each task: "good", "bad", or the parent that it names; its running tasks end in a random order."""
    each = Episode("e", 0, Links(parents))
    running, outcome = each.ready(), dict[str, str]()
    while running:
        task = running.pop(dice.randrange(len(running)))
        assert task not in outcome
        outcome[task] = "bad" if task in bad else "good"
        ready, lost = each.ended(task, succeeded=task not in bad)
        running += ready
        for item in lost:
            assert item.task_id not in outcome
            outcome[item.task_id] = f"cut off by {item.broken_by}"
    assert each.is_over
    return dict(sorted(outcome.items()))


def naive(parents: dict[str, list[str]], bad: set[str]) -> dict[str, str]:
    """The same, worked out in plan order: the nearest broken parent is the one with the shortest way to a failure."""
    outcome, steps = dict[str, str](), dict[str, int]()
    for task, needed in parents.items():
        broken = sorted((steps[parent], int(parent)) for parent in needed if parent in steps)
        if broken:
            steps[task] = broken[0][0] + 1
            outcome[task] = f"cut off by {broken[0][1]}"
        elif task in bad:
            steps[task] = 0
        if not broken:
            outcome[task] = "bad" if task in bad else "good"
    return dict(sorted(outcome.items()))


@pytest.mark.parametrize("succeeded", [True, False])
@pytest.mark.parametrize("shape", ["chain", "fan out", "fan in"])
def test_linear_in_tasks_and_dependencies(shape: str, succeeded: bool) -> None:
    """As many lines are run for each of 5,000 tasks as for each of 500."""
    each, more = (lines_run(shape, size, succeeded) / size for size in (500, 5000))
    assert more == pytest.approx(each, rel=0.02)


def lines_run(shape: str, size: int, succeeded: bool) -> int:
    """Lines of Episode that are run until an episode of that many tasks is over."""
    inner = [str(i) for i in range(1, size - 1)]
    graphs: dict[str, dict[str, tuple[str, ...]]] = {
        "chain": {str(i): (str(i - 1),) if i else () for i in range(size)},
        "fan out": {"0": (), **dict.fromkeys(inner, ("0",)), "end": ("0",)},
        "fan in": {"0": (), **dict.fromkeys(inner, ()), "end": ("0", *inner)},
    }
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != Episode.__init__.__code__.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        each = Episode("e", 0, Links(graphs[shape]))
        running = deque(each.ready())
        while running:
            running += each.ended(running.popleft(), succeeded=succeeded)[0]
    finally:
        sys.settrace(before)
    assert each.is_over
    return lines
