"""The files of a session: each read back by what it is for."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from corral.agents.llm.messages import tokens
from corral.cli import main as pool_command
from corral.errors import ConfigError
from corral.report import BenchmarkResult
from corral.report.exports import FORMATS, export, kind_of
from corral.report.rows import COLUMNS, rows
from corral.report.timeline import chrome_trace
from tests.support.results import graded
from tests.support.scripts import python
from tests.support.sessions import HOSTILE, START, everything, recorded


def test_the_ending_says_the_format() -> None:
    assert {kind_of(f"x{form.suffix}"): kind for kind, form in FORMATS.items()} == {kind: kind for kind in FORMATS}
    with pytest.raises(ConfigError, match="name the format"):
        kind_of("report.doc")
    with pytest.raises(ConfigError, match="there is no format 'doc'"):
        export(everything(), "x.html", "doc")


def test_a_result_and_its_journal_give_the_same_files(tmp_path: Path) -> None:
    session = recorded(tmp_path / "night")
    result = everything()
    result.journal = session.journal
    for kind in FORMATS.keys() - {"parquet", "inspect"}:  # a zip file holds the time of its making
        here, there = tmp_path / f"here.{kind}", tmp_path / f"there.{kind}"
        assert export(result, here, kind).read_bytes() == export(session, there, kind).read_bytes(), kind


# --- rows ---


def test_a_row_for_each_record() -> None:
    found = list(rows(everything()))
    assert [row["task_id"] for row in found] == ["salt/one"] * 3 + ["crash"] * 3 + ["calm"] * 3
    first, crash = found[0], found[3]
    assert list(first)[: len(COLUMNS)] == list(COLUMNS)
    assert (first["agent"], first["tools"], first["queued"], first["scored"]) == (0.75, 1.25, 0.5, 0.25)
    assert (first["started_at"], first["peak_rss"], first["slot"]) == (START, 50_000_000, 0)
    assert first["tokens.details.cached"] == 40
    assert (crash["failure"], crash["attempts"], crash["peak_rss"], crash["graded"]) == (
        "worker_died",
        2,
        60_000_000,
        False,
    )


def test_json_lines(tmp_path: Path) -> None:
    lines = everything().export(tmp_path / "trials.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["trial_index"] for line in lines] == [0, 1, 2] * 3
    assert json.loads(lines[2])["answer"] == HOSTILE


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: Any) -> None:
    pytest.importorskip(library)
    frame = everything().to_frame(library)
    assert frame.shape == (9, len(COLUMNS) + 3)
    assert list(frame.columns)[-1] == "tokens.prompt_tokens"
    assert float(frame["score"].sum()) == everything().total_score
    assert int(frame["attempts"].sum()) == 9
    empty = BenchmarkResult.collect("s", ["a"], []).to_frame(library)
    assert list(empty.columns) == list(COLUMNS)
    assert [str(kind) for kind in empty.dtypes] == [str(kind) for kind in frame.dtypes][: len(COLUMNS)]


def test_parquet_keeps_types_and_nothings(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(everything().export(tmp_path / "trials.parquet")).to_pydict()
    assert table["slot"] == [0, 0, 1, 1, None, 1, None, None, None]
    assert table["started_at"][4] is None
    assert table["graded"].count(False) == 2
    assert table["answer"][2] == HOSTILE.replace("\ud800", "\\ud800")


def test_a_frame_without_a_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ConfigError, match=r"pip install 'corral\[polars\]'"):
        everything().to_frame("polars")
    with pytest.raises(ConfigError, match="must be"):
        everything().to_frame("dask")  # type: ignore[arg-type]


# --- JUnit ---


def test_junit_tells_failures_errors_and_skips_apart(tmp_path: Path) -> None:
    root = ElementTree.parse(everything().export(tmp_path / "junit.xml")).getroot()
    assert {name: root.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9", "failures": "3", "errors": "1", "skipped": "1",
    }  # fmt: skip
    suites = {suite.attrib["name"]: suite for suite in root}
    assert suites["crash"].attrib["errors"] == "1"
    error = suites["crash"].find("testcase/error")
    assert error is not None
    assert error.attrib["type"] == "worker_died"
    assert "SIGSEGV" in error.attrib["message"]
    assert "Segfault soon </script>" in (error.text or "")
    assert "\\x07" in (error.text or "")  # what XML cannot hold stands as its escape
    failure = suites["calm"].find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == "surrendered"


def test_planned_trials_without_a_record_are_skipped_cases(tmp_path: Path) -> None:
    result = BenchmarkResult.collect("s", ["a"], [graded("a", 0)], trials_per_task=3)
    root = ElementTree.parse(result.export(tmp_path / "x.xml")).getroot()
    assert (root.attrib["tests"], root.attrib["skipped"], len(root[0])) == ("3", "2", 3)


# --- A report goes by its ending ---


def begins(path: Path) -> bytes:
    return path.read_bytes()[:40]


def test_a_report_is_what_its_ending_says(tmp_path: Path) -> None:
    result = everything()
    assert begins(result.generate_report(tmp_path / "a.html")).startswith(b"<!DOCTYPE html>")
    assert begins(result.generate_report(tmp_path / "A.HTML")).startswith(b"<!DOCTYPE html>")
    assert json.loads(result.generate_report(tmp_path / "a.json").read_bytes()) == result.to_report()
    assert json.loads(result.generate_report(tmp_path / "report").read_bytes()) == result.to_report()
    rows = result.generate_report(tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["task_id"] for row in rows] == [trial.task_id for trial in result.trials]
    assert begins(result.generate_report(tmp_path / "a.parquet")).startswith(b"PAR1")
    assert json.loads(export(result, tmp_path / "odd.doc", "json").read_bytes()) == result.to_report()
    with pytest.raises(ConfigError, match=r"'a.doc' does not say its format: .*\.html, \.json"):
        result.generate_report(tmp_path / "a.doc")
    assert not (tmp_path / "a.doc").exists()


OWN = ("--envs", "tests.support.shell_envs:build", "--agent", "tests.support.shell_envs:solver", "--tasks", "t")


def test_the_shell_writes_the_page_too(tmp_path: Path) -> None:
    done = python("-m", "corral.pool", *OWN, "--size", "1", "--report", "night.html", "--json", folder=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["report"]) == (0, "night.html"), done.stderr
    page = (tmp_path / "night.html").read_text("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert '"id":"t"' in page


@pytest.mark.parametrize(
    ("report", "words"),
    [("night.doc", "'night.doc' does not say its format"), ("night.parquet", "pip install 'corral[parquet]'")],
)
def test_a_report_that_could_not_be_written_is_refused_before_the_run(
    report: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert pool_command([*OWN, "--report", report]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- Chrome's trace ---


def test_the_trace_has_a_thread_for_each_lane_and_nested_slices() -> None:
    trace = chrome_trace(everything().trials, name="night")
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert list(names.values()) == ["slot 0", "slot 1", "in-process 0", "in-process 1"]
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != "phase"]
    assert len(slices) == 9
    for whole in slices:
        inner = [
            event for event in events
            if event.get("cat") == "phase" and event["tid"] == whole["tid"]
            and whole["ts"] <= event["ts"] < whole["ts"] + whole["dur"]
        ]  # fmt: skip
        assert inner
        assert sum(event["dur"] for event in inner) <= whole["dur"]
        assert max(event["ts"] + event["dur"] for event in inner) <= whole["ts"] + whole["dur"]
    json.dumps(trace, allow_nan=False)


# --- Inspect AI ---


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        # Corral's own agents: 1000 read in all, 600 of them from the cache and 100 into it.
        (tokens(input=1000, output=50, cached=600, cache_write=100), (300, 50, 1050, 600, 100)),
        (tokens(input=1000, output=50), (1000, 50, 1050, 0, 0)),
        # Anthropic's: what was read from the cache or into it is beside the input.
        (
            {"input_tokens": 300, "output_tokens": 50, "cache_read_input_tokens": 600,
             "cache_creation_input_tokens": 100},
            (300, 50, 1050, 600, 100),
        ),
        ({"prompt_tokens": 100, "completion_tokens": 10}, (100, 10, 110, 0, 0)),
        ({"cached_input_tokens": 5}, (0, 0, 5, 5, 0)),
        ({"cost_usd": 0.5}, (0, 0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_inspect_counts_cached_tokens_beside_the_input(
    usage: dict[str, float], counts: tuple[int, ...], tmp_path: Path
) -> None:
    names = "input_tokens", "output_tokens", "total_tokens", "input_tokens_cache_read", "input_tokens_cache_write"
    trials = [graded("a", index, token_usage=usage) for index in range(2)]
    path = BenchmarkResult.collect("s", ["a"], trials, model="demo/one").export(tmp_path / "s.eval")
    with zipfile.ZipFile(path) as log:
        sample, header = (json.loads(log.read(name)) for name in ("samples/a_epoch_1.json", "header.json"))
    assert sample["model_usage"] == {"demo/one": dict(zip(names, counts, strict=True))}
    assert header["stats"]["model_usage"]["demo/one"] == {n: 2 * c for n, c in zip(names, counts, strict=True)}


READ = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries
log = read_eval_log(sys.argv[1])
crash = read_eval_log_sample(sys.argv[1], "crash", 1)
first = read_eval_log_sample(sys.argv[1], "salt/one", 1)
print(json.dumps({
    "status": log.status, "samples": len(log.samples), "summaries": len(read_eval_log_sample_summaries(sys.argv[1])),
    "model": log.eval.model, "epochs": log.eval.config.epochs, "error": crash.error.message,
    "unscored": not crash.scores, "score": first.scores["corral"].value, "roles": [m.role for m in first.messages],
    "call": [first.messages[1].tool_calls[0].function, first.messages[1].tool_calls[0].arguments],
    "answers": first.messages[2].tool_call_id == first.messages[1].tool_calls[0].id,
    "tokens": first.model_usage["demo/one"].total_tokens, "printed": first.metadata["worker_output"],
    "printed_twice": [attempt["output"] for attempt in crash.metadata["attempts"]],
    "metrics": {name: metric.value for name, metric in log.results.scores[0].metrics.items()},
}))
"""


@pytest.mark.skipif(util.find_spec("inspect_ai") is None, reason="inspect_ai is not installed: pip install inspect_ai")
@pytest.mark.slow
def test_inspect_ai_itself_reads_the_log(tmp_path: Path) -> None:
    path = everything().export(tmp_path / "night.eval")
    command = [sys.executable, "-W", "ignore", "-c", READ, str(path)]  # its imports are no business of our warnings
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert (found["status"], found["samples"], found["summaries"], found["epochs"]) == ("error", 9, 9, 3)
    assert "SIGSEGV" in found["error"]
    assert found["unscored"]
    assert (found["score"], found["tokens"], found["model"]) == (1.0, 110, "demo/one")
    assert found["roles"] == ["user", "assistant", "tool", "assistant"]
    assert found["call"] == ["weigh", {"what": "salt"}]
    assert found["answers"]
    assert found["printed"] == "balance on port 3\n"
    assert found["printed_twice"][0] == "first"
    assert found["printed_twice"][1].startswith("Segfault soon")
    assert found["metrics"]["average_score"] == pytest.approx(everything().average_score())
    assert found["metrics"]["average_score stderr"] == pytest.approx(
        everything().average_score_estimate().standard_error
    )
