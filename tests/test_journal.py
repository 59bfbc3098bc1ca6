"""The journal's file: what is written is there, a torn tail is mended, damage is named, one run at a time."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from corral.errors import ConfigError, FailureKind, JournalError
from corral.header import Header
from corral.journal import LOOK_PATIENCE, Journal
from corral.records import Line, Record, decode, from_record, line_of, to_record
from corral.types import TaskTrialResult, TrialKey

NOON = datetime(2026, 11, 29, 12, 0, 0, tzinfo=timezone(timedelta(hours=-5)))
PLAN: Record = {"task_ids": ["a", "b"], "trials_per_task": 3, "seed": 7, "retries": 1}
FINGERPRINT: Record = {"model": "m1", "tasks": {"a": "d1", "b": "d2"}}
HEADER = Header.new("s", PLAN, FINGERPRINT, NOON)


def record(task: str = "a", index: int = 0, score: float = 1.0, **more: Any) -> Record:
    return to_record(TaskTrialResult(task, index, score=score, state={"answer": "ü"})) | more


def as_lines(records: list[Record]) -> list[Line]:
    return [line_of(record) for record in records]


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text("utf-8").splitlines()]


def reread(folder: Path) -> list[Record]:
    journal, header, records = Journal.open_existing(folder)
    journal.close()
    assert header == HEADER
    return records


IMPORTS = """
import os, sys
from corral.header import Header
from corral.journal import Journal
from corral.records import line_of, to_record
from corral.types import TaskTrialResult
"""
CREATE = 'journal = Journal.create(sys.argv[1], Header("s", "now", {}, {}, {}))\n'


def interpreter(code: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", IMPORTS + code, str(folder)]


def elsewhere(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in an interpreter of its own, as another run would be."""
    return subprocess.run(interpreter(code, folder), capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "s"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    journal = Journal.create(folder, HEADER)
    yield journal
    journal.close()


@pytest.fixture
def written(folder: Path) -> Path:
    """The file of a session with three records, closed."""
    journal = Journal.create(folder, HEADER)
    journal.append(as_lines([record("a", 0), record("a", 1), record("b", 0)]))
    journal.close()
    return folder / "journal.jsonl"


# --- Writing and reading ---


def test_a_session_is_a_header_and_its_records(journal: Journal, folder: Path) -> None:
    journal.append(as_lines([record("a", 0)]))
    journal.append(as_lines([record("b", 0), record("a", 1)]))
    journal.append([])
    first, *rest = lines(folder)
    assert first == {
        "type": "header", "schema": 1, "session": "s", "created": "2026-11-29T12:00:00-05:00",
        "versions": HEADER.versions, "plan": PLAN, "fingerprint": FINGERPRINT,
    }  # fmt: skip
    assert set(HEADER.versions) == {"corral", "python"}
    assert [line["type"] for line in rest] == ["trial"] * 3
    journal.close()
    journal.close()
    assert reread(folder) == [record("a", 0), record("b", 0), record("a", 1)]
    assert [from_record(r).key for r in reread(folder)] == [("a", 0), ("b", 0), ("a", 1)]
    assert sorted(path.name for path in folder.iterdir()) == ["journal.jsonl", "journal.lock"]


def test_a_replacing_record_counts_instead_of_the_first(journal: Journal, folder: Path) -> None:
    journal.append(as_lines([record("a", 0, 0.0), record("b", 0)]))
    journal.append(as_lines([record("a", 0, 1.0, replaces=True)]))
    journal.append(as_lines([record("a", 0, 0.5, replaces=True)]))
    journal.close()
    assert reread(folder) == [record("b", 0), record("a", 0, 0.5)]


def test_appending_goes_on_where_another_run_stopped(written: Path) -> None:
    before = written.read_bytes()
    journal, _, _ = Journal.open_existing(written.parent)
    journal.append(as_lines([record("b", 1)]))
    journal.close()
    assert written.read_bytes().startswith(before)
    assert len(reread(written.parent)) == 4


def test_cost_per_append_does_not_depend_on_the_session(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    write, fsync = os.write, os.fsync

    def counted_write(fd: int, data: bytes) -> int:
        calls.append(("write", len(data)))
        return write(fd, data)

    def counted_fsync(fd: int) -> None:
        calls.append(("fsync", 0))
        fsync(fd)

    monkeypatch.setattr(os, "write", counted_write)
    monkeypatch.setattr(os, "fsync", counted_fsync)
    for index in range(0, 500, 5):
        journal.append(as_lines([record("a", 1000 + index + n) for n in range(5)]))
    assert calls == [calls[0], ("fsync", 0)] * 100


def test_a_session_that_began_is_not_begun_again(written: Path) -> None:
    before = written.read_bytes()
    with pytest.raises(ConfigError, match=r"'s' already has results in .*resume it, or start a new session"):
        Journal.create(written.parent, HEADER)
    assert written.read_bytes() == before
    assert len(reread(written.parent)) == 3  # and its lock was given back


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"type":"header","schema":1,"sess'])
def test_a_session_that_never_began_is_begun(folder: Path, content: bytes | None) -> None:
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "journal.jsonl").write_bytes(content)
    assert not Journal.exists(folder)
    with pytest.raises(JournalError, match="no session ever began"):
        Journal.open_existing(folder)
    Journal.create(folder, HEADER).close()
    assert Journal.exists(folder)
    assert reread(folder) == []


def test_exists_says_no_for_a_missing_directory(tmp_path: Path) -> None:
    assert not Journal.exists(tmp_path / "nowhere")


# --- Damage ---


def test_a_tail_torn_anywhere_costs_that_record_only(written: Path) -> None:
    whole = written.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole) + 1):
        written.write_bytes(whole[:cut])
        # Cut right before its newline, the last line is whole.
        kept = 3 if cut >= len(whole) - 1 else 2
        assert len(reread(written.parent)) == kept, cut
        assert written.read_bytes() == (whole if kept == 3 else whole[:start])
    journal, _, _ = Journal.open_existing(written.parent)
    journal.append(as_lines([record("b", 5)]))
    journal.close()
    assert [line.get("trial_index") for line in lines(written.parent)] == [None, 0, 1, 0, 5]


