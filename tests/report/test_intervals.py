"""Errors, intervals and p-values: against values worked out by hand, printed tables, and simulations of known truth."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from corral.report import BenchmarkResult
from corral.report.intervals import Estimate, adjusted, estimate, paired, t_quantile, t_tail, unpaired
from corral.report.metrics import pass_at_k, pass_hat_k
from tests.support.results import graded


@pytest.mark.parametrize(
    ("freedom", "level", "value"),
    [
        (1, 0.975, 12.706), (2, 0.975, 4.303), (5, 0.95, 2.015), (10, 0.975, 2.228), (30, 0.995, 2.750),
        (120, 0.975, 1.980),
    ],
)  # fmt: skip
def test_quantiles_are_those_of_the_printed_tables(freedom: int, level: float, value: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(value, abs=5e-4)
    assert t_tail(t_quantile(level, freedom), freedom) == pytest.approx(1 - level, rel=1e-9)


def test_students_t_in_closed_form() -> None:
    # With one degree of freedom it is Cauchy's, with two it has a root.
    for t in (0.0, 0.3, 1.0, 5.0, 400.0):
        assert t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-9)
        assert t_tail(t, 2) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), rel=1e-7)


def test_the_standard_error_is_that_of_the_tasks_means() -> None:
    # By hand: mean 0.5, squared deviations 0.04 + 0.01 + 0.09, divided by 2 and by 3.
    found = estimate([0.3, 0.4, 0.8])
    assert found.value == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(math.sqrt(0.14 / 2 / 3))


def test_figures_beyond_0_to_1_get_students_interval() -> None:
    found = estimate([2.0, 4.0, 6.0])
    half = 4.302653 * 2 / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((4 - half, 4 + half), rel=1e-6)


def wilson(v: float, n: float, t: float) -> tuple[float, float]:
    """Wilson's interval of a share of ``n`` observations by its own formula, with the quantile ``t``."""
    middle = (v + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * math.sqrt(v * (1 - v) / n + t * t / (4 * n * n))
    return middle - half, middle + half


def test_the_interval_of_shares_is_wilsons_with_students_quantile() -> None:
    tasks = [1.0] * 14 + [0.0] * 6
    found = estimate(tasks)
    # For 19 observations: v (1 - v) / SE^2 = n - 1 where every task is 0 or 1.
    assert (found.low, found.high) == pytest.approx(wilson(0.7, 19, 2.0930241), rel=1e-6)


def test_the_interval_stays_open_where_every_task_gives_the_same_end() -> None:
    none, all_ = estimate([0.0] * 10), estimate([1.0] * 10)
    assert (none.low, all_.high) == (0.0, 1.0)
    assert none.high == pytest.approx(2.262157**2 / (10 + 2.262157**2), rel=1e-6)
    assert all_.low == pytest.approx(1 - none.high)


def test_equal_figures_have_no_error_whatever_rounding_leaves() -> None:
    assert estimate([0.1] * 7).standard_error == 0.0
    found = estimate([0.1, sum([0.1] * 10) / 10, 0.1])
    assert found.standard_error == 0.0
    # Three that are the same may be so by chance: each is one observation, as where all are 0 or 1.
    assert (found.low, found.high) == pytest.approx(wilson(0.1, 3, 4.302653), rel=1e-6)


def test_tasks_that_agree_by_chance_count_for_no_more_than_their_trials() -> None:
    # One success of two, twice: no spread between the tasks, and four observations. Student's t has 1 degree here.
    found = estimate([0.5, 0.5], trials=[2, 2])
    assert (found.value, found.standard_error) == (0.5, 0.0)
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 4, 12.706205), rel=1e-6)
    # Nearly no spread is the same; the harmonic mean of two trials and eight is 3.2.
    found = estimate([0.5, 0.5 + 1e-6], trials=[2, 8])
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 6.4, 12.706205), rel=1e-4)


def test_tasks_that_differ_count_by_their_own_spread_whatever_their_trials() -> None:
    tasks = [0.0, 0.25, 0.5, 1.0, 1.0]
    assert estimate(tasks, trials=[4] * 5) == estimate(tasks)


def test_graded_scores_count_by_how_much_trials_differ() -> None:
    # Scores 0.4 and 0.6 in each of three tasks: their variance is 0.01, and not the 0.25 of successes and failures.
    found = estimate([0.5, 0.5, 0.5], trials=[2, 2, 2], variance=0.01)
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 6 * 0.25 / 0.01, 4.302653), rel=1e-6)
    # Beyond 0 to 1: scores 1 and 3 in each of two tasks, so four that have the variance 1.
    found = estimate([2.0, 2.0], trials=[2, 2], variance=1.0)
    assert (found.low, found.high) == pytest.approx((2 - 12.706205 / 2, 2 + 12.706205 / 2), rel=1e-6)
    # No trial differs from another: each task is one observation.
    found = estimate([0.5, 0.5], trials=[2, 2], variance=0.0)
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 2, 12.706205), rel=1e-6)


