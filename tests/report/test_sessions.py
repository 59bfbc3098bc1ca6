"""Results that are read from journals: they give the report that the run wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral import CorralRunner
from corral.agents import ScriptedAgent
from corral.errors import ConfigError, JournalError
from corral.journal import FILE_NAME, Journal
from corral.report.sessions import find_session, open_session
from tests.support.benches import Bench
from tests.support.sessions import everything, record, recorded


def test_the_report_from_the_journal_is_that_of_the_run_byte_for_byte(tmp_path: Path) -> None:
    written = record(everything(), tmp_path / "night").generate_report(tmp_path / "run.json")
    again = open_session(tmp_path / "night").generate_report(tmp_path / "again.json")
    assert again.read_bytes() == written.read_bytes()
    assert json.loads(again.read_bytes()) == open_session(tmp_path / "night").to_report()


class Counted:
    name = "trials"

    def compute(self, result: object) -> float:
        return 3.0


class Broken:
    name = "broken"

    def compute(self, result: object) -> float:
        raise KeyError("gone")


def test_a_real_run_and_its_journal_give_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    runner = CorralRunner(
        {name: Bench(name) for name in ("b", "a")},
        agent_factory=lambda context: ScriptedAgent(lambda lab, prompt: 0.5, model="m"),
        metrics=[Counted(), Broken()],
    )
    result = runner.bench(trials_per_task=3, k_values=[1, 3], max_concurrency=3, session_id="s", run_name="n")
    written = result.generate_report("run.json").read_bytes()
    monkeypatch.chdir("/")
    session = open_session("s", checkpoint_dir=tmp_path / "benchmark_checkpoints")
    assert session.generate_report(tmp_path / "again.json").read_bytes() == written
    report = json.loads(written)
    assert report["average_score"] == 0.5
    assert (report["model"], report["run_name"], list(report["tasks"])) == ("m", "n", ["b", "a"])
    assert report["metrics"] == {"trials": 3.0, "broken": "KeyError: 'gone'"}
    attempt = report["tasks"]["a"]["trials"][0]["attempts"][0]
    assert abs(attempt["started_at"] - time.time()) < 60
    assert 0 <= attempt["opened"] <= attempt["seconds"]


def test_a_session_whose_run_was_killed_is_told_from_its_records(tmp_path: Path) -> None:
    session = recorded(tmp_path / "night", ended=False)
    assert session.wall_seconds is None
    assert session.average_score() == everything().average_score()
    assert session.coverage == everything().coverage
    assert session.model == "demo/one"


def test_trials_are_light_until_they_are_asked_for_whole(tmp_path: Path) -> None:
    session = recorded(tmp_path / "night")
    light = session.trials[0]
    assert (light.messages, list(light.state)) == ([], ["tool_calls"])
    whole = next(session.whole_trials)
    assert whole.messages[0]["content"] == "task salt/one"
    assert whole.key == light.key


def test_a_session_that_is_read_while_its_run_goes_on_says_so(tmp_path: Path) -> None:
    """What is still to come is no failure then, and is one once the run has ended."""
    record(everything(), tmp_path / "night", ended=False)
    path = tmp_path / "night" / FILE_NAME
    lines = path.read_bytes().splitlines(keepends=True)
    calm = [line for line in lines[1:] if json.loads(line)["failure"] is None]
    path.write_bytes(lines[0] + b"".join(calm))
    to_come = 9 - len(calm)
    assert to_come > 0
    journal, _, _ = Journal.open_existing(tmp_path / "night")
    try:
        during = open_session(tmp_path / "night")
    finally:
        journal.close()
    after = open_session(tmp_path / "night")
    assert (during.running, after.running) == (True, False)
    assert during.coverage == after.coverage
    assert f"{len(calm)} of 9 graded; the run goes on, {to_come} are to come" in str(during)
    assert "first cause" not in str(during)
    assert "cancelled" not in str(during)
    assert "to come " in str(during)
    assert during.first_cause() == "none yet: the run goes on"
    assert f"cancelled {to_come}" in str(after)
    assert after.first_cause() == "the run was stopped before every trial had ended"


def test_a_torn_tail_is_passed_over_and_left(tmp_path: Path) -> None:
    record(everything(), tmp_path / "night", ended=False)
    path = tmp_path / "night" / FILE_NAME
    path.write_bytes(path.read_bytes() + b'{"type":"trial","task_id":"calm","tri')
    before = path.read_bytes()
    assert open_session(tmp_path / "night").coverage == everything().coverage
    assert path.read_bytes() == before


def test_a_journal_that_changed_under_the_reader_is_noticed(tmp_path: Path) -> None:
    session = recorded(tmp_path / "night")
    os.truncate(tmp_path / "night" / FILE_NAME, 40)
    with pytest.raises(JournalError, match="was changed while it was read"):
        list(session.whole_trials)


def test_sessions_are_found_by_folder_journal_report_and_id(tmp_path: Path) -> None:
    folder = tmp_path / "all" / "night"
    record(everything(), folder).generate_report(folder / "report.json")
    for given in (folder, folder / FILE_NAME, folder / "report.json"):
        assert find_session(given) == folder
    assert find_session("night", tmp_path / "all") == folder
    with pytest.raises(ConfigError, match="no session there"):
        find_session("day", tmp_path / "all")


SIZE = 100_000

LARGE = """
import sys
from pathlib import Path
from corral.report.sessions import open_session
session = open_session(sys.argv[1])
session.generate_report(sys.argv[2])
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) // 1024  # ru_maxrss would be that of the process which started this one
print(peak, session.coverage.graded)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_records_are_reported_in_bounded_memory(tmp_path: Path) -> None:
    result = everything()
    record(result, tmp_path / "big")
    journal = tmp_path / "big" / FILE_NAME
    header, *records = [line for line in journal.read_bytes().splitlines(keepends=True) if b'"type":"run"' not in line]
    trials = [json.loads(line) for line in records]
    planned = json.loads(header)
    planned["plan"]["task_ids"] = [f"task-{number}" for number in range(500)]
    with journal.open("wb") as file:
        file.write(json.dumps(planned).encode() + b"\n")
        for number in range(SIZE):
            trial = trials[number % len(trials)]
            trial |= {"task_id": f"task-{number % 500}", "trial_index": number // 500}
            file.write(json.dumps(trial).encode() + b"\n")
    command = [sys.executable, "-c", LARGE, str(tmp_path / "big"), str(tmp_path / "report.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=270)
    assert done.returncode == 0, done.stderr
    mebibytes, graded = map(int, done.stdout.split())
    assert mebibytes < 600
    assert graded == sum(trials[number % len(trials)]["graded"] for number in range(SIZE))
