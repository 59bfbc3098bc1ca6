"""Figures known by hand, and by counting every draw."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest

from corral.errors import ConfigError
from corral.report import metrics
from corral.report.metrics import Metric, evaluate, pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [
        (3, 1, 2, 2 / 3, 0.0),
        (3, 1, 3, 1.0, 0.0),
        (3, 2, 2, 1.0, 1 / 3),
        (5, 3, 2, 9 / 10, 3 / 10),
        (4, 0, 4, 0.0, 0.0),
        (4, 4, 4, 1.0, 1.0),
        (1, 1, 1, 1.0, 1.0),
        (2, 1, 1, 0.5, 0.5),
    ],
)
def test_known_values(n: int, c: int, k: int, at: float, hat: float) -> None:
    assert pass_at_k(n, c, k) == at
    assert pass_hat_k(n, c, k) == hat


@pytest.mark.parametrize("n", range(1, 8))
def test_equal_the_mean_over_every_draw(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(statistics.mean(map(any, draws)), abs=1e-15)
        assert pass_hat_k(n, c, k) == pytest.approx(statistics.mean(map(all, draws)), abs=1e-15)


@pytest.mark.parametrize("figure", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(
    ("n", "c", "k"),
    [
        (2, 0, 5), (3, 1, 4), (0, 0, 1), (0, 0, 0), (3, 1, 0), (3, 1, -1), (3, 4, 1), (3, -1, 1), (-1, 0, 1),
        (3, 1, 1.0), (3, 1, True), (3, 1.5, 1), (3, 1, "1"), (3, 1, math.nan),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_refused(figure: Any, n: Any, c: Any, k: Any) -> None:
    with pytest.raises(ConfigError):
        figure(n, c, k)


def test_the_refusal_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"k=5 needs at least 5 trials of each task, and there are 3 trials"):
        pass_at_k(3, 1, 5)


def test_exact_for_large_numbers() -> None:
    assert pass_at_k(100_000, 1, 3) == 3 / 100_000
    assert pass_at_k(1000, 1, 999) == 0.999
    assert 0 < pass_at_k(10**9, 1, 1) == 1e-9
    assert pass_hat_k(10**12, 10**12 - 1, 2) == 1 - 2e-12
    assert 0 < pass_hat_k(2000, 1000, 500) < pass_hat_k(2000, 1001, 500) < 1e-100


def test_bounds_are_the_figure_with_the_rest_failed_and_succeeded() -> None:
    assert metrics.pass_at_k_bounds(3, 1, 1, 2) == (2 / 3, 1.0)
    assert metrics.pass_hat_k_bounds(3, 1, 1, 2) == (0.0, 1 / 3)
    assert metrics.pass_at_k_bounds(3, 2, 0, 2) == (1.0, 1.0)
    assert metrics.score_bounds([0.5, None, None, 1.0]) == (0.375, 0.875)
    assert metrics.mean_bounds([(0.0, 1.0), (0.5, 0.5)]) == (0.25, 0.75)


def test_a_mean_never_raises() -> None:
    assert math.isnan(metrics.mean([]))
    assert math.isnan(metrics.mean([math.inf, -math.inf]))
    assert math.isnan(metrics.mean([1.0, math.nan]))
    assert metrics.mean([0.1] * 10) == 0.1


class Constant:
    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def compute(self, result: Any) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class Nameless:
    def compute(self, result: Any) -> float:
        return 1.0


def test_a_broken_metric_leaves_its_error_text() -> None:
    broken = [Constant("a", ZeroDivisionError("no trials")), Constant("b", SystemExit(3)), Constant("c", 0.5)]
    values = evaluate(broken, object())
    assert values == {"a": "ZeroDivisionError: no trials", "b": "SystemExit: 3", "c": 0.5}


def test_metrics_do_not_hide_each_other() -> None:
    nameless: Any = Nameless()
    assert evaluate([Constant("a", 1), Constant("a", 2), nameless], None) == {"a": 1, "a (2)": 2, "Nameless": 1.0}
    assert isinstance(Constant("a", 1), Metric)
    assert not isinstance(nameless, Metric)


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        evaluate([Constant("a", KeyboardInterrupt())], None)
