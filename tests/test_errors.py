"""The tree of exceptions: complete, drawn as it is, and able to cross a border as text."""

from __future__ import annotations

import inspect
import json
import re

import pytest

import corral.errors
from corral.errors import (
    TRACEBACK_LIMIT,
    TRIAL_ERRORS,
    ConfigError,
    ConfigureTimeout,
    CorralError,
    DeadlineExceeded,
    EnvStartError,
    ErrorRecord,
    FailureKind,
    MemoryExceeded,
    NotFound,
    NotInstalled,
    SerializationError,
    SessionMismatch,
    TaskGraphError,
    ToolTimeout,
    TrialError,
    WorkerDied,
    describe_exit,
    signal_name,
)


def classes() -> list[type[CorralError]]:
    members = [member for _, member in inspect.getmembers(corral.errors, inspect.isclass)]
    return [member for member in members if issubclass(member, CorralError) and member.__module__ == "corral.errors"]


def test_what_is_not_installed_is_a_matter_of_configuration_and_an_import_that_failed() -> None:
    for kind in (ConfigError, ImportError):
        with pytest.raises(kind) as caught:
            raise NotInstalled("the wetlab environments", "PHREEQC", "wetlab", ImportError("no module"))
        assert str(caught.value) == "the wetlab environments need PHREEQC: pip install 'corral[wetlab]' (no module)"


def test_every_kind_has_its_class() -> None:
    assert set(TRIAL_ERRORS) == set(FailureKind)
    assert all(error.kind is kind for kind, error in TRIAL_ERRORS.items())
    assert {error for error in classes() if issubclass(error, TrialError)} == {TrialError, *TRIAL_ERRORS.values()}


@pytest.mark.parametrize("kind", FailureKind)
def test_an_error_of_any_kind_is_restored_with_its_facts(kind: FailureKind) -> None:
    record = ErrorRecord("ValueError", "x", "Traceback ...")
    error = TRIAL_ERRORS[kind]("what happened", record=record, exit_status=-9, output="last words")
    assert isinstance(error, TrialError)
    assert (str(error), error.kind) == ("what happened", kind)
    assert (error.record, error.exit_status, error.output) == (record, -9, "last words")
    bare = TRIAL_ERRORS[kind]("x")
    assert (bare.record, bare.exit_status, bare.output) == (None, None, "")


def test_the_drawing_names_every_class_below_its_parent() -> None:
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in (inspect.getdoc(corral.errors) or "").splitlines():
        if found := re.match(r"\s*((?:[│├└─ ]{4})*)([A-Z]\w+)(?: \(\w+\))?(?:  |$)", line):
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else ""
    expected = {error.__name__: error.__bases__[0].__name__ for error in classes()} | {"CorralError": ""}
    assert drawn == expected


@pytest.mark.parametrize("error", classes())
def test_every_class_says_what_it_means(error: type[CorralError]) -> None:
    assert error.__doc__
    assert error.__doc__ != error.__base__.__doc__


def test_mistakes_of_the_caller_are_what_callers_expect() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(NotFound, LookupError)
    assert issubclass(TaskGraphError, ConfigError)
    assert issubclass(SessionMismatch, ConfigError)


def test_only_the_machinerys_failures_are_retried_and_only_the_agents_are_graded() -> None:
    assert {kind.value for kind in FailureKind if kind.retried} == {"worker_died", "env_start", "infrastructure"}
    assert {kind.value for kind in FailureKind if kind.graded} == {"trial_timeout", "submission"}


def test_deadlines_say_which_limit_passed() -> None:
    assert str(DeadlineExceeded.of_trial(2.50)) == "the trial did not end within its limit of 2.5 s"
    error = ToolTimeout.of_call("tool titrate", 3)
    assert (type(error), error.kind) == (ToolTimeout, FailureKind.TOOL_TIMEOUT)
    assert str(error) == "tool titrate did not end within its limit of 3 s"
    assert ConfigureTimeout.of_call("configuring", 3).kind is FailureKind.CONFIGURE_TIMEOUT


