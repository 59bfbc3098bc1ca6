"""Every argument of ``bench`` that cannot be used is refused in one sentence that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral import ConcurrencyConfig
from corral.errors import ConfigError
from corral.pool import WorkerPoolConfig
from corral.settings import RunSettings, check_settings

DEFAULTS: dict[str, Any] = {
    "task_ids": None, "trials_per_task": 1, "k_values": None, "max_concurrency": 1, "max_concurrency_per_task": 1,
    "concurrency": None, "worker_pool": False, "session_id": None, "run_name": None, "resume": True,
    "retry_errors": False, "retries": 1, "seed": None, "trial_timeout": None, "tool_timeout": None,
    "configure_timeout": None, "tool_verbosity": None, "verbose": False, "progress": None,
}  # fmt: skip

NO_COUNTS = [0, -1, 1.5, 2.0, "abc", "3", float("nan"), float("inf"), True, None]


def settings(**given: Any) -> RunSettings:
    return check_settings(**{**DEFAULTS, **given})


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize("name", ["trials_per_task", "max_concurrency", "max_concurrency_per_task"])
def test_counts(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a whole number of at least 1, not "):
        settings(**{name: value})


@pytest.mark.parametrize("value", [0, float("nan"), "abc"])
def test_scalars_are_checked_beside_a_concurrency_that_takes_their_place(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_concurrency must be"):
        settings(max_concurrency=value, concurrency=ConcurrencyConfig(2))


def test_a_concurrency_takes_the_place_of_the_scalars() -> None:
    limits = ConcurrencyConfig(3, per_task=2)
    assert settings(concurrency=limits, max_concurrency=9).limits is limits
    assert settings(max_concurrency=9, max_concurrency_per_task=4).limits == ConcurrencyConfig(9, per_task=4)


def test_concurrency_must_be_one() -> None:
    with pytest.raises(ConfigError, match="concurrency must be a ConcurrencyConfig, not 4"):
        settings(concurrency=4)


@pytest.mark.parametrize("value", [-1, 1.5, "2", True, None])
def test_retries(value: Any) -> None:
    with pytest.raises(ConfigError, match="retries must be a whole number of at least 0"):
        settings(retries=value)


def test_no_retries_at_all() -> None:
    assert settings(retries=0).retries == 0


@pytest.mark.parametrize("value", [0, -2, float("nan"), float("inf"), "5", True])
@pytest.mark.parametrize("name", ["trial_timeout", "tool_timeout", "configure_timeout"])
def test_time_limits(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a positive number of seconds"):
        settings(**{name: value})


def test_time_limits_are_seconds() -> None:
    assert settings(trial_timeout=2).trial_timeout == 2.0


@pytest.mark.parametrize(
    ("k_values", "says"),
    [
        ([4], "k = 4 needs at least 4 trials per task, and trials_per_task is 3"),
        ([1, 0], "k_values must be a whole number of at least 1, not 0"),
        ([1.0], "k_values must be a whole number"),
        ([True], "k_values must be a whole number"),
        ("13", "k_values must be a list of whole numbers"),
        (3, "k_values must be a list of whole numbers"),
        ([], "k_values is empty"),
    ],
)
def test_k(k_values: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(trials_per_task=3, k_values=k_values)


def test_k_defaults_to_one_and_all() -> None:
    assert settings(trials_per_task=1).k_values == (1,)
    assert settings(trials_per_task=5).k_values == (1, 5)
    assert settings(trials_per_task=5, k_values=(2, 1, 2)).k_values == (2, 1)


@pytest.mark.parametrize(
    ("task_ids", "says"),
    [
        ("abc", "task_ids must be a list of task ids, not 'abc'"),
        (7, "task_ids must be a list of task ids"),
        ([], "task_ids is empty"),
        (["a", 3], "task_ids must hold texts, not 3"),
        (["b", "a", "b"], "task_ids names a task twice: 'b'"),
    ],
)
def test_task_ids(task_ids: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings(task_ids=task_ids)


def test_task_ids_from_anything_that_gives_them_in_order() -> None:
    assert settings(task_ids=(task for task in "ba")).task_ids == ("b", "a")
    assert settings(task_ids={"b": 1, "a": 2}.keys()).task_ids == ("b", "a")


def test_worker_pool() -> None:
    own = WorkerPoolConfig(size=3, reuse="worker")
    assert settings(worker_pool=False).worker_pool is None
    assert settings(worker_pool=True).worker_pool == WorkerPoolConfig(size=None)
    assert settings(worker_pool=5).worker_pool == WorkerPoolConfig(size=5)
    assert settings(worker_pool=own).worker_pool is own


@pytest.mark.parametrize("value", [0, -1, 1.5, "big"])
def test_worker_pool_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^worker.pool"):
        settings(worker_pool=value)


@pytest.mark.parametrize("value", ["", "a/b", "..", "ä", "x" * 101, 7])
def test_session_ids(value: Any) -> None:
    with pytest.raises(ConfigError, match="a session id"):
        settings(session_id=value)


@pytest.mark.parametrize("value", [[[1]], [{}], ["1"], [None]])
def test_k_values_that_are_no_numbers(value: Any) -> None:
    with pytest.raises(ConfigError, match="k_values must be a whole number"):
        settings(k_values=value)


@pytest.mark.parametrize("value", [-1, 0.5, "x", True])
def test_seeds(value: Any) -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0"):
        settings(seed=value)


def test_verbosity() -> None:
    assert settings().tool_verbosity == "brief"
    with pytest.raises(ConfigError, match='verbosity must be "minimal", "brief" or "full", not \'loud\''):
        settings(tool_verbosity="loud")


@pytest.mark.parametrize("value", ["no", "false", 0, 1, None])
@pytest.mark.parametrize("name", ["resume", "retry_errors"])
def test_flags_are_no_text_that_would_count_as_true(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be True or False, not {value!r}$"):
        settings(**{name: value})


def test_a_name_of_the_run_is_text() -> None:
    with pytest.raises(ConfigError, match="run_name must be text, not 3"):
        settings(run_name=3)


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    given = settings(
        trials_per_task=numpy.int64(3), k_values=numpy.arange(1, 4), max_concurrency=numpy.int32(2),
        worker_pool=numpy.int64(2), trial_timeout=numpy.float32(1.5),
    )  # fmt: skip
    assert given.worker_pool is not None
    counts = [given.trials_per_task, *given.k_values, given.limits.global_trials, given.worker_pool.size]
    assert counts == [3, 1, 2, 3, 2, 2]
    assert {type(count) for count in counts} == {int}  # which JSON can write
    assert (given.trial_timeout, type(given.trial_timeout)) == (1.5, float)
    with pytest.raises(ConfigError, match="trials_per_task must be"):
        settings(trials_per_task=numpy.True_)


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name not in ("verbose", "progress")])
def test_what_cannot_show_itself_is_refused_all_the_same(name: str) -> None:
    with pytest.raises(ConfigError, match="a Unshowable that cannot be shown"):
        settings(**{name: Unshowable()})


def test_what_is_long_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as refused:
        settings(concurrency=list(range(100_000)))
    assert len(str(refused.value)) < 300


def test_what_the_report_tells_of_them() -> None:
    told = settings(max_concurrency=4, worker_pool=WorkerPoolConfig(reuse="worker"), trial_timeout=9).described()
    assert (told["max_concurrency"], told["worker_pool"], told["reuse"], told["trial_timeout"]) == (
        4,
        True,
        "worker",
        9,
    )
    assert (told["per_model"], told["retries"], told["tool_jobs_per_trial"]) == ({}, 1, 4)


def test_nothing_is_written_by_checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings(session_id="s")
    assert not list(tmp_path.iterdir())