def test_a_session_says_how_often_each_task_was_tried() -> None:
    scores = {"a": [0.4, 0.6], "b": [0.1, 0.9] * 4}
    records = [graded(name, index, score) for name, row in scores.items() for index, score in enumerate(row)]
    found = BenchmarkResult.collect("s", scores, records).average_score_estimate()
    # As exact as 2 * 2 / (1/2 + 1/8) trials. Their variance: 0.01 in one task, 0.16 in the other, both count alike.
    assert found.standard_error == 0.0
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 6.4 * 0.25 / 0.085, 12.706205), rel=1e-6)
    halves = [replace(record, surrendered=record.trial_index % 2 == 0) for record in records]
    result = BenchmarkResult.collect("s", scores, halves)
    for rated in (result.success_rate_estimate(), result.pass_at_k_estimate(1), result.pass_hat_k_estimate(1)):
        assert (rated.low, rated.high) == pytest.approx(wilson(0.5, 6.4, 12.706205), rel=1e-6)


@pytest.mark.parametrize("figures", [[], [0.5], [0.5, math.nan]])
def test_what_cannot_be_estimated_is_nan(figures: list[float]) -> None:
    found = estimate(figures)
    assert all(map(math.isnan, (found.standard_error, found.low, found.high)))


# --- coverage: how often the interval holds the truth ---


def coverage(make: Callable[[random.Random], tuple[Estimate, float]], runs: int = 2000, seed: int = 7) -> float:
    random_ = random.Random(seed)
    hits = 0
    for _ in range(runs):
        found, truth = make(random_)
        hits += found.low <= truth <= found.high
    return hits / runs


def of_trials(tasks: list[list[Any]], figure: Callable[[int, int], float]) -> Estimate:
    """The estimate of a figure that comes from each task's number of trials and of successes."""
    trials = [len(task) for task in tasks]
    return estimate(map(figure, trials, map(sum, tasks)), trials)


def rate(n: int, c: int) -> float:
    return c / n


def benchmark(random_: random.Random) -> tuple[list[list[bool]], float, float]:
    """A benchmark from a population of tasks: each task's trials, and the parameters of how hard its tasks are."""
    tasks, trials = random_.choice((20, 30, 50, 100)), random_.choice((2, 3, 5, 8))
    a, b = random_.choice(((0.5, 0.5), (2, 2), (1, 4), (4, 1), (1, 1), (3, 6)))
    chances = [random_.betavariate(a, b) for _ in range(tasks)]
    return [[random_.random() < chance for _ in range(trials)] for chance in chances], a, b


def test_average_score_covers_the_truth_at_its_level() -> None:
    def make(random_: random.Random) -> tuple[Estimate, float]:
        tasks, a, b = benchmark(random_)
        return of_trials(tasks, rate), a / (a + b)

    assert 0.94 <= coverage(make) <= 0.965


def test_pass_at_k_covers_the_truth_at_its_level() -> None:
    def make(random_: random.Random) -> tuple[Estimate, float]:
        tasks, a, b = benchmark(random_)
        # 1 - E (1 - p)^2 for Beta(a, b)
        truth = 1 - b * (b + 1) / ((a + b) * (a + b + 1))
        return of_trials(tasks, lambda n, c: pass_at_k(n, c, 2)), truth

    assert 0.94 <= coverage(make) <= 0.965


def test_pass_hat_k_covers_the_truth_at_its_level() -> None:
    def make(random_: random.Random) -> tuple[Estimate, float]:
        tasks, a, b = benchmark(random_)
        truth = a * (a + 1) / ((a + b) * (a + b + 1))
        return of_trials(tasks, lambda n, c: pass_hat_k(n, c, 2)), truth

    assert 0.94 <= coverage(make) <= 0.965


def test_continuous_scores_cover_the_truth_at_their_level() -> None:
    def make(random_: random.Random) -> tuple[Estimate, float]:
        centres = [random_.betavariate(2, 3) for _ in range(random_.choice((20, 40, 80)))]
        return of_scores([[random_.betavariate(10 * c, 10 * (1 - c)) for _ in range(3)] for c in centres]), 0.4

    assert 0.94 <= coverage(make) <= 0.965


def of_scores(tasks: list[list[float]]) -> Estimate:
    """The estimate of the average of such scores; as many of each task."""
    variance = statistics.pvariance([score for task in tasks for score in task])
    return estimate([sum(task) / len(task) for task in tasks], [len(task) for task in tasks], variance)


@pytest.mark.parametrize(("tasks", "trials", "chance"), [(2, 2, 0.4), (2, 3, 0.4), (3, 2, 0.4), (3, 3, 0.35)])
def test_few_tasks_and_trials_cover_the_truth_though_they_agree_at_times(
    tasks: int, trials: int, chance: float
) -> None:
    """By their spread alone 73 to 90 % of the intervals hold it: the others have no width."""

    def make(random_: random.Random) -> tuple[Estimate, float]:
        found = [[random_.random() < chance for _ in range(trials)] for _ in range(tasks)]
        return of_trials(found, rate), chance

    assert coverage(make) >= 0.95


