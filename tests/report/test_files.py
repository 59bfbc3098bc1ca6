"""Strict JSON from any value, files that are whole or absent, and the comparison of two runs."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import stat
import subprocess
import sys
import threading
from collections import deque
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pydantic
import pytest

from corral.errors import FailureKind
from corral.plain import MAX_DEPTH, plain
from corral.report import BenchmarkResult, files, stable, stable_bytes
from corral.types import TrialKey, WorkerRef
from tests.support.results import graded, run_on


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Colour(enum.Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    x: int = 1


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (math.nan, None),
        (-math.inf, None),
        (FailureKind.TOOL, "tool"),
        (Colour.RED, "red"),
        (Pair(1, Pair(math.nan, ())), {"left": 1, "right": {"left": None, "right": []}}),
        (WorkerRef(1, 2), {"slot": 1, "pid": 2, "trial_pid": None, "node": None}),
        (TrialKey("t", 3), ["t", 3]),
        (Path("a") / "b", os.path.join("a", "b")),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (deque([1]), [1]),
        (b"text", "text"),
        (b"\xff", "base64:/w=="),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (timedelta(seconds=1.5), 1.5),
        (ValueError("no"), "ValueError: no"),
        (Decimal("1.5"), "1.5"),
        (Model(), {"x": 1}),
        ({1: "a", None: "b", False: "c", Colour.RED: "d"}, {"1": "a", "null": "b", "false": "c", "red": "d"}),
        ({1: "a", "1": "b"}, {"1": "a", "1 (str)": "b"}),
        ({(1, 2): "a", math.nan: "b"}, {"[1, 2]": "a", "null": "b"}),
        (Hostile(), "<Hostile: RuntimeError: no>"),
        (2**20000, hex(2**20000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_plain(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert strict(files.dump(value)) == expected


def test_numpy_values() -> None:
    np = pytest.importorskip("numpy")
    value = {
        "i": np.int64(3), "f": np.float32(0.5), "nan": np.float64("nan"), "b": np.bool_(True), "long": np.longdouble(2),
        "array": np.array([[1.0, np.inf]]), "scalar": np.array(7), "text": np.str_("x"), np.int64(5): 1,
    }  # fmt: skip
    assert strict(files.dump(value)) == {
        "i": 3, "f": 0.5, "nan": None, "b": True, "long": 2.0, "array": [[1.0, None]], "scalar": 7, "text": "x", "5": 1,
    }  # fmt: skip


def test_objects_leave_no_address() -> None:
    assert plain(object()) == "<object object>"


def test_cycles_and_depth_end() -> None:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    assert plain(cycle) == [1, "<contains itself>"]
    shared = [1]
    assert plain([shared, shared]) == [[1], [1]]
    deep: Any = "end"
    for _ in range(MAX_DEPTH * 20):
        deep = [deep]
    assert "<nested too deeply>" in files.dump(deep)


def test_text_is_readable_and_lone_surrogates_are_escaped() -> None:
    value = {"\ud800": "Zürich \udfff \u2028 😀 \x1b\x00"}
    text = files.dump(value)
    assert "Zürich" in text
    assert "\\ud800" in text
    text.encode("utf-8")
    assert strict(text) == value


def test_sets_do_not_depend_on_the_hash_seed() -> None:
    program = "from corral.report.files import dump; print(dump({'x', 'y', 'z', 'longer', ('a', 1)}))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_importing_the_report_package_pulls_in_nothing_heavy() -> None:
    program = (
        "import sys, corral.report, corral.report.progress;"
        "print(sorted({'rich', 'anyio', 'httpx', 'numpy', 'pydantic'} & sys.modules.keys()))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


class TestWrite:
    def test_makes_directories_and_leaves_no_draft(self, tmp_path: Path) -> None:
        path = files.write(tmp_path / "a" / "b" / "report.json", "text é")
        assert path.read_bytes() == "text é".encode()
        assert [p.name for p in path.parent.iterdir()] == ["report.json"]

    def test_a_failure_keeps_the_old_file_and_leaves_no_draft(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = files.write(tmp_path / "report.json", "old")

        def refuse(*_: object) -> None:
            raise OSError("no")

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="no"):
            files.write(path, "new")
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_before_the_last_step_the_new_text_is_whole_and_the_old_file_in_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = files.write(tmp_path / "report.json", "old")
        seen: list[tuple[str, str]] = []
        synced: list[int] = []
        replace, fsync = os.replace, os.fsync

        def look(source: Any, target: Any) -> None:
            seen.append((Path(source).read_text(), Path(target).read_text()))
            assert synced, "the draft is not durable yet"
            replace(source, target)

        def sync(descriptor: int) -> None:
            fsync(descriptor)
            synced.append(descriptor)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", look)
        files.write(path, "new")
        assert seen == [("new", "old")]
        assert path.read_text() == "new"

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
    def test_a_link_stays_a_link_and_the_mode_is_the_usual_one(self, tmp_path: Path) -> None:
        target = tmp_path / "target.json"
        target.write_text("old")
        link = tmp_path / "link.json"
        link.symlink_to(target)
        files.write(link, "new")
        assert link.is_symlink()
        assert target.read_text() == "new"
        assert stat.S_IMODE(target.stat().st_mode) & stat.S_IRUSR

    @pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")
    def test_a_pipe_is_written_to(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        got: list[str] = []
        reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
        reader.start()
        files.write(pipe, "new")
        reader.join(10)
        assert got == ["new"]

    def test_a_long_name_fits(self, tmp_path: Path) -> None:
        assert files.write(tmp_path / ("n" * 250), "x").read_text() == "x"


class TestStable:
    def test_two_machines_one_run(self) -> None:
        assert stable_bytes(run_on(0)) == stable_bytes(run_on(1)) == stable_bytes(run_on(12))
        assert run_on(0).to_report() != run_on(1).to_report()

    def test_from_a_result_its_report_or_its_file(self, tmp_path: Path) -> None:
        result = run_on(1)
        path = result.generate_report(tmp_path / "r.json")
        assert stable(result) == stable(result.to_report()) == stable(path) == stable(str(path))

    def test_it_is_stable_itself(self) -> None:
        assert stable(stable(run_on(1))) == stable(run_on(1))

    def test_it_leaves_its_argument_as_it_is(self) -> None:
        report = run_on(1).to_report()
        before = files.dump(report)
        stable(report)
        assert files.dump(report) == before

    def test_what_goes_and_what_stays(self) -> None:
        kept = stable(run_on(3))
        assert not {"session", "seed", "created", "run_name", "wall_s", "settings", "pool", "journal"} & kept.keys()
        assert kept["not_graded"] == {"not_run": 1, "worker_died": 1}
        trial = kept["tasks"]["child"]["trials"][0]
        assert not {"duration", "timings", "worker"} & trial.keys()
        assert trial["answer"] == {"file": "<workspace>/out.txt"}
        assert trial["state"]["outputs"] == {"parent": "<workspace of parent>/in.txt"}
        assert trial["state"]["files"] == {"<workspace>/a": 1}
        assert trial["messages"] == [{"role": "tool", "content": '{"path": "<workspace>/out.txt"}'}]
        assert "duration" not in trial["state"]["tool_calls"][0]
        dead = kept["tasks"]["parent"]["trials"][1]
        assert dead["error_message"].startswith("the trial process (pid <pid>, slot <slot>) was killed by signal 9")
        assert dead["attempts"][0]["exit_status"] == -9

    @pytest.mark.parametrize(
        "change",
        [
            {"score": 0.25},
            {"surrendered": True},
            {"token_usage": {"input": 6}},
            {"agent_status": "max_iterations"},
            {"tool_statistics": {"write": {"calls": 2, "errors": 0}}},
            {"state": {"submitted_answer": "other"}},
            {"state": {"submitted_answer": "answer 0", "duration": 5}},
            {"messages": [{"content": {"duration": 5}}]},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_difference_in_the_outcome_shows(self, change: dict[str, Any]) -> None:
        def run(**more: Any) -> BenchmarkResult:
            return BenchmarkResult.collect("s", ["a"], [graded("a", 0, **more)])

        assert stable_bytes(run()) == stable_bytes(run())
        assert stable_bytes(run(**change)) != stable_bytes(run())

    def test_only_whole_path_parts_are_the_workspace(self) -> None:
        state = {"workspace": "/tmp/t1", "submitted_answer": "/tmp/t10 /tmp/t1-b /tmp/t1. /tmp/t1/x '/tmp/t1'"}
        result = BenchmarkResult.collect("s", ["a"], [graded("a", 0, state=state)])
        assert stable(result)["tasks"]["a"]["trials"][0]["answer"] == (
            "/tmp/t10 /tmp/t1-b <workspace>. <workspace>/x '<workspace>'"
        )

    def test_a_workspace_inside_quoted_text(self) -> None:
        workspace = "C:\\runs\\é\\t1"
        texts = [workspace, json.dumps(workspace), repr(workspace), workspace.replace("\\", "/")]
        state = {"workspace": workspace, "submitted_answer": texts}
        result = BenchmarkResult.collect("s", ["a"], [graded("a", 0, state=state)])
        assert stable(result)["tasks"]["a"]["trials"][0]["answer"] == [
            "<workspace>", '"<workspace>"', "'<workspace>'", "<workspace>",
        ]  # fmt: skip

    def test_tasks_that_share_a_workspace_each_call_it_their_own(self) -> None:
        state = {"workspace": "/tmp/shared", "submitted_answer": "/tmp/shared/x"}
        result = BenchmarkResult.collect("s", ["a", "b"], [graded(t, 0, state=state) for t in ("a", "b")])
        answers = [task["trials"][0]["answer"] for task in stable(result)["tasks"].values()]
        assert answers == ["<workspace>/x"] * 2

    def test_a_workspace_inside_another_is_told_apart(self) -> None:
        def trial(task_id: str, workspace: str) -> Any:
            return graded(task_id, 0, state={"workspace": workspace, "submitted_answer": "/tmp/w/inner/x"})

        result = BenchmarkResult.collect("s", ["a", "b"], [trial("a", "/tmp/w"), trial("b", "/tmp/w/inner")])
        answers = [task["trials"][0]["answer"] for task in stable(result)["tasks"].values()]
        assert answers == ["<workspace of b>/x", "<workspace>/x"]

    def test_what_is_no_report_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "list.json"
        path.write_text("[]")
        with pytest.raises(ValueError, match="a report is a JSON object"):
            stable(path)
        path.write_text("[" * 100_000)
        with pytest.raises(ValueError, match="a report is a JSON object"):
            stable(path)

    @pytest.mark.parametrize("depth", [150, 600])
    def test_a_file_is_equal_to_its_result_however_deeply_an_answer_is_nested(self, depth: int, tmp_path: Path) -> None:
        answer: Any = "salt"
        for _ in range(depth):
            answer = {"of": answer}
        result = BenchmarkResult.collect("s", ["a"], [graded("a", 0, state={"submitted_answer": answer})])
        path = result.generate_report(tmp_path / "report.json")
        assert '{"of":' * depth in path.read_text("utf-8")
        assert stable(path) == stable(result)
