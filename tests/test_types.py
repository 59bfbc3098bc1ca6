"""Shared data: limits are checked where they enter, and nothing can be changed behind anyone's back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

import corral.types
from corral.errors import ConfigError, FailureKind
from corral.types import (
    ConcurrencyConfig,
    TaskTrialResult,
    TrialContext,
    TrialKey,
    check_count,
    check_mode,
    check_seconds,
    check_verbosity,
    derive_seed,
)

NO_COUNT = [0, -1, 1.5, 2.0, float("nan"), "abc", "3", True, None, [1]]
NO_TIME = [0, -1, 0.0, float("nan"), float("inf"), "abc", "3", True, [1]]


def test_the_public_names_exist() -> None:
    assert all(hasattr(corral.types, name) for name in corral.types.__all__)


@pytest.mark.parametrize("value", NO_COUNT)
def test_what_is_no_count_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="retries must be a whole number of at least 1, not"):
        check_count(value, "retries")


def test_counts() -> None:
    assert check_count(1, "n") == 1
    assert check_count(0, "retries", least=0) == 0
    with pytest.raises(ConfigError, match="at least 2"):
        check_count(1, "n", least=2)


@pytest.mark.parametrize("value", NO_TIME)
def test_what_is_no_time_is_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError, match="trial_timeout must be a positive number of seconds"):
        check_seconds(value, "trial_timeout")


def test_times() -> None:
    assert check_seconds(None, "t") is None
    assert check_seconds(3, "t") == 3.0
    assert check_seconds(0.25, "t") == 0.25


@pytest.mark.parametrize("mode", ["thread", "process", "serial"])
def test_modes(mode: str) -> None:
    assert check_mode(mode, "task 'a'") == mode


@pytest.mark.parametrize("mode", ["Thread", "", None, 1])
def test_what_is_no_mode_is_refused(mode: object) -> None:
    with pytest.raises(ConfigError, match=r"task 'a': concurrency must be .*not "):
        check_mode(mode, "task 'a'")


def test_verbosities() -> None:
    assert [check_verbosity(name) for name in ("minimal", "brief", "full")] == ["minimal", "brief", "full"]
    with pytest.raises(ConfigError, match="verbosity must be"):
        check_verbosity("loud")


@pytest.mark.parametrize("name", ["global_trials", "per_task", "tool_jobs_per_trial", "configure_apps"])
@pytest.mark.parametrize("value", NO_COUNT)
def test_every_limit_is_at_least_one(name: str, value: Any) -> None:
    if name == "configure_apps" and value is None:
        return
    with pytest.raises(ValueError, match=name):
        ConcurrencyConfig(**{name: value})


@pytest.mark.parametrize("value", NO_COUNT)
def test_every_models_limit_is_at_least_one(value: Any) -> None:
    with pytest.raises(ValueError, match=r"per_model\['m'\]"):
        ConcurrencyConfig(per_model={"m": value})
    with pytest.raises(ValueError, match="per_model must map"):
        ConcurrencyConfig(per_model=5)  # type: ignore[arg-type]


def test_a_configuration_cannot_be_changed() -> None:
    given = {"m": 2}
    config = ConcurrencyConfig(global_trials=8, per_model=given)
    given["m"] = 0
    assert isinstance(config.per_model, Mapping)
    assert config.per_model["m"] == 2
    with pytest.raises(TypeError):
        config.per_model["m"] = 3  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.per_task = 3  # type: ignore[misc]
    assert config == ConcurrencyConfig(global_trials=8, per_model={"m": 2})
    assert ConcurrencyConfig() == ConcurrencyConfig(1, 1, None, 4, None)


def test_seeds_of_trials_never_change() -> None:
    # A change would give every recorded session other random numbers.
    assert derive_seed(0, "task", 0) == 2095837679540775139
    assert derive_seed(2**70, "täsk \ud800", 12) == 874109886640042261


def test_seeds_of_trials_differ() -> None:
    keys = [(seed, task, index) for seed in range(5) for task in ("a", "a1", "b") for index in range(20)]
    seeds = [derive_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_key_is_an_id() -> None:
    key = TrialKey("a", 3)
    assert str(key) == "a#3"
    assert sorted([TrialKey("b", 0), TrialKey("a", 10), TrialKey("a", 9)]) == [("a", 9), ("a", 10), ("b", 0)]
    result = TaskTrialResult("a", 3)
    assert (result.key, result.trial_id) == (key, "a#3")


@pytest.mark.parametrize(
    ("changes", "success"),
    [
        ({"score": 1.0}, True),
        ({"score": 0.1}, True),
        ({"score": 0.0}, False),
        ({"score": 1.0, "error_message": "x"}, False),
        ({"score": 1.0, "failure": FailureKind.AGENT}, False),
        ({"score": 1.0, "surrendered": True}, False),
    ],
)
def test_success(changes: dict[str, Any], success: bool) -> None:
    assert TaskTrialResult("a", 0, **changes).success is success


@pytest.mark.parametrize("kind", FailureKind)
def test_a_trial_that_failed_is_graded_only_if_it_was_the_agents_doing(kind: FailureKind) -> None:
    result = TaskTrialResult.not_graded(TrialKey("a", 1), kind, "why", duration=2.0)
    assert (result.key, result.failure, result.error_message, result.duration) == (("a", 1), kind, "why", 2.0)
    assert (result.graded, result.score, result.success) == (kind.graded, 0.0, False)


def test_results_and_contexts_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TaskTrialResult("a", 0).score = 1.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrialContext("a", 0, "s", "r", 1).seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("per_model", [{3: 1}, [("a", 1)], "a"])
def test_limits_of_models_are_by_name(per_model: Any) -> None:
    with pytest.raises(ConfigError, match="per_model must map a model's name to a number, not "):
        ConcurrencyConfig(per_model=per_model)