def test_the_limit_leaves_many_tasks_at_their_level() -> None:
    """Also where all are alike, unequally often tried, or nearly always solved."""

    def make(random_: random.Random) -> tuple[Estimate, float]:
        chance = random_.choice((0.05, 0.4, 0.95))
        trials = [random_.choice((2, 3, 8)) for _ in range(random_.choice((50, 100)))]
        return of_trials([[random_.random() < chance for _ in range(count)] for count in trials], rate), chance

    assert 0.94 <= coverage(make) <= 0.97


def test_graded_scores_of_few_tasks_cover_the_truth() -> None:
    def make(random_: random.Random) -> tuple[Estimate, float]:
        return of_scores([[random_.choice((0.0, 0.5, 1.0)) for _ in range(2)] for _ in range(2)]), 0.5

    assert coverage(make, runs=1000) >= 0.95


# --- two runs ---


def test_a_paired_difference_by_hand() -> None:
    # Differences 0.1, 0.3, 0.2: mean 0.2, deviation 0.1, error 0.1 / sqrt 3; t = 3.4641 with 2 degrees of freedom.
    found = paired([0.5, 0.2, 0.4], [0.6, 0.5, 0.6])
    assert found.value == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.1 / math.sqrt(3))
    t = 2 * math.sqrt(3)
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert found.low < 0 < found.high


def test_pairing_sees_what_the_difficulty_of_the_tasks_hides() -> None:
    before = [index / 20 for index in range(20)]
    after = [value + 0.02 + 0.01 * (index % 2) for index, value in enumerate(before)]
    assert paired(before, after).p_value < 1e-9
    assert unpaired(before, after).p_value > 0.7


def test_equal_runs_do_not_differ() -> None:
    assert paired([0.5, 0.7], [0.5, 0.7]).p_value == 1.0
    assert unpaired([1.0, 1.0], [1.0, 1.0]).p_value == 1.0


def test_differences_without_spread_get_the_p_value_of_permutations() -> None:
    assert paired([0.0] * 5, [0.5] * 5).p_value == 2 / 2**5
    assert unpaired([0.0] * 3, [1.0] * 3).p_value == 2 / math.comb(6, 3)
    assert unpaired([0.0] * 2, [1.0] * 3).p_value == 1 / math.comb(5, 2)
    assert unpaired([0.1] * 6, [sum([0.1] * 3) / 3] * 6).standard_error == 0.0


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_what_rounding_leaves_is_no_spread_and_no_difference(scale: float) -> None:
    third = (0.1 + 0.2) * scale, 0.3 * scale
    assert third[0] != third[1]
    for run in (paired, unpaired):
        assert run(third, third[::-1]).p_value == 1.0, run
        assert run(third, [0.3 * scale] * 2).p_value == 1.0, run
    assert unpaired(third, [0.5 * scale] * 2).p_value == 2 / math.comb(4, 2)
    assert paired(third, [0.5 * scale] * 2).p_value == 2 / 2**2
    assert unpaired(third, [0.5 * scale] * 2).standard_error == 0.0


def test_a_spread_that_is_small_but_real_is_judged_by_t() -> None:
    assert unpaired([0.3, 0.3 + 1e-9], [0.5, 0.5]).p_value < 1e-6


def test_welch_by_hand() -> None:
    # Groups 1, 2, 3 and 2, 4, 6: errors squared 1/3 and 4/3, together 5/3; freedom (25/9) / (1/18 + 8/9).
    found = unpaired([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert found.standard_error == pytest.approx(math.sqrt(5 / 3))
    freedom = (25 / 9) / (1 / 18 + 16 / 18)
    assert found.p_value == pytest.approx(2 * t_tail(2 / math.sqrt(5 / 3), freedom))


def test_single_trials_have_no_difference_to_judge() -> None:
    found = unpaired([0.5], [0.7, 0.9])
    assert found.value == pytest.approx(0.3)
    assert math.isnan(found.p_value)


def test_false_alarms_of_the_paired_test_are_as_rare_as_it_says() -> None:
    random_ = random.Random(3)
    alarms = 0
    for _ in range(2000):
        chances = [random_.betavariate(1, 1) for _ in range(30)]
        runs = [[sum(random_.random() < chance for _ in range(4)) / 4 for chance in chances] for _ in range(2)]
        alarms += paired(*runs).p_value < 0.05
    assert 0.04 <= alarms / 2000 <= 0.06


def test_holm_by_hand() -> None:
    assert adjusted([0.01, 0.04, 0.03, math.nan]) == pytest.approx([0.03, 0.06, 0.06, math.nan], nan_ok=True)
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


def test_pass_at_k_is_the_share_of_all_draws_that_hold_a_success() -> None:
    for n in range(1, 9):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            draws = list(itertools.combinations(range(n), k))
            assert pass_at_k(n, c, k) == sum(any(i < c for i in draw) for draw in draws) / len(draws)
            assert pass_hat_k(n, c, k) == sum(all(i < c for i in draw) for draw in draws) / len(draws)
