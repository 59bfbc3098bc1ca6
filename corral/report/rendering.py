"""Tables and lines for the end of a run.

On a terminal they are quietly coloured; elsewhere plain, aligned text. Every text that came from a task, a model or
an error is made printable first: no markup of rich, no control character and no lone surrogate in it has an effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from corral.errors import FailureKind
from corral.plain import plain
from corral.report.comparison import Comparison
from corral.report.intervals import Difference, Estimate
from corral.report.metrics import Bounds
from corral.report.text import count, duration, figure, kinds, printable, shortened

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult, TaskTrialResults

WIDTH = 100
"""Characters of a line where nobody says how many there are."""
CAUSE_LIMIT = 400
"""Characters shown of the first cause of an incomplete run; the report holds all of it."""


def print_result(result: BenchmarkResult, console: Console) -> None:
    """Print the tables and the summary of ``result``."""
    _print(summary(result), console)


def as_text(result: BenchmarkResult) -> str:
    """The same as plain text."""
    console = Console(file=(file := StringIO()), width=WIDTH, force_terminal=False, force_jupyter=False)
    print_result(result, console)
    return file.getvalue().rstrip("\n")


def as_html(result: BenchmarkResult) -> str:
    """The same for a notebook, coloured as on a terminal."""
    console = Console(file=StringIO(), width=WIDTH, record=True, force_terminal=True, force_jupyter=False)
    _print_parts(summary(result), console)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.3">{code}</pre>')


def _print(parts: Sequence[RenderableType], console: Console) -> None:
    if console.is_terminal and console.encoding.lower().startswith("utf"):
        _print_parts(parts, console)
        return
    # In a file or a pipe lines end where their text does, which rich fills up with blanks. An output in another
    # encoding gets escapes for what it cannot show, rather than no summary at all.
    with console.capture() as capture:
        _print_parts(parts, console)
    text = "\n".join(line.rstrip() for line in capture.get().split("\n"))
    console.file.write(text.encode(console.encoding, "backslashreplace").decode(console.encoding))


def _print_parts(parts: Sequence[RenderableType], console: Console) -> None:
    for part in parts:
        console.print(part, highlight=False)


def summary(result: BenchmarkResult) -> list[RenderableType]:
    """What is worth seeing at the end of a run: the tasks, the pool, and the figures last."""
    parts: list[RenderableType] = []
    if result.task_results:
        parts += [_tasks_table(result), Text()]
    workers = _workers(result)
    if workers:
        parts += [_pool_table(workers), Text()]
    parts += _summary_lines(result)
    return parts


def _table(*columns: tuple[str, str]) -> Table:
    """A table without lines: headings and ``left``, ``right`` or ``fold`` (a left one that may break its text)."""
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False)
    for heading, kind in columns:
        if kind == "right":
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold", no_wrap=kind != "fold", min_width=len(heading))
    return table


def _tasks_table(result: BenchmarkResult) -> Table:
    table = _table(
        ("task", "fold"), ("graded", "right"), ("score", "right"), ("successes", "right"), ("failures", "fold")
    )
    for task in result.task_results.values():
        table.add_row(
            Text(printable(task.task_id)),
            f"{task.graded} of {task.n}",
            figure(task.average_score) if task.graded else "-",
            str(task.successes),
            _failures(task, running=bool(result.running)),
        )
    return table


def _failures(task: TaskTrialResults, *, running: bool) -> Text:
    failures = dict(task.failures)
    to_come = failures.pop(_TO_COME, 0) if running else 0
    found = ", ".join(filter(None, [kinds(failures), f"to come {to_come}" if to_come else ""]))
    if not task.graded and task.n and not to_come:
        return Text(f"no graded trial: {found}", style="red")
    return Text(found, style="yellow")


_TO_COME = FailureKind.CANCELLED.value
"""As what trials without a record count."""


def _trials(result: BenchmarkResult) -> str:
    graded = f"{result.coverage.graded} of {result.coverage.planned} graded"
    to_come = result.coverage.not_graded.get(_TO_COME, 0)
    return f"{graded}; the run goes on, {to_come} are to come" if result.running else graded


def _summary_lines(result: BenchmarkResult) -> Iterator[RenderableType]:
    coverage = result.coverage
    rows: list[tuple[str, str, str]] = [
        ("score", _figure(result.average_score_estimate(), result.average_score_bounds()), "bold"),
        *_pass_rows(result),
        *((name, _metric(value), "") for name, value in result.metric_values.items()),
        ("trials", _trials(result), "" if coverage.complete or result.running else "red"),
    ]
    if unanswered := result.unanswered:
        rows.append(("graded 0", f"without an answer: {kinds(unanswered)}", "yellow"))
    lost = {kind: number for kind, number in coverage.not_graded.items() if not (result.running and kind == _TO_COME)}
    if lost:
        rows.append(("not graded", kinds(lost), "red"))
        rows.append(("first cause", shortened(result.first_cause(), CAUSE_LIMIT), "red"))
    if result.wall_seconds is not None:
        rows.append(("time", duration(result.wall_seconds), ""))
    rows.append(("session", printable(result.session_id), ""))
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False, pad_edge=False)
    table.add_column(style="dim", overflow="fold", max_width=24)
    table.add_column(overflow="fold")
    for name, value, style in rows:
        table.add_row(Text(printable(name)), Text(value, style=style))
    yield table
    if not coverage.complete and coverage.planned:
        note = "A trial that was not graded counts as 0; in brackets, what the figure could have been."
        scores = [trial.score for trial in result.trials if trial.graded]
        if scores and (min(scores) < 0 or max(scores) > 1):
            note += f" They take a score for 0 to 1, and here are some from {min(scores):g} to {max(scores):g}."
        yield Padding(Text(note, style="dim"), (1, 0, 0, 0))


def _pass_rows(result: BenchmarkResult) -> Iterator[tuple[str, str, str]]:
    most = min((task.n for task in result.task_results.values()), default=0)
    for k in result.k_values:
        if k <= most:
            yield f"pass@{k}", _figure(result.pass_at_k_estimate(k), result.pass_at_k_bounds(k)), ""
    for k in result.k_values:
        if 1 < k <= most:  # pass^1 is pass@1
            yield f"pass^{k}", _figure(result.pass_hat_k_estimate(k), result.pass_hat_k_bounds(k)), ""


def _figure(value: Estimate, bounds: Bounds) -> str:
    """``0.700 (0.700 to 0.900)  95 %: 0.612 to 0.771``; each part only where there is something to say."""
    low, high = figure(bounds[0]), figure(bounds[1])
    open_range = "" if low == high else f" ({low} to {high})"
    return figure(value.value) + open_range + _interval(value)


def _interval(value: Estimate | Difference) -> str:
    return "" if math.isnan(value.low) else f"   95 %: {figure(value.low)} to {figure(value.high)}"


# --- A comparison ---


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print what changed from one run to another: the figures, then the tasks that differ."""
    rows = [("score", comparison.average_score), ("success rate", comparison.success_rate)]
    rows += [(f"pass@{k}", value) for k, value in comparison.pass_at_k.items() if k != "1"]
    rows += [(f"pass^{k}", value) for k, value in comparison.pass_hat_k.items() if k != "1"]
    table = _table(("", "fold"), ("difference", "right"), ("95 %", "right"), ("p", "right"))
    for name, value in rows:
        table.add_row(Text(name), _signed(value.value), _range(value), figure(value.p_value))
    before, after = printable(comparison.before), printable(comparison.after)
    parts: list[RenderableType] = [Text(f"{after} against {before}, {count(len(comparison.tasks), 'task')} of both")]
    parts += [Text(), table, Text(), *_changed_tasks(comparison)]
    for where, only in ((before, comparison.only_before), (after, comparison.only_after)):
        if only:
            parts.append(Text(shortened(f"only in {where}: {', '.join(only)}", CAUSE_LIMIT), style="dim"))
    if any(comparison.not_graded):
        lost = " and ".join(map(str, comparison.not_graded))
        parts.append(Text(f"not graded, and counted as 0: {lost} trials", style="yellow"))
    _print(parts, console)


