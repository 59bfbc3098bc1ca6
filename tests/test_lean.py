"""The lean dataclass is a dataclass: what the standard one makes of a class, it makes too."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from dataclasses import field
from typing import Any

import pytest

from corral import lean


def variants(decorate: Any) -> list[Any]:
    """The same class in the ways in which it is asked for."""

    def define(**options: bool) -> Any:
        @decorate(**options)
        class Point:
            """A point."""

            x: int
            y: int = 2
            tags: list[str] = field(default_factory=list)

            def __post_init__(self) -> None:
                if self.x < 0:
                    raise ValueError("x")

            def norm(self) -> int:
                return abs(self.x) + abs(self.y)

        Point.__qualname__ = "Point"
        return Point

    return [
        define(frozen=frozen, slots=slots, eq=eq)
        for frozen in (False, True)
        for slots in (False, True)
        for eq in (False, True)
    ]


PAIRS = list(zip(variants(lean.dataclass), variants(dataclasses.dataclass), strict=True))


def attempt(act: Any) -> Any:
    try:
        return act()
    except Exception as error:
        return type(error)


def facts(cls: Any) -> list[Any]:
    """What can be seen of a class, and of what it makes."""
    one = cls(1, tags=["a"])

    def change() -> None:
        one.x = 5

    def delete() -> None:
        del one.y

    def stray() -> None:
        one.other = 1

    match one:
        case cls(x, y):
            matched = x, y
    return [
        repr(one), dataclasses.asdict(one), dataclasses.astuple(one), repr(dataclasses.replace(one, y=7)), matched,
        [(f.name, f.type) for f in dataclasses.fields(cls)], cls.__match_args__, one.norm(), cls.__doc__,
        one == cls(1, tags=["a"]), one == cls(1), one == (1, 2, ["a"]), attempt(lambda: hash(one)) is TypeError,
        list(inspect.signature(cls).parameters), one.tags is cls(1).tags, hasattr(one, "__dict__"),
        attempt(cls), attempt(lambda: cls(1, 2, [], 4)), attempt(lambda: cls(z=1)), attempt(lambda: cls(-1)),
        repr(copy.deepcopy(cls(1))), attempt(change), repr(one), attempt(stray) is None,
        attempt(delete), attempt(lambda: one.y),
    ]  # fmt: skip


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_it_behaves_as_the_standard_one(ours: Any, theirs: Any) -> None:
    assert facts(ours) == facts(theirs)


@lean.dataclass(frozen=True, slots=True)
class Sent:
    """Found again by pickle."""

    number: int
    more: tuple[int, ...] = ()


@lean.dataclass(frozen=True)
class Base:
    """Inherited from."""

    x: int


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    """By a standard one."""

    y: int = 0


def test_it_travels() -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2,)))) == Sent(1, (2,))
    assert hash(Sent(1)) == hash(Sent(1, ()))
    assert Sent(1) != Sent(2)


def test_a_standard_dataclass_may_inherit() -> None:
    assert Derived(1, 2).x == 1
    assert repr(Derived(1)) == "Derived(x=1, y=0)"


@pytest.mark.parametrize("early", variants(lean.dataclass))
def test_it_has_a_signature_before_the_first_call(early: Any) -> None:
    class Heir(early):  # type: ignore[misc]
        """Has the constructor of another."""

    assert [list(inspect.signature(cls).parameters) for cls in (Heir, early)] == [["x", "y", "tags"]] * 2
    assert Heir(1).x == early(1).x == 1


def test_a_class_without_a_docstring_is_given_one() -> None:
    @lean.dataclass
    class Silent:
        x: int

    assert Silent.__doc__ == "Silent(x)"


def test_the_first_call_compiles_and_later_ones_are_plain() -> None:
    @lean.dataclass
    class Late:
        """Not called yet."""

        x: int

    assert not inspect.isfunction(vars(Late)["__init__"])
    assert Late(1).x == 1
    assert inspect.isfunction(vars(Late)["__init__"])
