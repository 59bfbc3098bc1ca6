"""WorkerPoolConfig: every setting checked by name, and the machine's default size."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from corral.errors import ConfigError
from corral.pool import WorkerPoolConfig, config
from corral.pool.config import MAX_SIZE, MIN_MEMORY, available_cpus, parse_bytes

NAN = math.nan


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, 1),
        (2**40, 2**40),
        ("2GiB", 2 * 2**30),
        ("500 MB", 500 * 10**6),
        ("1g", 10**9),
        ("1.5KiB", 1536),
        (" 64 mib ", 64 * 2**20),
        ("3T", 3 * 10**12),
        ("4096", 4096),
        ("4096B", 4096),
        ("7 k", 7000),
    ],
)
def test_sizes(given: object, expected: int) -> None:
    assert parse_bytes(given, "memory_limit") == expected
    if expected >= MIN_MEMORY:
        assert WorkerPoolConfig(memory_limit=given).memory_bytes == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [1, 5, "5", MIN_MEMORY - 1, "31MiB", "7 k"])
def test_a_limit_that_no_process_could_keep_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=r"memory_limit must be at least 32 MiB, .*, not \d+ bytes; sizes have units"):
        WorkerPoolConfig(memory_limit=given)  # type: ignore[arg-type]
    assert WorkerPoolConfig(memory_limit=MIN_MEMORY).memory_bytes == MIN_MEMORY


@pytest.mark.parametrize(
    "given",
    [0, -1, 1.5, NAN, math.inf, True, False, "abc", "", " ", "0", "0 GiB", "-1", "1e9", "2 GiBs", "GiB", "٣", b"1", [1],
     "1" * 400],
)  # fmt: skip
def test_no_sizes(given: object) -> None:
    with pytest.raises(ConfigError, match="memory_limit must be a positive number of bytes"):
        parse_bytes(given, "memory_limit")


BAD: list[tuple[str, Any]] = [
    *(("size", value) for value in (0, -1, 1.5, "abc", "4", NAN, True, MAX_SIZE + 1)),
    *(("start_timeout", value) for value in (0, -1, "abc", NAN, math.inf, True, None)),
    *(("memory_limit", value) for value in (0, -1, "abc", NAN, True)),
    *(("max_trials_per_worker", value) for value in (0, -1, 1.5, "abc", NAN, True)),
    *(("reuse", value) for value in ("", "trials", None, True)),
    *(("fresh", value) for value in ("", "forkserver", None, 1)),
    *(("backend", value) for value in ("", "slurm", None)),
    *(("log_dir", value) for value in (1, True, b"logs")),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: repr(value).replace("'", ""))
def test_every_field_is_refused_by_name(field: str, value: Any) -> None:
    named = "size" if field == "size" else field
    with pytest.raises(ConfigError, match=named) as caught:
        WorkerPoolConfig(**{field: value})
    assert isinstance(caught.value, ValueError)


def test_what_is_given_is_kept(tmp_path: Path) -> None:
    given = WorkerPoolConfig(
        size=3, start_timeout=5, memory_limit="64MiB", max_trials_per_worker=2, reuse="worker", fresh="spawn",
        log_dir=tmp_path,
    )  # fmt: skip
    assert (given.workers, given.start_timeout, given.memory_bytes) == (3, 5, 64 * 2**20)
    assert (given.max_trials_per_worker, given.reuse, given.fresh, given.log_dir) == (2, "worker", "spawn", tmp_path)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        WorkerPoolConfig().size = 3  # type: ignore[misc]


# ---- the default size ----


@pytest.fixture
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six of this machine's processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of control group files, empty."""
    monkeypatch.setattr(config, "CGROUPS", tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.usefixtures("affinity", "cgroup")
def test_without_a_quota_the_affinity_decides() -> None:
    assert available_cpus() == 6
    assert WorkerPoolConfig().workers == 6
    assert WorkerPoolConfig(size=1).workers == 1


@pytest.mark.usefixtures("affinity")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("6000000 100000\n", 6),
        ("max 100000\n", 6),
        ("garbage\n", 6),
        ("100000 0\n", 6),
    ],
)
def test_quota_of_a_cgroup_v2(cgroup: Path, text: str, expected: int) -> None:
    write(cgroup / "cpu.max", text)
    assert available_cpus() == expected


@pytest.mark.usefixtures("affinity")
@pytest.mark.parametrize(("quota", "expected"), [("200000", 2), ("50000", 1), ("-1", 6), ("?", 6)])
def test_quota_of_a_cgroup_v1(cgroup: Path, quota: str, expected: int) -> None:
    write(cgroup / "cpu" / "cpu.cfs_quota_us", quota)
    write(cgroup / "cpu" / "cpu.cfs_period_us", "100000")
    assert available_cpus() == expected


@pytest.mark.usefixtures("cgroup")
def test_where_there_is_no_affinity_the_processors_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert available_cpus() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus() == 1
