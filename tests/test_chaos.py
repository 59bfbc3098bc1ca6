"""The chaos program: small runs of both forms lose nothing, and it would see it if they did."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.benches import bench, benches, code
from tests.support.scripts import ROOT, python

PROGRAM = ROOT / "scripts" / "chaos.py"


def figures(folder: Path, *arguments: str) -> dict[str, Any]:
    done = python(str(PROGRAM), *arguments, "--json", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    given: dict[str, Any] = json.loads(done.stdout)
    return given


def test_workers_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    given = figures(tmp_path, "--trials", "30", "--size", "2", "--every", "0.4", "--work", "0.05")
    assert given["trials planned"] == 30
    assert [given[name] for name in ("records lost", "records doubled", "wrong scores", "orphans")] == [0] * 4
    assert sum(given["kills"].values()) >= 2
    assert set(given["by kind"]) <= {"worker_died"}


def test_the_supervisor_is_killed_and_the_report_is_the_same(tmp_path: Path) -> None:
    given = figures(tmp_path, "--supervisor", "--points", "2", "--trials", "20", "--size", "2", "--within", "1.5")
    names = ("records lost", "records doubled", "wrong scores", "orphans", "reports that differ")
    assert [given[name] for name in names] == [0] * 5
    assert given["kills"] == 2


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "chaos", module)
    spec.loader.exec_module(module)
    return module


def test_what_is_lost_doubled_or_wrong_is_counted(chaos: ModuleType, tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials_per_task": 4, "session_id": "chaos", "seed": 1}
    reference = bench(benches(a="thread"), code("", 1), tmp_path / "reference", **options)

    def policy(lab: Any, prompt: str) -> Any:
        trial = lab.call("python", code="result = env.state.trial_id")
        if trial == "a#1":
            raise RuntimeError("lost")
        return 0.25 if trial == "a#2" else 1

    result = bench(benches(a="thread"), policy, tmp_path, **options)
    folder = tmp_path / "sessions"
    journal = folder / "chaos" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines, lines[1]]))
    assert chaos.compare(result, reference, folder) == {
        "trials planned": 4, "records lost": 1, "records doubled": 1, "wrong scores": 1,
    }  # fmt: skip
