"""A session as one HTML file: figures, grid of trials, failures with their evidence, transcripts, timeline.

Guarantees
    - The file needs nothing beside it: styles, script and data are inside, and a policy in it forbids the network.
    - Nothing that a task, a model or a program wrote is markup in it: data stands as JSON, and the script only ever
      makes text of it.
    - A trial's details are read by the browser only when they are opened. Beyond ``MAX_DETAILS`` trials only failed
      ones have theirs in the page, and long texts are cut; ``report.json`` holds everything.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from corral.plain import plain
from corral.records import encode, reread
from corral.report import files
from corral.report.figures import flat_numbers, peak_memory, phases
from corral.report.timeline import Timeline, outcome, restarts, timeline
from corral.report.transcript import Call, Turn, as_json, as_text, turns
from corral.types import TaskTrialResult

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

MAX_DETAILS = 3000
"""Trials with their transcripts in the page; of a larger session, failed ones first."""

MAX_TEXT = 50_000
"""Characters of one text in the page."""

MAX_REASON = 400
"""Characters of a failure's reason in a list."""

Data = dict[str, Any]


def write_html(result: BenchmarkResult, path: str | os.PathLike[str]) -> Path:
    """Write the page of ``result`` to ``path`` in one step."""
    return files.write_chunks(path, (text.encode("utf-8", "backslashreplace") for text in _page(result)))


def _page(result: BenchmarkResult) -> Iterator[str]:
    # Split first: a run may be named "$details".
    start, rest = _part("page.html").split("$details")
    before_data, rest = rest.split("$data")
    before_script, end = rest.split("$js")
    title = html.escape(f"{result.run_name or result.session_id} | Corral")
    yield Template(start).substitute(title=title, css=_part("page.css"))
    yield from _details(result)
    yield before_data
    yield _embedded(_overview(result))
    yield before_script
    yield _part("page.js")
    yield end


def _part(name: str) -> str:
    return resources.files("corral.report").joinpath("page", name).read_text("utf-8")


def _embedded(data: object) -> str:
    """JSON that may stand in a script element: no "<" in it, so nothing ends or opens an element."""
    return encode({"data": data}).decode().removeprefix('{"data":').removesuffix("}\n").replace("<", "\\u003c")


def _overview(result: BenchmarkResult) -> Data:
    """What the page shows before a trial is opened."""
    numbers = {task_id: number for number, task_id in enumerate(result.task_results)}
    tasks = [
        {"id": task_id, **task.head(result.k_values), "trials": [_row(trial) for trial in task.trials]}
        for task_id, task in result.task_results.items()
    ]
    for task in tasks:
        del task["scores"]
    return plain({  # type: ignore[no-any-return]
        **result.head(),
        "created": result.created.strftime("%Y-%m-%d %H:%M %z"),
        "tasks": tasks,
        "timeline": _timeline(timeline(result.trials), numbers, result.pool),
    })  # fmt: skip


def _row(trial: TaskTrialResult) -> list[Any]:
    message = trial.error_message or ("surrendered" if trial.surrendered else None)
    if message is not None and len(message) > MAX_REASON:
        message = message[:MAX_REASON] + " ..."
    attempts = max(1, len(trial.attempts))
    return [
        trial.trial_index, trial.score if trial.graded else None, outcome(trial), trial.failure, message,
        _short(trial.duration), attempts,
    ]  # fmt: skip


def _timeline(line: Timeline, numbers: Mapping[str, int], pool: object) -> Data:
    renewed = restarts(pool, line)
    return {
        "length": line.length,
        "waiting": [(_short(at), count) for at, count in line.waiting],
        "running": [(_short(at), count) for at, count in line.running],
        "lanes": [
            {
                "name": lane.name,
                "restarts": [_short(at) for at in renewed.get(lane.name, ())],
                "spans": [
                    (
                        numbers[span.trial.task_id], span.trial.trial_index, span.attempt.number, _short(span.start),
                        _short(span.opened), _short(span.end), span.outcome,
                    )
                    for span in lane.spans
                ],
            }
            for lane in line.lanes
        ],
    }  # fmt: skip


def _short(seconds: float) -> float:
    return round(seconds, 4)


# --- One trial ---


def _details(result: BenchmarkResult) -> Iterator[str]:
    shown = list(result.trials)
    if len(shown) > MAX_DETAILS:
        shown = sorted(shown, key=lambda trial: outcome(trial) != "failed")[:MAX_DETAILS]
    numbers = {task_id: number for number, task_id in enumerate(result.task_results)}
    for trial in shown:
        name = f"t{numbers[trial.task_id]}-{trial.trial_index}"
        yield f'<script type="application/json" id="{name}">{_embedded(_detail(result.whole(trial)))}</script>\n'


def _detail(trial: TaskTrialResult) -> Data:
    state = reread(trial.state)
    spoken = [_turn(turn) for turn in turns(trial.messages)]
    calls = state.pop("tool_calls", None) or []
    answer, feedback = state.pop("submitted_answer", None), state.pop("feedback", None)
    return {
        "answer": None if answer is None else _cut(as_text(answer)),
        "feedback": None if feedback is None else _cut(as_text(feedback)),
        "attempts": plain(trial.attempts),
        "warnings": trial.warnings,
        "turns": spoken,
        "calls": [_call(call, brief=bool(spoken)) for call in calls if isinstance(call, dict)],
        "time": phases(trial),
        "tokens": flat_numbers(trial.token_usage) | {"peak memory (bytes)": peak_memory(trial)},
        "state": _cut(as_text(state)),
    }


def _turn(turn: Turn) -> list[Any]:
    calls = [(call.tool, _arguments(call)) for call in turn.calls]
    return [turn.role, _cut(turn.text), calls, turn.tool, None if turn.error is None else _cut(turn.error)]


def _arguments(call: Call) -> str:
    return _cut(", ".join(f"{name}={as_json(value)}" for name, value in call.arguments.items()))


def _call(call: Mapping[str, Any], *, brief: bool) -> list[Any]:
    arguments, outcome_ = as_json(call.get("arguments")), call.get("error") or as_json(call.get("result"))
    text = arguments if brief and call.get("success") else f"{arguments} → {outcome_}"
    return [call.get("tool"), call.get("success"), call.get("duration"), _cut(text, 300 if brief else MAX_TEXT)]


def _cut(text: str, limit: int | None = None) -> str:
    limit = MAX_TEXT if limit is None else limit
    left = len(text) - limit
    return text if left <= 0 else f"{text[:limit]} ... ({left} more characters are in report.json)"
