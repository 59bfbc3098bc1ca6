"""What modules hold: that nothing has changed is said only where a whole look would find nothing either."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from corral.pool import holdings
from corral.pool.holdings import LARGE, Holdings

OURS = frozenset({"laboratory"})


class Engine:
    """As a simulation library would have one."""

    kinds: list[str] = ["a"]  # noqa: RUF012 - that is the point

    def __init__(self) -> None:
        self.units = "mol"
        self.parts = [{"name": "pump"}]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with state of every kind, and no other: those of the tests may be more than one looks at."""
    module: Any = ModuleType("laboratory")
    vars(module).update(
        number=1, table={"one": 1, "inner": {"deep": [1]}}, line=[1, 2], queue=deque([1]), chosen={1},
        pair=([1], 2), data=bytearray(b"ab"), engine=Engine(), kind=Engine, dice=random.Random(0),
        numbers=np.random.default_rng(0), large=[0] * (LARGE + 1), twice=[], shared=[],
    )  # fmt: skip
    module.twice = {"also": module.shared}
    monkeypatch.setattr(holdings, "sys", SimpleNamespace(modules={"laboratory": module}))
    monkeypatch.setattr(Engine, "kinds", ["a"])
    return module


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another object": (lambda lab: setattr(lab, "number", 2), "number"),
    "a new name": (lambda lab: setattr(lab, "new", 2), "new"),
    "an entry": (lambda lab: lab.table.update(two=2), "table"),
    "another value": (lambda lab: lab.table.update(one=7), "table"),
    "another key, the same value": (lambda lab: lab.table.update(uno=lab.table.pop("one")), "table"),
    "deep inside": (lambda lab: lab.table["inner"]["deep"].append(2), "table"),
    "an item of a list": (lambda lab: lab.line.__setitem__(0, 9), "line"),
    "a longer list": (lambda lab: lab.line.append(3), "line"),
    "a queue": (lambda lab: lab.queue.append(2), "queue"),
    "a set": (lambda lab: lab.chosen.add(2), "chosen"),
    "inside a tuple": (lambda lab: lab.pair[0].append(2), "pair"),
    "bytes": (lambda lab: lab.data.__setitem__(0, 0), "data"),
    "an attribute": (lambda lab: setattr(lab.engine, "units", "g"), "engine"),
    "a new attribute": (lambda lab: setattr(lab.engine, "new", 1), "engine"),
    "all attributes": (lambda lab: setattr(lab.engine, "__dict__", {"units": "mol", "parts": []}), "engine"),
    "inside an attribute": (lambda lab: lab.engine.parts[0].update(name="valve"), "engine"),
    "inside a class": (lambda lab: lab.kind.kinds.append("b"), "kind"),
    "a generator": (lambda lab: lab.dice.random(), "dice"),
    "a generator of NumPy": (lambda lab: lab.numbers.random(), "numbers"),
    "the size of something large": (lambda lab: lab.large.append(0), "large"),
    "what two names hold": (lambda lab: lab.shared.append(1), "shared"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_a_glance_and_named_by_a_look(lab: Any, change: str) -> None:
    make, name = CHANGES[change]
    before = Holdings(OURS)
    assert before.are_same()
    assert before.changed_until(Holdings(OURS)) == []
    make(lab)
    assert not before.are_same()
    assert f"laboratory.{name}" in before.changed_until(Holdings(OURS))


def test_what_is_put_back_is_no_change(lab: Any) -> None:
    before = Holdings(OURS)
    lab.table["two"] = 2
    del lab.table["two"]
    lab.engine.units = "g"
    lab.engine.units = "mol"
    assert before.are_same()


@pytest.mark.usefixtures("lab")
def test_a_module_that_is_loaded_is_looked_at_and_no_change() -> None:
    before = Holdings(OURS)
    late: Any = ModuleType("laboratory.late")
    vars(holdings)["sys"].modules["laboratory.late"] = late
    late.state = []
    assert not before.are_same()
    now = Holdings(OURS)
    assert before.changed_until(now) == []
    late.state.append(1)
    assert not now.are_same()
    assert now.changed_until(Holdings(OURS)) == ["laboratory.late.state"]


def test_a_glance_says_no_where_something_breaks_it(lab: Any) -> None:
    class Odd:
        """Of a metaclass that breaks what is asked."""

    lab.odd = Odd()
    before = Holdings(OURS)
    del lab.odd
    assert not before.are_same()
