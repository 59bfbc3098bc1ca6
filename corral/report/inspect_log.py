"""A session as a log of Inspect AI (``.eval``), which ``inspect view`` opens and ``read_eval_log`` reads.

A task's trials are the epochs of one sample. The file is written without the package, trial by trial, so a session of
any size needs no memory; the tests open it with the real one. A trial that was not graded has an error and no score.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.records import encode, reread
from corral.report import files
from corral.report.figures import flat_numbers
from corral.report.intervals import Estimate
from corral.report.transcript import Call, Turn, as_text, turns
from corral.scratch import scratch_folder
from corral.types import TaskTrialResult

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

VERSION = 2
"""Of Inspect's log format."""

SCORER = "corral"

_TOKENS = {
    "input_tokens": ("input_tokens", "prompt_tokens", "input"),
    "output_tokens": ("output_tokens", "completion_tokens", "output"),
    "total_tokens": ("total_tokens", "total"),
    "input_tokens_cache_read": ("cached_input_tokens", "cache_read_input_tokens", "input_tokens_cache_read"),
    "input_tokens_cache_write": ("cache_write_tokens", "cache_creation_input_tokens", "input_tokens_cache_write"),
}
"""Inspect's names of token counts, and those that agents give them."""

_WITHIN_INPUT = ("cached_input_tokens", "cache_write_tokens")
"""Corral's own agents count these among the input tokens. Inspect does not (its ``ModelUsage``), nor does Anthropic."""

Data = dict[str, Any]


def write_inspect(result: BenchmarkResult, path: str | os.PathLike[str]) -> Path:
    """Write ``result`` to ``path``, which should end in ``.eval``, in one step."""
    with scratch_folder() as folder:
        draft = Path(folder) / "draft.eval"
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            _fill(archive, result)
        with draft.open("rb") as file:
            return files.write_chunks(path, iter(lambda: file.read(1 << 20), b""))


def _fill(archive: zipfile.ZipFile, result: BenchmarkResult) -> None:
    def put(name: str, data: object) -> None:
        archive.writestr(name, encode({"data": data})[len(b'{"data":') : -len(b"}\n")])

    spec = _spec(result)
    put("_journal/start.json", {"version": VERSION, "eval": spec, "plan": {}})
    summaries = []
    for trial in result.whole_trials:
        sample = _sample(result, trial)
        put(f"samples/{trial.task_id}_epoch_{sample['epoch']}.json", sample)
        summaries.append(_summary(sample))
    put("_journal/summaries/1.json", summaries)
    put("summaries.json", summaries)
    put("header.json", _header(result, spec))


def _header(result: BenchmarkResult, spec: Data) -> Data:
    created = result.created
    coverage = result.coverage
    ended = datetime.fromtimestamp(created.timestamp(), UTC)
    started = datetime.fromtimestamp(created.timestamp() - (result.wall_seconds or 0.0), UTC)
    return {
        "version": VERSION,
        "status": "success" if coverage.complete else "error",
        "eval": spec,
        "plan": {},
        "results": {
            "total_samples": coverage.planned,
            "completed_samples": coverage.graded,
            "scores": [{
                "name": SCORER, "scorer": SCORER, "scored_samples": coverage.graded,
                "unscored_samples": coverage.planned - coverage.graded, "metrics": _metrics(result),
            }],
        },
        "stats": {
            "started_at": started.isoformat(), "completed_at": ended.isoformat(),
            "model_usage": {_model(result): _usage(result.total_token_usage())},
        },
        "error": None if coverage.complete else _error(result.first_cause() or "incomplete", ""),
    }  # fmt: skip


def _metrics(result: BenchmarkResult) -> Data:
    statistics = result.statistics()
    found: dict[str, float] = {}

    def add(name: str, figure: Estimate | None) -> None:
        if figure is not None:
            found[name] = figure.value
            found[f"{name} stderr"] = figure.standard_error

    add("average_score", statistics["average_score"])
    add("success_rate", statistics["success_rate"])
    for kind, sign in (("pass_at_k", "pass@"), ("pass_hat_k", "pass^")):
        for k, figure in statistics[kind].items():
            add(f"{sign}{k}", figure)
    found |= flat_numbers(result.metric_values)
    return {name: {"name": name, "value": value} for name, value in found.items() if value == value}


def _spec(result: BenchmarkResult) -> Data:
    return {
        "eval_id": result.session_id,
        "run_id": result.session_id,
        "created": datetime.fromtimestamp(result.created.timestamp(), UTC).isoformat(),
        "task": result.run_name or "corral",
        "task_id": result.session_id,
        "dataset": {
            "name": "corral", "samples": len(result.task_results), "sample_ids": list(result.task_results),
            "shuffled": False,
        },
        "model": _model(result),
        "config": {"epochs": result.trials_per_task},
        "metadata": {"session": result.session_id, "seed": result.seed, "settings": result.settings},
    }  # fmt: skip


