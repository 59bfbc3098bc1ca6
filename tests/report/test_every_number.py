"""Every number of a report, worked out a second time: with numpy, by counting, by integrating, by permuting."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from corral.errors import FailureKind
from corral.report import BenchmarkResult, Cost
from corral.report.comparison import compare
from corral.report.intervals import paired, unpaired
from corral.types import Attempt, TaskTrialResult, Timings
from tests.support.results import graded, lost

Floats = npt.NDArray[np.float64]

KINDS = (FailureKind.WORKER_DIED, FailureKind.INFRASTRUCTURE, FailureKind.TRIAL_TIMEOUT, FailureKind.NOT_RUN)
K_VALUES = (1, 2, 3, 5)
PRICES = {"prompt": 3.0, "details.cached": -1.5}


def session(seed: int, tasks: int, trials: int) -> BenchmarkResult:
    """A session with scores of all sorts, failures, surrenders, and trials without a record."""
    dice = random.Random(seed)
    records: list[TaskTrialResult] = []
    for task, index in itertools.product(range(tasks), range(trials)):
        name = f"task {task}"
        if (chance := dice.random()) < 0.1:
            continue  # no record
        record = graded(name, index, dice.choice([0.0, 1.0, 0.25, dice.random()]))
        if chance < 0.25:
            record = lost(name, index, dice.choice(KINDS))
        elif chance < 0.3:
            record = replace(record, score=0.0, surrendered=True)
        records.append(replace(
            record,
            token_usage={"prompt": dice.randrange(1000), "details": {"cached": dice.randrange(50)}, "name": "x"},
            timings=Timings(*(dice.random() for _ in range(4))),
            state={**record.state, "tool_calls": [{"duration": dice.random() / 4} for _ in range(dice.randrange(5))]},
            attempts=tuple(Attempt(n, peak_rss=dice.randrange(10**9)) for n in range(1, dice.randrange(1, 4))),
            duration=dice.random(),
        ))  # fmt: skip
    return BenchmarkResult.collect(
        "s", [f"task {task}" for task in range(tasks)], records, trials_per_task=trials, k_values=K_VALUES,
        seed=seed, wall_seconds=3.5, metrics=(Cost(PRICES),),
    )  # fmt: skip


# ---- the second way ----


@cache
def quantile(freedom: int) -> float:
    """Student's 97.5 % quantile: from the integral of its density, by Simpson's rule."""
    scale = math.gamma((freedom + 1) / 2) / math.sqrt(freedom * math.pi) / math.gamma(freedom / 2)

    def below(t: float) -> float:
        x = np.linspace(0.0, t, 20_001)
        y = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
        return 0.5 + float((y[0] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum() + y[-1]) * (x[1] - x[0]) / 3)

    low, high = 0.0, 20.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < 0.975 else (low, middle)
    return low


def estimated(figures: list[float], at_most: float = math.inf) -> dict[str, Any]:
    """A mean over tasks with its error and interval: by the equation that Wilson's formula solves.

    ``at_most``: how many observations of 0 or 1 are as exact as all trials, were these independent.
    """
    values = np.array(figures)
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))
    # As many as give this error; each task is one observation where nothing differs.
    observations = min(mean * (1 - mean) / error**2 if error > 1e-12 else math.inf, at_most)
    if mean in (0, 1) or math.isinf(observations):
        observations = len(values)

    def is_outside(p: float) -> bool:
        """Whether the mean is further from ``p`` than were to be expected, were ``p`` the truth."""
        return abs(mean - p) > quantile(len(values) - 1) * math.sqrt(p * (1 - p) / observations)

    return {
        "value": mean, "standard_error": error, "low": bisected(is_outside, 0.0, mean),
        "high": bisected(is_outside, 1.0, mean),
    }  # fmt: skip


def bisected(is_outside: Callable[[float], bool], outer: float, inner: float) -> float:
    """Where the interval ends between an end of the scale and the mean."""
    if not is_outside(outer):
        return outer
    for _ in range(100):
        middle = (outer + inner) / 2
        outer, inner = (middle, inner) if is_outside(middle) else (outer, middle)
    return inner


def drawn(successes: list[bool], k: int, judge: Any) -> float:
    """The share of all draws of k trials for which ``judge`` (any, all) holds."""
    draws = list(itertools.combinations(successes, k))
    return sum(bool(judge(draw)) for draw in draws) / len(draws)


def outcomes(result: BenchmarkResult) -> dict[str, list[tuple[float, bool, bool]]]:
    """By task, of each planned trial: score, success, graded."""
    found = {}
    for name in result.task_results:
        rows = [(0.0, False, False)] * result.trials_per_task
        for trial in result.trials:
            if trial.task_id == name:
                well = trial.graded and trial.failure is None and not trial.surrendered and trial.score > 0
                rows[trial.trial_index] = (trial.score if trial.graded else 0.0, well, trial.graded)
        found[name] = rows
    return found


@pytest.mark.parametrize(("seed", "tasks", "trials"), [(1, 20, 5), (2, 7, 6), (3, 2, 8), (4, 40, 5)])
def test_a_report(seed: int, tasks: int, trials: int, tmp_path: Path) -> None:
    result = session(seed, tasks, trials)
    report = json.loads(result.generate_report(tmp_path / "report.json").read_text("utf-8"))
    rows = outcomes(result)
    check_counts(report, result, rows)
    check_scores(report, rows)
    check_draws(report, rows)
    check_resources(report, result)
    for name, task in report["tasks"].items():
        check_task(task, rows[name])
    assert report.keys() == CHECKED | {
        "schema", "session", "run_name", "model", "seed", "created", "wall_s", "trials_per_task", "k_values",
        "settings", "pool", "journal", "tasks", "statistics",
    }  # fmt: skip


CHECKED = {
    "planned", "graded", "not_graded", "failures", "complete", "average_score", "average_score_bounds", "total_score",
    "pass_at_k", "pass_at_k_bounds", "pass_hat_k", "pass_hat_k_bounds", "token_usage", "time", "peak_rss", "metrics",
}  # fmt: skip


def check_counts(report: dict[str, Any], result: BenchmarkResult, rows: Any) -> None:
    planned = [row for task in rows.values() for row in task]
    records = list(result.trials)
    assert report["planned"] == len(planned)
    assert report["graded"] == sum(graded for _, _, graded in planned)
    not_graded = Counter(str(trial.failure) for trial in records if not trial.graded)
    not_graded["cancelled"] += len(planned) - len(records)
    assert report["not_graded"] == dict(+not_graded)
    failed = Counter(str(trial.failure) for trial in records if trial.failure is not None)
    failed["cancelled"] += len(planned) - len(records)
    assert report["failures"] == dict(+failed)
    assert report["graded"] + sum(report["not_graded"].values()) == report["planned"]
    assert report["complete"] is (report["graded"] == report["planned"])


def check_scores(report: dict[str, Any], rows: Any) -> None:
    scores = np.array([[score for score, _, _ in task] for task in rows.values()])
    known = np.array([[graded for _, _, graded in task] for task in rows.values()])
    well = np.array([[well for _, well, _ in task] for task in rows.values()])
    assert report["total_score"] == pytest.approx(scores.sum())
    assert report["average_score"] == pytest.approx(scores.mean(axis=1).mean())
    best = np.where(known, scores, 1.0).mean(axis=1).mean()
    assert report["average_score_bounds"] == pytest.approx([scores.mean(axis=1).mean(), best])
    statistics = report["statistics"]
    average = scores.mean()
    at_most = scores.size * average * (1 - average) / scores.var()
    assert statistics["average_score"] == pytest.approx(estimated(list(scores.mean(axis=1)), at_most), abs=1e-9)
    assert statistics["success_rate"] == pytest.approx(estimated(list(well.mean(axis=1)), well.size), abs=1e-9)


def check_draws(report: dict[str, Any], rows: Any) -> None:
    for name, judge in (("pass_at_k", any), ("pass_hat_k", all)):
        for k in K_VALUES:
            worst = [drawn([well for _, well, _ in task], k, judge) for task in rows.values()]
            best = [drawn([well or not graded for _, well, graded in task], k, judge) for task in rows.values()]
            assert report[name][str(k)] == pytest.approx(np.mean(worst))
            assert report[f"{name}_bounds"][str(k)] == pytest.approx([np.mean(worst), np.mean(best)])
            wanted = estimated(worst, sum(map(len, rows.values())))
            assert report["statistics"][name][str(k)] == pytest.approx(wanted, abs=1e-9), (name, k)


def check_resources(report: dict[str, Any], result: BenchmarkResult) -> None:
    trials = list(result.trials)
    prompt = sum(trial.token_usage["prompt"] for trial in trials)
    cached = sum(trial.token_usage["details"]["cached"] for trial in trials)
    assert report["token_usage"] == {"prompt": prompt, "details": {"cached": cached}}
    cost = (3.0 * prompt - 1.5 * cached) / 1e6
    assert report["metrics"]["cost"] == pytest.approx({"total": cost, "per_trial": cost / len(trials)})
    tools = np.array([sum(call["duration"] for call in trial.state["tool_calls"]) for trial in trials])
    times = np.array([[t.timings.queued, t.timings.configured, t.timings.agent, t.timings.scored] for t in trials])
    columns = {
        "queued": times[:, 0], "configured": times[:, 1], "agent": np.maximum(0, times[:, 2] - tools), "tools": tools,
        "scored": times[:, 3],
    }  # fmt: skip
    assert report["time"].keys() == columns.keys()
    for name, seconds in columns.items():
        assert report["time"][name] == pytest.approx({"total_s": seconds.sum(), "mean_s": seconds.mean()})
    assert report["peak_rss"] == max(attempt.peak_rss or 0 for trial in trials for attempt in trial.attempts)


def check_task(task: dict[str, Any], rows: list[tuple[float, bool, bool]]) -> None:
    scores = [score for score, _, _ in rows]
    own = estimated(scores)
    assert (task["planned"], task["scores"]) == (len(rows), scores)
    assert (task["graded"], task["successes"]) == (sum(row[2] for row in rows), sum(row[1] for row in rows))
    assert sum(task["not_graded"].values()) == task["planned"] - task["graded"]
    assert task["average_score"] == pytest.approx(np.mean(scores))
    best = np.mean([score if graded else 1.0 for score, _, graded in rows])
    assert task["average_score_bounds"] == pytest.approx([np.mean(scores), best])
    assert task["standard_error"] == pytest.approx(own["standard_error"], abs=1e-12)
    assert task["interval"] == pytest.approx([own["low"], own["high"]], abs=1e-9)
    for name, judge in (("pass_at_k", any), ("pass_hat_k", all)):
        wanted = {str(k): drawn([well for _, well, _ in rows], k, judge) for k in K_VALUES}
        assert task[name] == pytest.approx(wanted)


# ---- two runs ----


def flipped(differences: Floats) -> float:
    """The p-value of a mean difference by all flips of the tasks' signs."""
    signs = np.array(list(itertools.product((1, -1), repeat=len(differences))))
    means = np.abs(signs @ differences)
    return float(np.mean(means >= abs(differences.sum()) - 1e-9))


