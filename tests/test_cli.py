"""The shell command, run as users run it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.cli import main
from corral.report import stable_bytes
from tests.support.pool_waiting import remain
from tests.support.scripts import environment, python, start

ENVS = "tests.support.shell_envs:build"
SOLVER = "tests.support.shell_envs:solver"
OWN = ("--envs", ENVS, "--agent", SOLVER)
ESCAPE = "\x1b"


def corral(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "corral.pool", *arguments, folder=folder, variables=variables)


def document(folder: Path, *arguments: str, status: int = 0, **variables: str) -> dict[str, Any]:
    """What ``--json`` prints: one strict JSON document and nothing else."""
    done = corral(folder, *arguments, "--json", **variables)
    assert done.returncode == status, done.stderr

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    value = json.loads(done.stdout, parse_constant=refuse)
    assert isinstance(value, dict)
    assert ESCAPE not in done.stdout + done.stderr
    return value


# ---- what it says of itself ----


def test_help_names_every_option(tmp_path: Path) -> None:
    done = corral(tmp_path, "--help")
    assert done.returncode == 0
    options = (
        "size envs agent model api-base tasks trials k max-concurrency per-task retries trial-timeout tool-timeout "
        "memory-limit reuse session checkpoint-dir retry-errors think-time compare-serial report json quiet"
    )
    named = set(re.findall(r"--([a-z-]+)", done.stdout))
    assert set(options.split()) - named == set()
    assert "130" in done.stdout


# ---- usage ----

MISUSES: list[tuple[list[str], str]] = [
    (["--size", "0", *OWN], "worker pool size must be a whole number of at least 1, not 0"),
    (["--size", "two", *OWN], "invalid int value: 'two'"),
    (["--max-concurrency", "0", *OWN], "max_concurrency must be"),
    (["--per-task", "-1", *OWN], "max_concurrency_per_task must be"),
    (["--trials", "0", *OWN], "trials_per_task must be"),
    (["--trials", "2", "--k", "3", *OWN], "k = 3 needs at least 3 trials"),
    (["--k", "1,x", *OWN], "--k must be whole numbers"),
    (["--retries", "-1", *OWN], "retries must be"),
    (["--trial-timeout", "nan", *OWN], "trial_timeout must be a positive number"),
    (["--tool-timeout", "0", *OWN], "tool_timeout must be a positive number"),
    (["--memory-limit", "much", *OWN], "memory_limit must be"),
    (["--memory-limit", "5", *OWN], "memory_limit must be at least 32 MiB"),
    (["--reuse", "never", *OWN], "invalid choice: 'never'"),
    (["--tasks", "p,x", *OWN], "unknown task ids: 'x'; known: 'p', 'q', 't', 's'"),
    (["--tasks", "p,p", *OWN], "task_ids names a task twice: 'p'"),
    (["--session", "a/b", *OWN], "a session id is"),
    (["--session", "x" * 300, *OWN], "a session id is 1 to 100 letters"),
    (["--seed", "-1", *OWN], "seed must be"),
    (["--think-time", "-1", *OWN], "think_time must be a number of seconds from 0 on, not -1.0"),
    (["--think-time", "nan", *OWN], "think_time must be"),
    (["--envs", ENVS], "--envs needs --agent"),
    (["--model", "x", "--envs", ENVS], "a model must be named as PROVIDER/NAME, not 'x'"),
    (["--api-base", "http://127.0.0.1:9/v1"], "--api-base needs --model"),
    (["--model", "x/y", "--api-base", "nowhere"], "api_base must be an address"),
    (["--envs", "nowhere:build", "--agent", SOLVER], "there is no module 'nowhere'"),
    (["--envs", "tests.support.shell_envs:builds", "--agent", SOLVER], "has no 'builds'"),
    (["--envs", "tests.support.shell_envs", "--agent", SOLVER], "must be MODULE:NAME"),
    (["--envs", "tests/support/shell_envs:build", "--agent", SOLVER], "must be MODULE:NAME"),
    (["--envs", "shell_envs.py:build", "--agent", SOLVER], "names a module without '.py': shell_envs:build"),
    (["--envs", ENVS, "--agent", "../shell_envs:solver"], "must be MODULE:NAME"),
    (["--envs", ENVS, "--agent", "tests.support.leaving:agent"], "failed: SystemExit: no licence (leaving.py, line 3)"),
    (["--envs", ENVS, "--agent", "tests.support.shell_envs:no_function"], "is no function"),
    (
        ["--envs", ENVS, "--agent", "tests.support.shell_envs:build"],
        "--agent: tests.support.shell_envs:build is called with (context), and does not take that: too many",
    ),
    (
        ["--envs", ENVS, "--agent", "tests.support.shell_envs:plain", "--model", "a/b"],
        "--agent: tests.support.shell_envs:plain is called with (context, a/b), and does not take that: too many",
    ),
    (
        [*OWN, "--model", "a/b", "--api-base", "http://h/v1"],
        "is called with (context, a/b, api_base=http://h/v1), and does not take that: got an unexpected keyword",
    ),
    (["--envs", ENVS, "--agent", "nowhere:agent"], "there is no module 'nowhere'"),
    (["--envs", ENVS, "--agent", "tests.support.shell_envs:plain", "--think-time", "1"], "for scripted agents only"),
    (["--frobnicate"], "unrecognized arguments"),
]


@pytest.mark.parametrize(("arguments", "says"), MISUSES, ids=[" ".join(each[0][:2]) for each in MISUSES])
def test_misuse_is_told_in_one_sentence(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: there are many."""
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as usage:  # argparse's own
        status = int(str(usage.code))
    told = capsys.readouterr()
    assert (status, told.out) == (2, "")
    assert told.err.startswith("corral: ")
    assert says in told.err
    assert len(told.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_misuse_in_a_process_of_its_own(tmp_path: Path) -> None:
    for arguments in (["--size", "0"], ["--tasks", "x"]):
        done = corral(tmp_path, *OWN, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("corral: ")
        assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_environments_that_cannot_be_built(tmp_path: Path) -> None:
    done = corral(tmp_path, "--envs", "tests.support.shell_envs:build_broken", "--agent", SOLVER, "--size", "1")
    assert done.returncode == 1
    assert re.search(r"ImportError: no chemistry \(shell_envs\.py, line \d+\)$", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "envs", "says"),
    [
        ("phreeqc", (), "the wetlab environments need PHREEQC: pip install 'corral[wetlab]' (not here)"),
        ("pyswmm", ("--envs", "corral.envs.stormwater:build_envs", "--agent", SOLVER),
         "the stormwater environments need SWMM: pip install 'corral[stormwater]' (not here)"),
    ],
)  # fmt: skip
def test_an_engine_that_is_not_installed(module: str, envs: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Its import fails in the workers, which load the environments."""
    (tmp_path / f"{module}.py").write_text("raise ImportError('not here')\n")
    done = corral(tmp_path, *envs, "--size", "1")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"corral: {says}\n")


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ("nowhere/report.json", "corral: --report nowhere/report.json: there is no folder nowhere"),
        ("/proc/report.json", "corral: --report /proc/report.json cannot be written: No such file or directory"),
        ("/dev/full/report.json", "corral: --report /dev/full/report.json: there is no folder /dev/full"),
        (".", "corral: --report . is a folder: name a file"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused_before_the_run(report: str, says: str, tmp_path: Path) -> None:
    done = corral(tmp_path, *OWN, "--size", "1", "--tasks", "t", "--report", report)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says + "\n")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_one_sentence_however_many_trials_end_at_it(tmp_path: Path) -> None:
    done = corral(tmp_path, "--envs", ENVS, "--agent", "tests.support.shell_envs:at_a_full_disk", "--tasks", "t",
                  "--trials", "4", "--size", "1", "--max-concurrency", "4", "--session", "full")  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.match(r"corral: cannot write \S+/full/journal\.jsonl: File too large\b", last), done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no disk that is always full")
@pytest.mark.parametrize("how", [["--json"], ["--quiet"], []])
def test_output_that_cannot_be_written_is_told_and_the_report_is_there(how: list[str], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "corral.pool", *OWN, "--size", "1", "--tasks", "t", "--session", "s", *how],
            cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=50, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith("corral: standard output cannot be written: No space left on device; the report is in ")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert json.loads(Path(tmp_path, told.rpartition(" ")[2]).read_text())["session"] == "s"


@pytest.mark.parametrize("how", ["--json", "--quiet", "--per-task=1"], ids=["json", "line", "tables"])
def test_a_reader_that_has_seen_enough_is_no_failure(how: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "corral.pool", *OWN, "--size", "1", "--tasks", "t", how], cwd=tmp_path,
        env=environment(), stdout=write, stderr=subprocess.PIPE, text=True, timeout=50, check=False,
    )  # fmt: skip
    os.close(write)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not re.match(r"corral: 1 (trial planned|of 1)", line)] == []


ODD = ("--envs", "tests.support.shell_envs:build_odd", "--agent", SOLVER, "--size", "1")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("how", ["--json", "--quiet", "--per-task=1"], ids=["json", "line", "tables"])
def test_any_text_can_be_printed_in_any_encoding(how: str, encoding: str, tmp_path: Path) -> None:
    """A task's id holds what ASCII lacks, what moves a terminal's cursor, an end of line and half a character."""
    done = subprocess.run(
        [sys.executable, "-m", "corral.pool", *ODD, how], cwd=tmp_path, capture_output=True, timeout=50, check=False,
        env=environment(PYTHONIOENCODING=encoding),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    printed = done.stdout.decode(encoding)
    assert ESCAPE not in printed
    assert b"Traceback" not in done.stderr
    if how == "--json":
        assert list(json.loads(printed)["tasks"]) == ["\xfc\U0001f600\x1b[31m\n\ud800"]
    else:
        assert "\\x1b[31m\\n\\ud800" in printed
    if how == "--quiet":
        assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("how", ["--json", "--quiet", "--per-task=1"], ids=["json", "line", "tables"])
def test_standard_descriptors_may_be_closed(how: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m corral.pool {' '.join(OWN)} --size 1 --session s {how} <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, env=environment(), timeout=50, check=False).returncode == 0
    for line in Path(tmp_path, "benchmark_checkpoints", "s", "journal.jsonl").read_text().splitlines():
        json.loads(line)  # nothing was printed into it


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
STARTS_A_CHILD = """
import subprocess
from corral.agents import ScriptedAgent

def make(context):
    with open("statuses", "a") as statuses:
        print(subprocess.run(["false"]).returncode, file=statuses)
    return ScriptedAgent(lambda lab, prompt: "x")
"""


def test_how_children_end_is_known_though_a_daemon_has_started_it(tmp_path: Path) -> None:
    """Some have the signal ignored that tells it, and the system then forgets it: each child had ended well."""
    (tmp_path / "daemon.py").write_text(IGNORING)
    (tmp_path / "agents.py").write_text(STARTS_A_CHILD)
    given = ["--envs", ENVS, "--agent", "agents:make", "--size", "1", "--quiet"]
    done = python("daemon.py", "-m", "corral.pool", *given, folder=tmp_path)
    assert "graded" in done.stdout, done.stderr
    assert set((tmp_path / "statuses").read_text().split()) == {"1"}


def test_a_sentence_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    done = corral(tmp_path, "--envs", "tests.support.shell_envs:build_red", "--agent", SOLVER, "--size", "1")
    assert done.returncode == 1
    assert "ValueError: in \\x1b[31mred\n" in done.stderr
    assert ESCAPE not in done.stderr


def test_lines_in_a_pipe_end_where_their_text_does(tmp_path: Path) -> None:
    done = corral(tmp_path, *OWN, "--size", "1", "--tasks", "p,t")
    lines = done.stdout.splitlines()
    assert lines[0] == "task   graded   score   successes   failures"
    assert [line for line in lines if line != line.rstrip()] == []


# ---- runs ----


def test_the_document(tmp_path: Path) -> None:
    given = document(tmp_path, *OWN, "--size", "2", "--trials", "3", "--k", "1,2", "--session", "s")
    assert (given["session"], given["planned"], given["graded"], given["not_graded"]) == ("s", 12, 12, {})
    assert (given["average_score"], given["pass_at_k"]) == (1.0, {"1": 1.0, "2": 1.0})
    assert given["tasks"] == {task: {"scores": [1.0, 1.0, 1.0]} for task in "pqts"}
    assert given["wall_s"] > 0
    assert Path(tmp_path, given["report"]).is_file()
    pool = given["pool"]
    assert (pool["size"], pool["restarts"]) == (2, 0)
    assert [worker["slot"] for worker in pool["workers"]] == [0, 1]
    assert sum(worker["trials"] for worker in pool["workers"]) == 6
    pids = {worker["pid"] for worker in pool["workers"] if worker["trials"]}
    assert pids
    assert None not in pids
    assert given["supervisor_pid"] not in pids
    assert remain(pids) == []


def test_trials_not_graded_are_counted_and_the_status_says_so(tmp_path: Path) -> None:
    arguments = ("--envs", ENVS, "--agent", "tests.support.shell_envs:killer", "--size", "1", "--tasks", "p,t")
    given = document(tmp_path, *arguments, "--retries", "2", status=1)
    assert (given["planned"], given["graded"], given["not_graded"]) == (2, 1, {"worker_died": 1})
    report = json.loads((tmp_path / given["report"]).read_text())
    (trial,) = report["tasks"]["p"]["trials"]
    assert [attempt["exit_status"] for attempt in trial["attempts"]] == [-9, -9, -9]


@pytest.mark.slow
def test_the_session_goes_on_and_retries_errors(tmp_path: Path) -> None:
    killing = ("--envs", ENVS, "--agent", "tests.support.shell_envs:killer")
    again = ("--size", "1", "--tasks", "p,t", "--session", "s", "--retries", "0")
    marks = tmp_path / "marks"
    document(tmp_path, *killing, *again, status=1)
    model = ("--model", "scripted/kill")
    document(tmp_path, *OWN, *again, *model, status=1, CORRAL_TEST_MARKS=str(marks))
    assert not marks.exists()
    given = document(tmp_path, *OWN, *again, *model, "--retry-errors", CORRAL_TEST_MARKS=str(marks))
    assert marks.read_text() == "p#0\n"
    assert given["graded"] == 2


def test_a_session_of_another_model_is_refused(tmp_path: Path) -> None:
    arguments = (*OWN, "--size", "1", "--tasks", "t", "--session", "s")
    document(tmp_path, *arguments, "--model", "one")
    done = corral(tmp_path, *arguments, "--model", "two")
    assert done.returncode == 2
    assert "model was 'one' and is 'two' now" in done.stderr


@pytest.mark.slow
def test_limits_of_memory_and_time_are_honoured(tmp_path: Path) -> None:
    eating = ("--envs", ENVS, "--agent", "tests.support.shell_envs:glutton", "--tasks", "p", "--size", "1")
    given = document(tmp_path, *eating, "--memory-limit", "200MiB", status=1)
    assert given["not_graded"] == {"memory": 1}
    given = document(tmp_path, *eating, "--tool-timeout", "1.5", status=1)
    assert given["not_graded"] == {"tool_timeout": 1}
    given = document(tmp_path, *eating, "--trial-timeout", "1.5")
    assert (given["graded"], given["average_score"]) == (1, 0)


def test_reuse_is_honoured(tmp_path: Path) -> None:
    for reuse, processes in (("trial", 3), ("worker", 1)):
        given = document(tmp_path, *OWN, "--size", "1", "--tasks", "p", "--trials", "3", "--reuse", reuse)
        report = json.loads((tmp_path / given["report"]).read_text())
        pids = {trial["worker"]["trial_pid"] for trial in report["tasks"]["p"]["trials"]}
        assert len(pids) == processes


@pytest.mark.slow
def test_compare_serial_and_think_time(tmp_path: Path) -> None:
    arguments = (*OWN, "--size", "2", "--trials", "3", "--tasks", "p", "--think-time", "0.15")
    given = document(tmp_path, *arguments, "--compare-serial")
    compared = given["compare_serial"]
    assert compared["equal"] is True
    assert compared["wall_s"] >= 3 * 2 * 0.15
    done = corral(tmp_path, *arguments, "--compare-serial", "--quiet")
    assert "the reports are equal, timings aside" in done.stdout.replace("\n", " ")


def test_the_report_goes_where_it_is_wanted(tmp_path: Path) -> None:
    seeded = (*OWN, "--size", "1", "--tasks", "p,s", "--seed", "4")
    wanted = tmp_path / "deep" / "report.json"
    wanted.parent.mkdir()
    assert document(tmp_path, *seeded, "--report", str(wanted))["report"] == str(wanted)
    own = document(tmp_path, *seeded, "--checkpoint-dir", "here", "--session", "s")["report"]
    assert own == "here/s/report.json"
    assert stable_bytes(wanted) == stable_bytes(tmp_path / own)


def test_what_is_printed_into_a_pipe_has_no_escapes_and_no_progress_beside_it(tmp_path: Path) -> None:
    done = corral(tmp_path, *OWN, "--size", "1", "--tasks", "p,t")
    assert done.returncode == 0
    assert ESCAPE not in done.stdout + done.stderr
    assert "Report: " in done.stdout
    assert "p" in done.stdout
    assert "2" in done.stderr  # the progress, in lines


def test_quiet_is_one_line(tmp_path: Path) -> None:
    done = corral(tmp_path, *OWN, "--size", "1", "--tasks", "p,t", "--quiet", "--session", "calm")
    assert (done.stdout, done.stderr) == ("2 of 2 trials graded, average score 1.000; session calm\n", "")


@pytest.mark.parametrize("option", ["--session", "--checkpoint-dir", "--model", "--report"])
def test_an_empty_value_is_refused(option: str, tmp_path: Path) -> None:
    done = corral(tmp_path, *OWN, option, "")
    assert (done.returncode, done.stderr) == (2, f"corral: {option} is empty\n")


def test_a_finished_session_is_not_compared_by_its_times(tmp_path: Path) -> None:
    again = [*OWN, "--size", "1", "--tasks", "p", "--session", "twice", "--compare-serial"]
    assert " x; the reports are equal" in corral(tmp_path, *again).stdout
    assert "recorded before, so the times tell nothing" in corral(tmp_path, *again).stdout


def test_a_serial_run_that_differs_says_where(tmp_path: Path) -> None:
    doubtful = ("--envs", ENVS, "--agent", "tests.support.shell_envs:doubter", "--size", "1", "--trials", "2",
                "--tasks", "t,p", "--session", "d", "--compare-serial")  # fmt: skip
    shown = corral(tmp_path, *doubtful).stdout
    assert "the reports DIFFER, not in timings only" in shown
    lines = shown.splitlines()[-4:]
    assert [line.split(";")[0] for line in lines] == [
        "  t#0: score is 1.0, serially 0.0", "  t#1: score is 1.0, serially 0.0", "  p#0: score is 1.0, serially 0.0",
        "  and 1 more",
    ]  # fmt: skip
    compared = document(tmp_path, *doubtful)["compare_serial"]
    assert (compared["equal"], compared["differing"]) == (False, 4)
    assert [(one["what"], one["here"], one["there"]) for one in compared["differences"]] == [
        ("t#0", "1.0", "0.0"), ("t#1", "1.0", "0.0"), ("p#0", "1.0", "0.0"),
    ]  # fmt: skip


def test_an_async_factory_is_given_the_model_and_its_address(tmp_path: Path) -> None:
    given = document(
        tmp_path, "--envs", ENVS, "--agent", "tests.support.shell_envs:late", "--tasks", "t", "--size", "1",
        "--model", "a/b", "--api-base", "http://h/v1", "--think-time", "0.01",
    )  # fmt: skip
    assert given["tasks"] == {"t": {"scores": [1.0]}}
    assert json.loads((tmp_path / given["report"]).read_text())["model"] == "a/b"


@pytest.mark.parametrize("envs", ["orbits", "balance"])
def test_the_templates(envs: str, tmp_path: Path) -> None:
    """Their experts are policies; a user makes agents of them in two lines."""
    (tmp_path / "mine.py").write_text(
        f"from corral.agents import ScriptedAgent\nfrom corral.envs.{envs} import solve\n\n\n"
        "def agent(context):\n    return ScriptedAgent(solve)\n"
    )
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    given = document(
        tmp_path, "--envs", f"corral.envs.{envs}:build_envs", "--agent", "mine:agent", "--size", "2", PYTHONPATH=path
    )
    assert given["graded"] == given["planned"] > 2
    assert given["average_score"] > 0.9


# ---- stopping ----


def wait_for(condition: Any, within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "to_group", "status"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
    ids=["ctrl-c", "terminate"],
)
def test_a_stopped_run_says_how_to_go_on_and_does(
    number: signal.Signals, to_group: bool, status: int, tmp_path: Path
) -> None:
    hold, session = tmp_path / "hold", tmp_path / "sessions" / "s" / "journal.jsonl"
    hold.touch()
    waiting = ("--envs", ENVS, "--agent", "tests.support.shell_envs:waiter", "--size", "2", "--max-concurrency", "4",
               "--tasks", "p,q,t", "--session", "s", "--checkpoint-dir", "sessions")  # fmt: skip
    run = start(("-m", "corral.pool", *waiting), tmp_path, CORRAL_TEST_HOLD=str(hold))
    wait_for(lambda: session.exists() and len(session.read_text().splitlines()) == 2)
    children = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
    (os.killpg if to_group else os.kill)(run.pid, number)
    _, errors = run.communicate(timeout=20)
    assert run.returncode == status, errors
    assert "Traceback" not in errors
    assert "--session s goes on" in errors.replace("\n", " ")
    assert remain(children) == []
    hold.unlink()
    given = document(tmp_path, *waiting, CORRAL_TEST_HOLD=str(hold))
    assert given["graded"] == given["planned"] == 3


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    run = start(
        ("-m", "corral.pool", "--envs", ENVS, "--agent", "tests.support.shell_envs:waiter", "--size", "1", "--tasks",
         "p,t", "--max-concurrency", "2", "--session", "s"), tmp_path, CORRAL_TEST_HOLD=str(hold),
    )  # fmt: skip
    session = tmp_path / "benchmark_checkpoints" / "s" / "journal.jsonl"
    wait_for(lambda: session.exists() and len(session.read_text().splitlines()) == 2)
    children = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
    run.send_signal(signal.SIGINT)
    run.send_signal(signal.SIGINT)
    _, told = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "what was finished is kept. The same command with --session s goes on." in told.splitlines()[-1]
    assert remain(children) == []


# ---- a terminal ----


def test_on_a_terminal_progress_is_live(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    command = ["-m", "corral.pool", *OWN, "--size", "1", "--trials", "2", "--tasks", "p,t"]
    variables = environment(TERM="xterm-256color", COLUMNS="100", LINES="40")
    with subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, env=variables, stdin=terminal,
        stdout=terminal, stderr=terminal,
    ) as run:  # fmt: skip
        os.close(terminal)
        shown = b""
        try:
            while part := os.read(main, 65536):
                shown += part
        except OSError:  # the other end is closed
            pass
        assert run.wait(20) == 0
    os.close(main)
    text = shown.decode()
    assert ESCAPE in text
    assert re.search(r"4.{0,40}/.{0,40}4|4 of 4", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)), text
    assert "\x1b[?25h" in text  # the cursor is back


# ---- without --envs ----


@pytest.mark.slow
def test_wetlab_by_its_expert(tmp_path: Path) -> None:
    given = document(tmp_path, "--size", "2", "--trials", "1")
    assert given["graded"] == given["planned"] > 3
    assert given["average_score"] > 0.8
