"""What counts as data, and what is refused by name."""

from __future__ import annotations

import math
import threading
from collections import Counter, OrderedDict, deque, namedtuple
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

from corral.data import array_bytes, to_data
from corral.errors import SerializationError


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


@dataclass
class Reading:
    value: float
    colours: tuple[Colour, ...] = ()


class Model(BaseModel):
    path: PurePosixPath
    when: date


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        ({"a": [1, 2.5, True, "x"]}, {"a": [1, 2.5, True, "x"]}),
        ((1, deque([2])), [1, [2]]),
        ({"b", "a"}, ["a", "b"]),
        ({3, "a", 1}, ["a", 1, 3]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Text("t"), "t"),
        (Reading(1.5, (Colour.RED,)), {"value": 1.5, "colours": ["red"]}),
        (Model(path=PurePosixPath("/a"), when=date(2024, 1, 2)), {"path": "/a", "when": "2024-01-02"}),
        (Pair(1, 2), [1, 2]),
        (OrderedDict(x=Counter("aa")), {"x": {"a": 2}}),
        ({1: "a", None: "b", 2.5: "c", Colour.RED: "d"}, {"1": "a", "null": "b", "2.5": "c", "red": "d"}),
        (range(3), [0, 1, 2]),
        ({"a": 1}.items(), [["a", 1]]),
        (Decimal("1.10"), "1.10"),
        (timedelta(seconds=90), 90.0),
        (b"caf\xc3\xa9", "café"),
        ("\ud800", "\ud800"),
    ],
)  # fmt: skip
def test_data(value: Any, data: Any) -> None:
    found = to_data(value, "here")
    assert found == data
    assert type(found) is type(data)


def test_nan_and_infinities_are_kept() -> None:
    assert math.isnan(to_data([math.nan], "here")[0])
    assert to_data(-math.inf, "here") == -math.inf


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append({"again": value})
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "object"),
        (threading.Lock(), "_thread.lock"),
        (ValueError("x"), "ValueError.*it is no data"),
        (ValueError, "type.*it is no data"),
        ((i for i in range(2)), "generator"),
        (lambda: 1, "function"),
        (1j, "complex"),
        (b"\xff", "no UTF-8"),
        ({(1, 2): 3}, "cannot be a key"),
        ({1: "a", "1": "b"}, "two of its keys become '1'"),
        (cyclic(), "contains itself"),
        (deep(), "nested too deeply"),
    ],
)
def test_what_is_no_data_is_refused_by_place_and_type(value: Any, text: str) -> None:
    with pytest.raises(SerializationError, match=f"here gave a .*{text}"):
        to_data(value, "here")


def test_one_value_in_two_places_is_no_cycle() -> None:
    shared = [1]
    assert to_data([shared, shared], "here") == [[1], [1]]


def test_what_to_do_with_what_is_no_data_is_said() -> None:
    with pytest.raises(SerializationError, match=r"here gave a value of type complex, .* as \[x.real, x.imag\]"):
        to_data({"z": 1 + 2j}, "here")


def test_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    scalars = [numpy.float64(1.5), numpy.int32(2), numpy.bool_(True), numpy.longdouble(0.5), numpy.str_("s")]
    data = to_data(scalars, "here")
    assert data == [1.5, 2, True, 0.5, "s"]
    assert [type(item) for item in data] == [float, int, bool, float, str]
    array = numpy.arange(4.0).reshape(2, 2)
    assert to_data({"a": array}, "here")["a"] is array
    assert to_data(array, "here", arrays="list") == [[0.0, 1.0], [2.0, 3.0]]
    copied = to_data({"a": array}, "here", arrays="copy")["a"]
    assert copied is not array
    assert (copied == array).all()
    assert to_data(array, "here", arrays="describe") == [[0.0, 1.0], [2.0, 3.0]]
    assert to_data(numpy.zeros((500, 3)), "here", arrays="describe") == "<array float64 (500, 3)>"
    assert array_bytes({"a": [array, {"b": array}], "c": 1, "d": "x"}) == 64
    with pytest.raises(SerializationError, match="array of Python objects"):
        to_data(numpy.array([object()]), "here")