def _model(result: BenchmarkResult) -> str:
    return result.model or "none/none"


def _sample(result: BenchmarkResult, trial: TaskTrialResult) -> Data:
    state = reread(trial.state)
    messages = list(_messages(turns(trial.messages)))
    first = next((message["content"] for message in messages if message["role"] == "user"), trial.task_id)
    start = next((attempt.started_at for attempt in trial.attempts if attempt.started_at is not None), None)
    sample: Data = {
        "id": trial.task_id,
        "epoch": trial.trial_index + 1,
        "input": first,
        "target": "",
        "messages": messages,
        "output": {"model": _model(result), "choices": [], "completion": as_text(state.get("submitted_answer") or "")},
        "scores": {SCORER: _score(trial, state)} if trial.graded else {},
        "metadata": {
            "failure": trial.failure, "error_message": trial.error_message, "agent_status": trial.agent_status,
            "attempts": trial.attempts, "worker": trial.worker, "timings": trial.timings, "warnings": trial.warnings,
            "worker_output": (trial.attempts[-1].output if trial.attempts else "") or None,
        },
        "store": {"state": state},
        "model_usage": {_model(result): _usage(trial.token_usage)} if trial.token_usage else {},
        "total_time": trial.duration,
        "working_time": trial.timings.configured + trial.timings.agent + trial.timings.scored,
        "uuid": f"{result.session_id}/{trial.trial_id}",
    }  # fmt: skip
    if start is not None:
        sample["started_at"] = datetime.fromtimestamp(start, UTC).isoformat()
        sample["completed_at"] = datetime.fromtimestamp(start + trial.duration, UTC).isoformat()
    if not trial.graded:
        last = trial.attempts[-1] if trial.attempts else None
        evidence = "\n".join(part for part in (last.traceback, last.output) if part) if last else ""
        sample["error"] = _error(trial.error_message or "not graded", evidence)
    return reread(sample)  # type: ignore[no-any-return]


def _score(trial: TaskTrialResult, state: Mapping[str, Any]) -> Data:
    feedback = state.get("feedback")
    explanation = trial.error_message or ("surrendered" if trial.surrendered else None)
    if feedback is not None:
        explanation = as_text(feedback)
    answer = state.get("submitted_answer")
    return {
        "value": trial.score,
        "answer": None if answer is None else as_text(answer),
        "explanation": explanation,
        "metadata": {"success": trial.success, "surrendered": trial.surrendered},
    }


def _error(message: str, traceback: str) -> Data:
    return {"message": message, "traceback": traceback, "traceback_ansi": traceback}


def _summary(sample: Data) -> Data:
    kept = ("id", "epoch", "input", "target", "scores", "model_usage", "total_time", "working_time", "uuid")
    summary = {name: sample[name] for name in (*kept, "started_at", "completed_at") if name in sample}
    summary["metadata"] = {"failure": sample["metadata"]["failure"]}
    summary["completed"] = True
    summary["message_count"] = len(sample["messages"])
    if "error" in sample:
        summary["error"] = sample["error"]["message"]
    return summary


def _messages(found: list[Turn]) -> Iterator[Data]:
    """Inspect's chat messages; a call without an id gets one, which the next answer of that tool refers to."""
    open_calls: list[tuple[str, str]] = []
    for number, turn in enumerate(found):
        message: Data = {
            "id": f"m{number}",
            "role": turn.role if turn.role != "other" else "user",
            "content": turn.text,
        }
        if turn.role == "assistant" and turn.calls:
            message["tool_calls"] = calls = [_call(call, f"c{number}.{place}") for place, call in enumerate(turn.calls)]
            open_calls += [(call["id"], call["function"]) for call in calls]
        if turn.role == "tool":
            by_id = (call for call in open_calls if call[0] == turn.call_id)
            by_tool = (call for call in open_calls if call[1] == turn.tool)
            answered = next(by_id, None) or next(by_tool, None)
            open_calls = [call for call in open_calls if call != answered]
            known_id, known_tool = answered or (turn.call_id, turn.tool)
            message |= {"tool_call_id": known_id, "function": turn.tool or known_tool}
            if turn.error is not None:
                message["error"] = {"type": "unknown", "message": turn.error}
        yield message


def _call(call: Call, spare_id: str) -> Data:
    return {"id": call.id or spare_id, "function": call.tool, "arguments": call.arguments, "type": "function"}


def _usage(usage: Mapping[str, Any]) -> Data:
    numbers = flat_numbers(usage)
    counts = {
        name: int(next((numbers[known] for known in names if known in numbers), 0)) for name, names in _TOKENS.items()
    }
    counts["input_tokens"] -= min(counts["input_tokens"], sum(int(numbers.get(name, 0)) for name in _WITHIN_INPUT))
    return counts | {"total_tokens": counts["total_tokens"] or sum(counts.values())}