def test_a_header_without_newline_is_completed(folder: Path) -> None:
    Journal.create(folder, HEADER).close()
    path = folder / "journal.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert Journal.exists(folder)
    journal, header, records = Journal.open_existing(folder)
    journal.append(as_lines([record()]))
    journal.close()
    assert (header, records) == (HEADER, [])
    assert reread(folder) == [record()]


@pytest.mark.parametrize("tail", [b"\n", b"\n\n \n", b"  ", b"\n{", b"\x00\x00\x00", b"\n\n{\xff", b"17"])
def test_blank_lines_and_scraps_at_the_end_are_removed(written: Path, tail: bytes) -> None:
    whole = written.read_bytes()
    written.write_bytes(whole + tail)
    assert len(reread(written.parent)) == 3
    assert written.read_bytes() == whole


GOOD = json.dumps({"type": "trial"} | record("z", 9)).encode()


@pytest.mark.parametrize(
    ("number", "line", "reason"),
    [
        (2, b'{"type":"trial","task_id":"\xff","trial_index":0}', "it is no JSON object in UTF-8"),
        (3, b"", "it is blank"),
        (3, b'{"type":"trial","task_id"', "it is no JSON object"),
        (3, GOOD + GOOD, "it is no JSON object"),
        (3, b'{"type":"trial","task_id":"a","trial_index":0,"score":NaN}', "it is no JSON object"),
        (3, b'{"type":"note"}', "it is no record of a trial"),
        (3, b'{"type":"trial","task_id":"a","trial_index":"0"}', "it is no record of a trial"),
        (3, b'{"type":"trial","task_id":"a","trial_index":0}', "it is a second final record of a#0"),
        (4, b"\x00\x00", "it is no JSON object"),
        (1, GOOD, "it is no header"),
        (1, b"", "it is blank"),
        (1, b'{"type":"header","schema":2}', "its schema is 2, and this Corral reads 1"),
        (1, b'{"type":"header","schema":1}', "its header is not complete"),
    ],
)
def test_damage_elsewhere_is_named_and_left_alone(written: Path, number: int, line: bytes, reason: str) -> None:
    content = written.read_bytes().split(b"\n")
    content[number - 1] = line
    damaged = b"\n".join(content)
    written.write_bytes(damaged)
    with pytest.raises(JournalError) as caught:
        Journal.open_existing(written.parent)
    assert f"{written}, line {number} cannot be used: {reason}" in str(caught.value)
    assert written.read_bytes() == damaged
    with pytest.raises(JournalError, match="cannot be used"):  # not "in use": the lock was given back
        Journal.open_existing(written.parent)


