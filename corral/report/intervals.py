"""Standard errors, confidence intervals and paired comparisons. Pure: standard library, no clock, no files.

Trials of one task are alike, so a task is a cluster: every figure here is a mean over tasks of one number per task, and
its error is that of the tasks' numbers. That is the clustered standard error of Miller 2024, arXiv 2411.00640 (section
2.2), with the correction T / (T - 1) for the number of tasks T, and it holds for any number of trials per task. It
answers: how far could the figure have come out otherwise with other tasks of the same kind, and other trials?

Where an error cannot be estimated (fewer than two tasks) it is NaN, and null in a report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from corral.report.metrics import mean

LEVEL = 0.95
"""The confidence of every interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure, its standard error, and the limits of its 95 % confidence interval."""

    value: float
    standard_error: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Difference:
    """How much greater a figure is in the second run, and the chance of a difference this large if there is none."""

    value: float
    standard_error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan


def estimate(figures: Iterable[float], trials: Sequence[int] = (), variance: float | None = None) -> Estimate:
    """The mean of one figure per task, with its clustered standard error and interval.

    Figures from 0 to 1 get the score interval of Wilson 1927 at the effective number of tasks v(1 - v) / SE^2 (Korn
    and Graubard 1998, Survey Methodology 24; compared by Franco, Little, Louis and Slud 2019, doi 10.1093/jssam/smy019)
    with Student's quantile: it stays within 0 to 1 and holds its level where plus and minus two standard errors does
    not, that is near 0 and 1 and with few tasks. Other figures get v plus and minus t SE.

    A few tasks agree by chance at times, and then SE is far too small. So where ``trials`` has each task's number of
    trials, the interval is never narrower than were they all independent: a design effect below 1 counts as 1 (Parker
    et al. 2017, Vital and Health Statistics 2(175)). ``variance`` is that of a single trial; None for v(1 - v), that of
    what is 0 or 1. Where nothing differs at all, as where every task gives 0, or 1, each counts as one observation.
    """
    numbers = list(figures)
    value, error = mean(numbers), _standard_error(numbers)
    if math.isnan(error) or math.isnan(value):
        return Estimate(value)
    believed = max(error, _independent_error(trials, value * (1 - value) if variance is None else variance))
    if believed <= _noise(numbers):
        believed = 0.0
    t = t_quantile(0.5 + LEVEL / 2, len(numbers) - 1)
    if all(0 <= number <= 1 for number in numbers):
        return Estimate(value, error, *_wilson(min(value, 1.0), believed, len(numbers), t))
    return Estimate(value, error, value - t * believed, value + t * believed)


def _independent_error(trials: Sequence[int], variance: float) -> float:
    """The standard error of a mean over tasks of their trials' means, were all trials independent of their task."""
    return math.sqrt(max(0.0, variance) * math.fsum(1 / count for count in trials)) / max(1, len(trials))


def _standard_error(numbers: Sequence[float]) -> float:
    """The standard deviation (n - 1) over the root of n; NaN for fewer than two numbers."""
    count = len(numbers)
    if count < 2:
        return math.nan
    if max(numbers) - min(numbers) <= _noise(numbers):
        return 0.0
    centre = mean(numbers)
    return math.sqrt(math.fsum((number - centre) ** 2 for number in numbers) / (count - 1) / count)


def _noise(numbers: Sequence[float]) -> float:
    """What rounding can leave between such numbers where they are equal: scores are sums and quotients of floats."""
    return 1e-12 * max(1.0, *map(abs, numbers))


def _wilson(value: float, error: float, tasks: int, t: float) -> tuple[float, float]:
    spread = value * (1 - value)
    share = t * t * error * error / spread if spread > 0 and error > 0 else t * t / tasks
    middle = (value + share / 2) / (1 + share)
    half = math.sqrt(share * spread + share * share / 4) / (1 + share)
    return max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half))


# --- Two runs ---


def paired(before: Sequence[float], after: Sequence[float]) -> Difference:
    """The mean difference over tasks that both runs have; Student's t for pairs (Miller 2024, section 4.2).

    What makes a task hard is in both figures and falls out of their difference. Where all differences are the same,
    which leaves t without a spread, the p-value is that of the sign flips: 2 / 2^T, and 1 without a difference.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    value, error = mean(differences), _standard_error(differences)
    if math.isnan(error) or math.isnan(value):
        return Difference(value)
    noise = _noise([*before, *after])
    if error <= noise:
        return Difference(value, 0.0, value, value, 1.0 if abs(value) <= noise else 2.0 ** (1 - len(differences)))
    return _by_t(value, error, len(differences) - 1)


def unpaired(before: Sequence[float], after: Sequence[float]) -> Difference:
    """The difference between the means of two groups of trials of one task; Welch 1947, Biometrika 34.

    NaN where a group has fewer than two trials. Two groups without any spread, which t cannot judge, get the p-value of
    the permutations: how many of all C(n + m, n) ways to split the trials are as far apart.
    """
    value = mean(after) - mean(before)
    errors = _standard_error(before), _standard_error(after)
    if any(map(math.isnan, (value, *errors))):
        return Difference(value)
    a, b = errors[0] ** 2, errors[1] ** 2
    noise = _noise([*before, *after])
    if math.sqrt(a + b) <= noise:
        as_far = 2 if len(before) == len(after) else 1
        p = 1.0 if abs(value) <= noise else as_far / math.comb(len(before) + len(after), len(before))
        return Difference(value, 0.0, value, value, p)
    freedom = (a + b) ** 2 / (a * a / (len(before) - 1) + b * b / (len(after) - 1))
    return _by_t(value, math.sqrt(a + b), freedom)


def _by_t(value: float, error: float, freedom: float) -> Difference:
    reach = t_quantile(0.5 + LEVEL / 2, freedom) * error
    return Difference(value, error, value - reach, value + reach, 2 * t_tail(abs(value) / error, freedom))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """p-values that may be read side by side: Holm 1979, Scandinavian Journal of Statistics 6. NaN stays NaN."""
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    corrected = [math.nan] * len(p_values)
    least = 0.0
    for rank, (p, index) in enumerate(known):
        least = max(least, min(1.0, p * (len(known) - rank)))
        corrected[index] = least
    return corrected


# --- Student's t ---


def t_tail(t: float, freedom: float) -> float:
    """The chance of a value above ``t`` >= 0 under Student's distribution (DLMF 8.17.4 with 8.17.22)."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


@lru_cache(maxsize=1024)
def t_quantile(level: float, freedom: float) -> float:
    """The value below which Student's distribution has ``level`` (0.5 to 1) of its mass, by bisection."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - level:
        low, high = high, high * 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b), regularised, by the continued fraction on the side where it converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of DLMF 8.17.22, from its tail: Lentz's method in the form of Thompson and Barnett."""
    tiny = 1e-300
    value = c = 1.0
    d = 0.0
    for n in range(1, 500):
        m = n // 2
        if n % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + step * d) or tiny)
        c = (1 + step / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
