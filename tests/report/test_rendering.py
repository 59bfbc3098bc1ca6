"""The tables at the end of a run: what they say, and that nothing in them breaks a terminal."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from corral.errors import FailureKind
from corral.report import BenchmarkResult, rendering
from corral.report.text import clock_time, duration, figure, rate
from corral.types import TaskTrialResult
from tests.support.results import graded, lost, run_on


def rendered(result: BenchmarkResult, *, width: int = 80, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system="standard")
    rendering.print_result(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain_rendered(result: BenchmarkResult, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    rendering.print_result(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_tasks_and_figures() -> None:
    result = BenchmarkResult.collect(
        "session-x",
        ["titration", "buffer"],
        [graded("titration", 0), graded("titration", 1, 0.0), graded("buffer", 0), graded("buffer", 1)],
        trials_per_task=2,
        k_values=(1, 2),
        wall_seconds=3.21,
    )
    lines = rows(plain_rendered(result))
    assert ["task", "graded", "score", "successes", "failures"] in lines
    assert ["titration", "2", "of", "2", "0.500", "1"] in lines
    assert ["buffer", "2", "of", "2", "1.000", "2"] in lines
    assert ["score", "0.750", "95", "%:", "0.010", "to", "0.999"] in lines
    assert ["pass@1", "0.750", "95", "%:", "0.010", "to", "0.999"] in lines
    assert ["pass@2", "1.000", "95", "%:", "0.012", "to", "1.000"] in lines
    assert ["pass^2", "0.500", "95", "%:", "0.002", "to", "0.998"] in lines
    assert ["trials", "4", "of", "4", "graded"] in lines
    assert ["time", "3.21", "s"] in lines
    assert ["session", "session-x"] in lines


def test_an_incomplete_run_says_so_with_bounds_and_the_first_cause() -> None:
    result = BenchmarkResult.collect(
        "s", ["a", "b"], [graded("a", 0), lost("b", 0, FailureKind.INFRASTRUCTURE, "401: wrong key")]
    )
    text = plain_rendered(result)
    assert "0.500 (0.500 to 1.000)" in text
    assert "1 of 2 graded" in text
    assert "not graded    infrastructure 1" in text
    assert "b#0: 401: wrong key" in text
    assert "no graded trial: infrastructure 1" in text


@pytest.mark.parametrize(("score", "told"), [(1.0, False), (0.0, False), (7.5, True), (-1.0, True)])
def test_scores_beyond_what_the_bounds_take_them_for_are_told(score: float, told: bool) -> None:
    text = plain_rendered(
        BenchmarkResult.collect(
            "s", ["a", "b"], [graded("a", 0, score), lost("b", 0, FailureKind.INFRASTRUCTURE, "401: wrong key")]
        )
    )
    assert (f"here are some from {score:g} to {score:g}." in " ".join(text.split())) == told


def test_why_trials_are_graded_with_0_that_gave_no_answer() -> None:
    def ended(index: int, status: str | None, message: str | None, **more: Any) -> TaskTrialResult:
        return TaskTrialResult("a", index, error_message=message, agent_status=status, **more)

    result = BenchmarkResult.collect("s", ["a", "b"], [
        *(ended(index, "max_iterations", "no answer within 3 iterations") for index in range(3)),
        ended(3, "no_answer", "the agent gave no answer"),
        ended(4, "surrender", None, surrendered=True),
        ended(5, None, "the trial did not end", failure=FailureKind.TRIAL_TIMEOUT),
        ended(6, None, "the answer cannot be accepted", failure=FailureKind.SUBMISSION),
        ended(7, "max_iterations", None, score=1.0),
        ended(8, "success", None),
        lost("b", 0, FailureKind.AGENT),
    ], trials_per_task=9)  # fmt: skip
    assert result.unanswered == {"max_iterations": 3, "no_answer": 1, "surrendered": 1, "trial_timeout": 1}
    line = "graded 0      without an answer: max_iterations 3, no_answer 1, surrendered 1, trial_timeout 1"
    assert line in plain_rendered(result, 200).splitlines()
    assert "without an answer" not in plain_rendered(run_on(1))


def test_the_plain_output_is_aligned_and_without_colour() -> None:
    text = plain_rendered(run_on(1))
    assert "\x1b" not in text
    lines = text.splitlines()
    heading = next(line for line in lines if line.startswith("task"))
    first = next(line for line in lines if line.startswith("parent"))
    assert first.index("1 of 2") + len("1 of 2") == heading.index("graded") + len("graded")


def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in rendered(run_on(1), terminal=True)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_line_fits(width: int) -> None:
    ids = ["a-task-with-a-rather-long-name-" + "x" * 60, "short"]
    result = BenchmarkResult.collect(
        "s" * 100, ids, [lost(ids[0], 0, message="no " * 300), lost(ids[1], 0, FailureKind.MEMORY)], pool=_pool()
    )
    text = plain_rendered(result, width)
    assert max(map(len, text.splitlines())) <= width
    assert "x" * 5 in text


def test_nothing_in_a_text_has_an_effect() -> None:
    name = "[red]t[/red]\x1b[2J\ud800\nnext"
    result = BenchmarkResult.collect("s", [name], [lost(name, 0, message="[bold]\x07 boom[/nonsense]")])
    text = plain_rendered(result, 200)
    text.encode("utf-8")
    assert "\x1b" not in text
    assert r"[red]t[/red]\x1b[2J\ud800\nnext" in text
    assert r"[bold]\x07 boom[/nonsense]" in text


def test_an_output_in_another_encoding_gets_escapes() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    result = BenchmarkResult.collect("s", ["Säure"], [graded("Säure", 0)])
    rendering.print_result(result, Console(file=stream, width=80))
    stream.flush()
    assert b"S\\xe4ure" in raw.getvalue()


def _pool() -> dict[str, Any]:
    return {
        "size": 2,
        "workers": [
            {"slot": 0, "pid": 11, "trials": 5, "busy_s": 2.0, "restarts": 1, "start_s": 0.25},
            {"slot": 1, "pid": None, "trials": 0, "busy_s": None, "restarts": 0, "start_s": None},
        ],
    }


def test_the_pool() -> None:
    lines = rows(plain_rendered(BenchmarkResult.collect("s", [], [], pool=_pool(), wall_seconds=4.0)))
    assert ["slot", "pid", "trials", "busy", "restarts", "start-up"] in lines
    assert ["0", "11", "5", "50%", "1", "0.25", "s"] in lines
    assert ["1", "-", "0", "-", "0", "-"] in lines


@pytest.mark.parametrize("pool", [None, {}, {"workers": None}, {"workers": [{"slot": 0, "busy_s": "?"}, 3]}, 7])
def test_odd_statistics_lose_nothing_else(pool: Any) -> None:
    assert "session" in plain_rendered(BenchmarkResult.collect("s", [], [], pool=pool))


def test_no_tasks() -> None:
    assert ["score", "-"] in rows(plain_rendered(BenchmarkResult.collect("s", [], [])))


class Metric:
    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        self.value = value

    def compute(self, result: BenchmarkResult) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_metrics() -> None:
    metrics = (
        Metric("yield", 0.5),
        Metric("calls", {"least": 1, "most": 3}),
        Metric("broken", KeyError("x")),
        Metric("none", float("nan")),
    )
    lines = rows(plain_rendered(BenchmarkResult.collect("s", ["a"], [graded("a", 0)], metrics=metrics)))
    assert ["yield", "0.500"] in lines
    assert ["calls", "least", "1,", "most", "3"] in lines
    assert ["broken", "KeyError:", "'x'"] in lines
    assert ["none", "-"] in lines


def test_texts() -> None:
    assert [clock_time(s) for s in (-1, 7.9, 754, 3723)] == ["0:00", "0:07", "12:34", "1:02:03"]
    assert [duration(s) for s in (0.123, 34.5, 754)] == ["0.12 s", "34.5 s", "12:34"]
    assert [rate(r) for r in (12.34, 0.5, 0.001)] == ["12.3/s", "30.0/min", "3.6/h"]
    assert [figure(v) for v in (1, 0.12345, None, float("nan"), True)] == ["1.000", "0.123", "-", "-", "-"]


def test_a_result_shows_itself() -> None:
    """In a script, in an interactive session and in a notebook."""
    result = BenchmarkResult.collect("s", ["<b>"], [graded("<b>", 0)], trials_per_task=2)
    assert repr(result) == "<BenchmarkResult 's': 1 of 2 trials graded, average score 0.500>"
    assert str(result) == plain_rendered(result, 100).rstrip("\n")
    page = result._repr_html_()
    assert page.startswith("<pre")
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert re.search(r"<span style=\"[^\"]*color: #808000[^\"]*\">cancelled 1", page)