# --- The disk ---


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plan": []}, r"its plan is \[\]"),
        ({"fingerprint": None}, "its fingerprint is None"),
        ({"session": 3}, "its session is 3"),
        ({"plan": PLAN | {"task_ids": "ab"}}, "its plan's task_ids is 'ab'"),
        ({"plan": PLAN | {"trials_per_task": "3"}}, "its plan's trials_per_task is '3'"),
        ({"plan": PLAN | {"seed": "x"}}, "its plan's seed is 'x'"),
        ({"fingerprint": {"tasks": 3}}, "its tasks is 3"),
    ],
)
def test_a_header_that_was_edited_is_named(written: Path, change: Record, reason: str) -> None:
    first, *rest = written.read_bytes().splitlines(keepends=True)
    content = json.dumps(json.loads(first) | change).encode() + b"\n" + b"".join(rest)
    written.write_bytes(content)
    with pytest.raises(JournalError, match=f"journal.jsonl, line 1 cannot be used: {reason}. The file was left"):
        Journal.open_existing(written.parent)
    assert written.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"score": "1"}, "its score is '1'"),
        ({"score": None}, "its score is None"),
        ({"duration": "long"}, "its duration is 'long'"),
        ({"graded": "yes"}, "its graded is 'yes'"),
        ({"warnings": 3}, "its warnings is 3"),
        ({"attempts": 3}, "its attempts is 3"),
        ({"attempts": [3]}, "one of its attempts is 3"),
        ({"attempts": [{}]}, "one of its attempts is {}"),
        ({"attempts": [{"number": 1, "seconds": "x"}]}, "its attempt's seconds is 'x'"),
        ({"attempts": [{"number": 1, "worker": {"slot": "x"}}]}, "its worker's slot is 'x'"),
        ({"timings": {"agent": "x"}}, "its timings' agent is 'x'"),
        ({"worker": "w"}, "its worker is 'w'"),
        ({"worker": {}}, "the record of a#1 cannot be understood"),
        ({"failure": "bad luck"}, "the record of a#1 cannot be understood"),
        ({"task_id": "c"}, "the session has no trial c#1"),
        ({"trial_index": -1}, "the session has no trial a#-1"),
        ({"trial_index": True}, "the session has no trial a#True"),
        ({"trial_index": 10**9}, "the session has no trial a#1000000000"),
        ({"type": "run", "k_values": "x"}, "its k_values is 'x'"),
        ({"type": "run", "metrics": 3}, "its metrics is 3"),
    ],
)
def test_a_record_that_was_edited_is_named(written: Path, change: Record, reason: str) -> None:
    lines_ = written.read_bytes().splitlines(keepends=True)
    lines_[2] = json.dumps(json.loads(lines_[2]) | change).encode() + b"\n"
    written.write_bytes(b"".join(lines_))
    with pytest.raises(JournalError, match=f"journal.jsonl, line 3 cannot be used: {reason}") as refused:
        Journal.open_existing(written.parent, lambda record, place: from_record(record))
    assert str(refused.value).endswith("The file was left as it is")
    assert written.read_bytes() == b"".join(lines_)