def _changed_tasks(comparison: Comparison) -> Iterator[RenderableType]:
    changed = [task for task in comparison.tasks if task.before != task.after]
    if not changed:
        yield Text("No task has another average score.")
        return
    table = _table(
        ("task", "fold"), ("before", "right"), ("after", "right"), ("difference", "right"), ("95 %", "right"),
        ("p (Holm)", "right"),
    )  # fmt: skip
    for task in sorted(changed, key=lambda task: task.difference.value):
        table.add_row(
            Text(printable(task.task_id)), figure(task.before), figure(task.after), _signed(task.difference.value),
            _range(task.difference), figure(task.adjusted_p),
        )  # fmt: skip
    yield table


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.3f}"


def _range(value: Difference) -> str:
    return "-" if math.isnan(value.low) else f"{value.low:+.3f} to {value.high:+.3f}"


def _metric(value: object) -> str:
    value = plain(value)
    if isinstance(value, dict):
        return ", ".join(f"{printable(name)} {_metric(part)}" for name, part in value.items())
    return figure(value) if value is None or isinstance(value, float) else shortened(value, CAUSE_LIMIT)


# Of a worker in the pool's statistics: the key, the heading and the form of each column.
_WORKER_COLUMNS = (
    ("slot", "slot", str),
    ("node", "node", str),
    ("pid", "pid", str),
    ("trials", "trials", str),
    ("busy_share", "busy", lambda share: f"{share:.0%}"),
    ("restarts", "restarts", str),
    ("start_s", "start-up", duration),
)


def _workers(result: BenchmarkResult) -> list[Mapping[str, Any]]:
    statistics = plain(result.pool)
    workers = statistics.get("workers") if isinstance(statistics, dict) else None
    if not isinstance(workers, list):
        return []
    return [_with_share(worker, result.wall_seconds or 0.0) for worker in workers if isinstance(worker, dict)]


def _with_share(worker: Mapping[str, Any], wall_seconds: float) -> Mapping[str, Any]:
    busy = worker.get("busy_s")
    share = min(1.0, busy / wall_seconds) if isinstance(busy, int | float) and wall_seconds > 0 else None
    return {**worker, "busy_share": share}


def _pool_table(workers: Sequence[Mapping[str, Any]]) -> Table:
    """The columns that any worker has a value for."""
    shown = [column for column in _WORKER_COLUMNS if any(worker.get(column[0]) is not None for worker in workers)]
    table = _table(*((heading, "right") for _, heading, _ in shown))
    for worker in workers:
        table.add_row(*(_cell(worker.get(key), form) for key, _, form in shown))
    return table


def _cell(value: Any, form: Any) -> Text:
    if value is None:
        return Text("-")
    try:
        return Text(form(value))
    except (TypeError, ValueError):
        return Text(printable(value))