def split(before: Floats, after: Floats) -> float:
    """The p-value of the difference of two groups' means by all ways to split their values."""
    values, size = np.concatenate([before, after]), len(before)
    apart = abs(after.mean() - before.mean())
    found = []
    for chosen in itertools.combinations(range(len(values)), size):
        mask = np.zeros(len(values), bool)
        mask[list(chosen)] = True
        found.append(abs(values[~mask].mean() - values[mask].mean()) >= apart - 1e-9)
    return float(np.mean(found))


def test_p_values_of_pairs_agree_with_all_sign_flips() -> None:
    dice = np.random.default_rng(5)
    found = []
    for _ in range(300):
        hard = dice.random(12)
        before, after = (np.clip(hard + dice.normal(shift, 0.15, 12), 0, 1) for shift in (0, dice.choice([0, 0.1])))
        found.append((paired(list(before), list(after)).p_value, flipped(after - before)))
    check_agreement(np.array(found))


def check_agreement(found: Floats) -> None:
    """Pairs of p-values, ours and that of all permutations: closest where it matters, and leaning to neither side."""
    ours, exact = found.T
    off = np.abs(ours - exact)
    for below, most in ((0.05, 0.03), (0.2, 0.06), (1.01, 0.2)):
        assert (exact < below).sum() > 30
        assert off[exact < below].max() < most
    assert abs((ours - exact).mean()) < 0.005


