"""One trial as text: how it came out and why, what its agent said and did, and what its process printed.

Every text that came from a task, a model or a program is made printable first: nothing in it moves the cursor of a
terminal or is markup.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from corral.records import reread
from corral.report.text import count, duration, figure, printable
from corral.report.timeline import outcome
from corral.report.transcript import Turn, as_text, turns
from corral.types import Attempt, TaskTrialResult

_WORDS = {"success": ("success", "green"), "partial": ("no success", "yellow"), "failed": ("failed", "red")}

MAX_LINES = 200
"""Lines of one text that are shown; ``report.json`` holds all of it."""

Line = tuple[str, str]
"""A text and its style."""


def print_trial(trial: TaskTrialResult, console: Console) -> None:
    """Print all that is worth reading of ``trial``; it should be a whole one, with its transcript."""
    for text, style in _lines(trial):
        shown = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
        console.print(Text(shown, style=style), soft_wrap=True, highlight=False)


def _lines(trial: TaskTrialResult) -> Iterator[Line]:
    word, style = _WORDS[outcome(trial)]
    kind = "" if trial.failure is None else f" ({trial.failure.value})"
    score = figure(trial.score) if trial.graded else "-"
    attempts = count(max(1, len(trial.attempts)), "attempt")
    yield printable(trial.trial_id), "bold"
    yield f"{word}{kind}, score {score}, {duration(trial.duration)}, {attempts}", style
    if trial.error_message is not None or trial.surrendered:
        yield from _block("why", trial.error_message or "surrendered")
    state = reread(trial.state)
    for name, key in (("answer", "submitted_answer"), ("feedback of the scorer", "feedback")):
        if state.get(key) is not None:
            yield from _block(name, as_text(state[key]))
    for warning in trial.warnings:
        yield from _block("warning", warning)
    if spoken := turns(trial.messages):
        yield from _heading("transcript")
        for turn in spoken:
            yield from _turn(turn)
    elif calls := [call for call in state.get("tool_calls") or () if isinstance(call, dict)]:
        yield from _heading("tool calls")
        for call in calls:
            result = call.get("result") if call.get("success") else call.get("error")
            yield f"  {printable(call.get('tool'))}({_compact(call.get('arguments'))}) -> {_compact(result)}", ""
    for attempt in trial.attempts:
        yield from _attempt(attempt)


def _turn(turn: Turn) -> Iterator[Line]:
    yield f"  {turn.role}{f' {printable(turn.tool)}' if turn.tool else ''}:", "dim"
    yield from _indented(turn.text, "    ")
    for call in turn.calls:
        given = ", ".join(f"{printable(name)}={_compact(value)}" for name, value in call.arguments.items())
        yield f"    {printable(call.tool)}({given})", "cyan"
    if turn.error is not None:
        yield from _indented(turn.error, "    ", "red")


def _attempt(attempt: Attempt) -> Iterator[Line]:
    facts = [
        attempt.failure.value if attempt.failure else "ended",
        f"during {attempt.phase}" if attempt.phase else "",
        f"slot {attempt.worker.slot}, pid {attempt.worker.trial_pid or attempt.worker.pid}" if attempt.worker else "",
        f"node {attempt.worker.node}" if attempt.worker and attempt.worker.node else "",
        "" if attempt.exit_status is None else f"exit status {attempt.exit_status}",
        duration(attempt.seconds),
        f"{attempt.peak_rss / 2**20:.0f} MiB" if attempt.peak_rss else "",
    ]
    yield from _heading(f"attempt {attempt.number}: {'; '.join(filter(None, facts))}")
    yield from _indented(attempt.message or "")
    if attempt.traceback:
        yield from _block("traceback", attempt.traceback)
    if attempt.output:
        yield from _block("printed by its process", attempt.output)


def _block(name: str, text: str) -> Iterator[Line]:
    yield from _heading(name)
    yield from _indented(text)


def _heading(text: str) -> Iterator[Line]:
    yield "", ""
    yield printable(text), "bold"


def _indented(text: str, indent: str = "  ", style: str = "") -> Iterator[Line]:
    lines = text.splitlines()
    if left := max(0, len(lines) - MAX_LINES):
        yield f"{indent}... {count(left, 'line')} before", "dim"
    for line in lines[left:]:
        yield f"{indent}{printable(line)}", style


def _compact(value: object) -> str:
    return printable(" ".join(as_text(value).split()))