def test_a_failed_write_is_cut_off_and_final(journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal.append(as_lines([record("a", 0)]))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 20:
            return write(fd, bytes(data[:20]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(JournalError, match=r"cannot write .*journal\.jsonl: No space left on device"):
            journal.append(as_lines([record("a", 1)]))
    with pytest.raises(JournalError, match="cannot write"):  # although there is space again
        journal.append(as_lines([record("a", 1)]))
    journal.close()
    assert [line.get("trial_index") for line in lines(folder)] == [None, 0]
    again, _, _ = Journal.open_existing(folder)
    again.append(as_lines([record("a", 1)]))
    again.close()
    assert len(reread(folder)) == 2


def test_a_failed_fsync_is_a_failed_write(journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(JournalError, match=r"cannot write .*Input/output error"):
            journal.append(as_lines([record("a", 0)]))
    assert len(lines(folder)) == 1


def test_a_full_disk_stops_within_one_record_and_the_session_goes_on_later(folder: Path) -> None:
    script = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
for index in range(50):
    journal.append([line_of(to_record(TaskTrialResult("t", index, messages=["x" * 100_000])))])
"""
    done = elsewhere(CREATE + script, folder)
    assert done.returncode != 0
    assert "JournalError: cannot write" in done.stderr
    journal, _, records = Journal.open_existing(folder)
    journal.close()
    assert [r["trial_index"] for r in records] == list(range(10))
    assert len(lines(folder)) == 11


def test_a_closed_journal_takes_nothing(journal: Journal, folder: Path) -> None:
    journal.close()
    with pytest.raises(JournalError, match="it is closed"):
        journal.append(as_lines([record()]))
    assert len(lines(folder)) == 1


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"cannot write .*file/s: "):
        Journal.create(tmp_path / "file" / "s", HEADER)
    (tmp_path / "s" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(JournalError, match=r"cannot read .*Is a directory"):
        Journal.exists(tmp_path / "s")


# --- One run at a time ---


@pytest.mark.skipif(sys.platform == "win32", reason="there who only looks takes no lock")
def test_who_only_looks_keeps_no_run_out(folder: Path) -> None:
    """It has the lock for a moment: here for half of what a run waits for that."""
    import fcntl

    Journal.create(folder, HEADER).close()
    with open(folder / "journal.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        threading.Timer(LOOK_PATIENCE / 2, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        Journal.open_existing(folder)[0].close()


def test_a_second_run_is_told_who_has_the_session(journal: Journal, folder: Path) -> None:
    before = (folder / "journal.jsonl").read_bytes()
    done = elsewhere("Journal.open_existing(sys.argv[1])", folder)
    assert done.returncode == 1
    assert f"is in use by another run (pid {os.getpid()} on host " in done.stderr
    for attempt in (lambda: Journal.open_existing(folder), lambda: Journal.create(folder, HEADER)):
        with pytest.raises(
            JournalError, match=f"is in use by a run of this very process .pid {os.getpid()}.*await it or cancel"
        ):
            attempt()
    assert (folder / "journal.jsonl").read_bytes() == before
    (folder / "journal.holder").unlink()
    with pytest.raises(JournalError, match="has left no note"):
        Journal.open_existing(folder)


def test_a_killed_run_holds_no_lock(folder: Path) -> None:
    done = elsewhere(CREATE + "os.kill(os.getpid(), 9)", folder)
    assert done.returncode == -9
    assert (folder / "journal.holder").exists()
    journal, _, _ = Journal.open_existing(folder)
    journal.close()


@pytest.mark.parametrize("reports", [1, 7, 20])
def test_what_a_killed_run_called_durable_is_there(folder: Path, reports: int) -> None:
    code = """
for index in range(10**6):
    journal.append([line_of(to_record(TaskTrialResult("t", index, messages=["x" * 50_000])))])
    print(index, flush=True)
"""
    with subprocess.Popen(interpreter(CREATE + code, folder), stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for _ in range(reports):
            run.stdout.readline()
        run.kill()
        durable = reports + len([line for line in run.stdout if line.endswith("\n")])
    journal, _, records = Journal.open_existing(folder)
    journal.append(as_lines([record("more", 0)]))
    journal.close()
    # One more may have been written than was reported.
    assert len(records) in (durable, durable + 1)
    assert [r["trial_index"] for r in records] == list(range(len(records)))
    assert len(lines(folder)) == len(records) + 2


def test_each_line_of_a_large_session_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.create(folder, HEADER)
    journal.append(as_lines([record("a", index) for index in range(10_000)]))
    journal.close()
    decoded: list[bytes] = []

    def counted_decode(line: bytes) -> Record | None:
        decoded.append(line)
        return decode(line)

    monkeypatch.setattr("corral.journal.decode", counted_decode)
    assert [from_record(r).key for r in reread(folder)] == [TrialKey("a", index) for index in range(10_000)]
    assert len(decoded) <= 10_002  # the header, and once more to see that there is one


def test_failure_kinds_are_kept(journal: Journal, folder: Path) -> None:
    results = [TaskTrialResult.not_graded(TrialKey("a", n), kind, "x") for n, kind in enumerate(FailureKind)]
    journal.append(as_lines([to_record(result) for result in results]))
    journal.close()
    assert [from_record(r) for r in reread(folder)] == results
