"""``python -m corral.report``: what it prints, writes and exits with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from corral.report.command import main
from corral.report.sessions import open_session
from tests.support.sessions import everything, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    record(everything(), tmp_path / "night")
    return tmp_path


def test_show_prints_tables_or_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "night", "--checkpoint-dir", str(folder)]) == 0
    assert "7 of 9 graded" in capsys.readouterr().out
    assert main(["show", str(folder / "night"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["session"], shown["graded"], "tasks" in shown) == ("night", 7, False)


def test_show_of_a_trial_tells_why_and_what_was_said_and_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night = str(folder / "night")
    assert main(["show", night, "crash#0"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[:2] == ["crash#0", "failed (worker_died), score -, 3.00 s, 2 attempts"]
    for words in (
        "was killed by signal 11 (SIGSEGV) during tool weigh", "slot 1, pid 201", "attempt 1: worker_died; during tool",
        "attempt 2: ", "exit status -11", "57 MiB", "Traceback: x", "first", "Segfault soon </script>", "\\ud800 \\x07",
    ):  # fmt: skip
        assert words in shown, words
    assert main(["show", night, "salt/one#0"]) == 0
    shown = capsys.readouterr().out
    for words in ("success, score 1.000", "answer 0", '"found": 0', "I weigh it.", "weigh(what=salt)", "2 g",
                  "balance on port 3\n"):  # fmt: skip
        assert words in shown, words
    assert main(["show", night, "calm#0"]) == 0
    shown = capsys.readouterr().out
    assert "surrendered" in shown
    assert "close raised OSError" in shown
    assert main(["show", night, "crash#0", "--json"]) == 0
    trial = json.loads(capsys.readouterr().out)
    assert (trial["trial_index"], trial["attempts"][0]["output"]) == (0, "first")
    assert main(["show", night, "crash#7"]) == 2
    assert "has no record of a trial 'crash#7': TASK#INDEX, such as 'salt/one#0'" in capsys.readouterr().err


def test_a_model_may_nest_its_arguments_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = '{"a":' * 2000
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "weigh", "arguments": arguments}}]}
    result = everything()
    task = result.task_results["salt/one"]
    first = replace(task.trials[0], messages=[call])
    result.task_results["salt/one"] = replace(task, trials=(first, *task.trials[1:]))
    record(result, tmp_path / "night")
    assert main(["show", str(tmp_path / "night"), "salt/one#0"]) == 0
    assert f"weigh(arguments={arguments})" in capsys.readouterr().out
    files = [tmp_path / f"night.{ending}" for ending in ("html", "eval", "json", "jsonl")]
    assert main(["export", str(tmp_path / "night"), *map(str, files)]) == 0
    shown = re.search(r'id="t0-0">(.*?)</script>', files[0].read_text("utf-8"))
    assert shown is not None
    assert json.loads(shown[1])["turns"][0][2] == [["weigh", f"arguments={json.dumps(arguments)}"]]
    with zipfile.ZipFile(files[1]) as log:
        sample = json.loads(log.read("samples/salt/one_epoch_1.json"))
    assert sample["messages"][0]["tool_calls"][0]["arguments"] == {"arguments": arguments}


def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    night = str(folder / "night")
    assert main(["compare", night, night]) == 0
    assert "No task has another average score." in capsys.readouterr().out
    assert main(["compare", night, night, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["average_score"]["p_value"] == 1.0


def test_export_writes_each_file_in_the_format_of_its_ending(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = [folder / name for name in ("a.html", "a.json", "a.jsonl", "a.xml", "a.trace.json", "a.eval")]
    assert main(["export", str(folder / "night"), *map(str, wanted)]) == 0
    assert capsys.readouterr().out.split() == [str(path) for path in wanted]
    assert json.loads((folder / "a.json").read_bytes()) == open_session(folder / "night").to_report()
    assert json.loads((folder / "a.trace.json").read_bytes())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["show", "nowhere"], 2, "no session there"),
        (["export", "night", "x.doc"], 2, "name the format"),
        (["regrade", "night", "--envs", "no.such:thing"], 2, "there is no module"),
        (["export", "night", "/proc/no/x.json"], 1, "/proc/no"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str
) -> None:
    assert main([*arguments, "--checkpoint-dir", str(folder)]) == status
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_damaged_journal_is_status_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = folder / "night" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{broken\n", *lines[1:]]))
    assert main(["show", str(folder / "night")]) == 1
    assert "line 2 cannot be used" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    command = f"'{sys.executable}' -m corral.report show '{folder / 'night'}' | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