def test_p_values_of_groups_agree_with_all_splits() -> None:
    dice = np.random.default_rng(6)
    found = []
    for _ in range(200):
        before, after = (dice.normal(shift, 1, 6) for shift in (0, dice.choice([0, 1.0])))
        found.append((unpaired(list(before), list(after)).p_value, split(before, after)))
    check_agreement(np.array(found))


def test_a_comparison_of_two_reports() -> None:
    before, after = session(11, 12, 5), session(12, 12, 5)
    found = compare(before, after)
    tables = [outcomes(result) for result in (before, after)]
    scores = [np.array([[row[0] for row in task] for task in rows.values()]) for rows in tables]
    differences = scores[1].mean(axis=1) - scores[0].mean(axis=1)
    error = differences.std(ddof=1) / math.sqrt(12)
    assert found.average_score.value == pytest.approx(differences.mean())
    assert found.average_score.standard_error == pytest.approx(error)
    reach = quantile(11) * error
    ends = (differences.mean() - reach, differences.mean() + reach)
    assert (found.average_score.low, found.average_score.high) == pytest.approx(ends, abs=1e-9)
    assert found.average_score.p_value == pytest.approx(flipped(differences), abs=0.03)
    for k in K_VALUES:
        at = [np.array([drawn([row[1] for row in task], k, any) for task in rows.values()]) for rows in tables]
        assert found.pass_at_k[str(k)].value == pytest.approx((at[1] - at[0]).mean())
    for task, row in zip(found.tasks, np.stack(scores, axis=1), strict=True):
        assert task.difference.value == pytest.approx(row[1].mean() - row[0].mean())
        assert task.difference.standard_error == pytest.approx(math.sqrt((row.var(axis=1, ddof=1) / 5).sum()))