def test_a_death_is_described_by_pid_slot_status_and_phase() -> None:
    error = WorkerDied.during("tool titrate", pid=12, slot=3, status=-11, output="oops")
    assert "pid 12, slot 3" in str(error)
    assert "was killed by signal 11 (SIGSEGV) during tool titrate" in str(error)
    assert (error.exit_status, error.output) == (-11, "oops")
    assert "the connection" in str(WorkerDied.lost("set-up", pid=1, slot=0))
    memory = MemoryExceeded.during("tool brew", limit=2**30, peak=3 * 2**29)
    assert "used 1536 MiB during tool brew, over the memory limit of 1024 MiB" in str(memory)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-99, "was killed by signal 99 (signal 99)"),
        (None, "ended (its exit status is not known)"),
    ],
)
def test_exit_statuses_in_words(status: int | None, text: str) -> None:
    assert describe_exit(status) == text


def test_signals_have_names() -> None:
    assert (signal_name(11), signal_name(99)) == ("SIGSEGV", "signal 99")


class Stubborn(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_becomes_text() -> None:
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            error = ValueError("effect")
            error.add_note("a note")
            raise error from cause
    except ValueError as caught:
        record = ErrorRecord.of(caught)
    assert (record.type, record.message, str(record)) == ("ValueError", "effect", "ValueError: effect")
    assert "KeyError: 'cause'" in record.traceback
    assert "a note" in record.traceback


def test_an_exception_that_cannot_be_rebuilt_or_printed_becomes_text_too() -> None:
    record = ErrorRecord.of(Stubborn(1, 2))
    assert record.type.endswith(".Stubborn")
    assert record.message == "<its text cannot be made>"
    assert str(record) == "Stubborn: <its text cannot be made>"


def test_a_long_traceback_keeps_its_end() -> None:
    record = ErrorRecord.of(ValueError("x" * TRACEBACK_LIMIT + "the end"))
    assert len(record.traceback) == TRACEBACK_LIMIT
    assert record.traceback.rstrip().endswith("the end")


def test_sentences_that_help() -> None:
    assert str(NotFound("task", "x")) == "no task 'x' is open here"
    assert str(NotFound("task", "x", ["a", "b"])) == "there is no task 'x'; known: 'a', 'b'"
    assert str(NotFound("task", "x", [str(n) for n in range(20)])).endswith("'9' ...")
    mismatch = SessionMismatch("s1", ["model was 'a'", "seed is 3"])
    assert "'s1'" in str(mismatch)
    assert "\n  - model was 'a'\n  - seed is 3\n" in str(mismatch)
    record = ErrorRecord("ImportError", "no module x")
    assert str(EnvStartError.because("loading", record)) == "loading failed: ImportError: no module x"
    assert "a value of type object, which cannot be sent as data: return numbers, text" in str(
        SerializationError.of_value("tool x", object())
    )


def test_an_error_tells_the_last_line_of_the_user_s_code_that_it_went_through() -> None:
    def parse() -> None:
        json.loads("{")  # what raises is Python's own

    try:
        parse()
    except ValueError as error:
        record = ErrorRecord.of(error)
    line = parse.__code__.co_firstlineno + 1
    assert record.with_place == f"{record} (test_errors.py, line {line})"


def test_one_that_went_through_none_tells_no_line() -> None:
    assert ErrorRecord("ValueError", "x").with_place == "ValueError: x"
    frames = 'Traceback:\n  File "<frozen runpy>", line 3, in run\n  File "{0}", line 4, in f\n'
    assert ErrorRecord("ValueError", "x", frames.format(json.__file__)).with_place == "ValueError: x"
    assert ErrorRecord("ValueError", "x", frames.format(corral.errors.__file__)).with_place == "ValueError: x"
    assert ErrorRecord("ValueError", "x", frames.format("C:\\lab\\e.py")).with_place == "ValueError: x (e.py, line 4)"
