"""The figures of a report, from counts and scores alone. Pure: standard library, no clock, no files.

pass@k is the chance that at least one of k trials, drawn from the n that were made, is a success; pass^k the chance
that all k are. Both are unbiased, and computed from whole numbers, so nothing is lost for large n. A figure that does
not exist (k larger than n, no trial at all) is refused and never comes out as a number that looks valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from corral.errors import ConfigError, ErrorRecord
from corral.types import check_count, shown

Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest value that a figure could have."""


def check_k(k: object, n: int) -> int:
    """Return ``k`` if k of ``n`` trials can be drawn; raise ConfigError otherwise."""
    k = check_count(k, "k")
    if k > n:
        trials = "1 trial" if n == 1 else f"{n} trials"
        raise ConfigError(f"k={k} needs at least {k} trials of each task, and there are {trials}")
    return k


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that k of n trials, c of them successes, hold at least one success: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021, arXiv 2107.03374.
    """
    none, all_draws = _draws_without(n, c, k)
    return (all_draws - none) / all_draws


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that k of n trials, c of them successes, are all successes: C(c, k) / C(n, k).

    Yao et al. 2024, arXiv 2406.12045.
    """
    _check_successes(n, c)
    all_good, all_draws = _draws_without(n, n - c, k)
    return all_good / all_draws


def _check_successes(n: int, c: int) -> None:
    check_count(n, "n", least=0)
    if check_count(c, "c", least=0) > n:
        raise ConfigError(f"c={c} successes are more than the n={n} trials")


def _draws_without(n: int, marked: int, k: int) -> tuple[int, int]:
    """How many of all draws of k from n hold none that is marked, as (those, all), in a common proportion.

    C(n-m, k) / C(n, k) equals C(n-k, m) / C(n, m); the one with the smaller numbers is taken. Python divides whole
    numbers of any size with one correct rounding at the end.
    """
    _check_successes(n, marked)
    check_k(k, n)
    if marked < k:
        return math.comb(n - k, marked), math.comb(n, marked)
    return math.comb(n - marked, k), math.comb(n, k)


def total(values: Iterable[float]) -> float:
    """The sum, the same in any order; NaN where a value is not finite."""
    numbers = list(values)
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else math.nan


def mean(values: Iterable[float]) -> float:
    """The mean; NaN (null in a report) where there is nothing to average or a value is not finite."""
    numbers = list(values)
    return total(numbers) / len(numbers) if numbers else math.nan


def mean_bounds(bounds: Iterable[Bounds]) -> Bounds:
    """The bounds of a mean, from the bounds of what it averages."""
    pairs = list(bounds)
    return mean(low for low, _ in pairs), mean(high for _, high in pairs)


def score_bounds(scores: Iterable[float | None]) -> Bounds:
    """The bounds of a mean score; None stands for a trial that was not graded, and could be from 0 to 1."""
    known = list(scores)
    return mean(0.0 if s is None else s for s in known), mean(1.0 if s is None else s for s in known)


def pass_at_k_bounds(n: int, c: int, not_graded: int, k: int) -> Bounds:
    """pass@k if every not graded trial had been a failure, and if it had been a success."""
    return pass_at_k(n, c, k), pass_at_k(n, c + not_graded, k)


def pass_hat_k_bounds(n: int, c: int, not_graded: int, k: int) -> Bounds:
    """pass^k if every not graded trial had been a failure, and if it had been a success."""
    return pass_hat_k(n, c, k), pass_hat_k(n, c + not_graded, k)


@runtime_checkable
class Metric(Protocol):
    """A figure of your own for the report: a name, and its value from a ``BenchmarkResult``."""

    @property
    def name(self) -> str:
        """The key under which the value stands in the report."""
        ...

    def compute(self, result: Any) -> float | Mapping[str, Any]:
        """The value: a number, or a mapping of several."""
        ...


def check_metrics(metrics: Any) -> tuple[Metric, ...]:
    """The metrics that were given to a runner; ConfigError, before anything runs, for what is none."""
    if metrics is not None and not isinstance(metrics, Iterable):
        raise ConfigError(f"metrics must be a list of objects with compute(result), not {shown(metrics)}")
    given = tuple(metrics or ())
    for metric in given:
        if isinstance(metric, type) or not callable(getattr(metric, "compute", None)):
            raise ConfigError(f"metrics must be objects with a name and compute(result), not {shown(metric)}")
    return given


def evaluate(metrics: Iterable[Metric], result: Any) -> dict[str, Any]:
    """The value of each metric by name. One that raises has its error text (``TypeName: message``) in its place."""
    values: dict[str, Any] = {}
    for metric in metrics:
        name = _free_name(_name_of(metric), values)
        try:
            values[name] = metric.compute(result)
        except (Exception, SystemExit) as error:
            values[name] = str(ErrorRecord.of(error))
    return values


def _name_of(metric: object) -> str:
    try:
        return str(metric.name)  # type: ignore[attr-defined]
    except Exception:
        return type(metric).__qualname__


def _free_name(name: str, taken: Mapping[str, Any]) -> str:
    """``name``, numbered from the second metric of that name on: none hides another."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name} ({number})"
    return free
