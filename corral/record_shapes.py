"""What a journal's lines look like: the kinds of value that each name may have. Pure.

A line that differs is refused, and it is said in what (``misfit``). But agents and routers that anybody wrote give some
of the values: those are put into shape (``fitted``), and cost neither the trial nor the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.types import shown

_NUMBER = (int, float)
_TEXT_OR_NONE = (str, type(None))
_NUMBER_OR_NONE = (int, float, type(None))

Shape = Mapping[str, tuple[type, ...]]

TRIAL: Shape = {
    "task_id": (str,), "trial_index": (int,), "score": _NUMBER, "state": (dict,), "tool_statistics": (dict,),
    "duration": _NUMBER, "token_usage": (dict,), "messages": (list,), "agent_status": _TEXT_OR_NONE,
    "error_message": _TEXT_OR_NONE, "surrendered": (bool,), "attempts": (list,), "failure": _TEXT_OR_NONE,
    "graded": (bool,), "worker": (dict, type(None)), "timings": (dict,), "warnings": (list,),
}  # fmt: skip
ATTEMPT: Shape = {
    "number": (int,), "failure": _TEXT_OR_NONE, "message": _TEXT_OR_NONE, "phase": _TEXT_OR_NONE,
    "worker": (dict, type(None)), "exit_status": (int, type(None)), "peak_rss": _NUMBER_OR_NONE,
    "cpu_seconds": _NUMBER_OR_NONE, "traceback": (str,), "output": (str,), "started_at": _NUMBER_OR_NONE,
    "opened": _NUMBER_OR_NONE, "seconds": _NUMBER,
}  # fmt: skip
TIMINGS: Shape = {"queued": _NUMBER, "configured": _NUMBER, "agent": _NUMBER, "scored": _NUMBER}
WORKER: Shape = {
    "slot": (int,), "pid": (int, type(None)), "trial_pid": (int, type(None)), "node": _TEXT_OR_NONE,
}  # fmt: skip
HEADER: Shape = {"session": (str,), "created": (str,), "versions": (dict,), "plan": (dict,), "fingerprint": (dict,)}
PLAN: Shape = {"task_ids": (list,), "trials_per_task": (int,), "seed": (int, type(None))}
FINGERPRINT: Shape = {"tasks": (dict,), "model": _TEXT_OR_NONE}
RUN: Shape = {
    "run_name": _TEXT_OR_NONE, "model": _TEXT_OR_NONE, "created": (str,), "wall_s": _NUMBER_OR_NONE,
    "trials_per_task": (int,), "k_values": (list,), "settings": (dict,), "pool": (dict, type(None)),
    "journal": _TEXT_OR_NONE, "metrics": (dict,), "task_ids": (list,),
}  # fmt: skip


def misfit(line: Mapping[str, Any], shape: Shape, where: str = "") -> str | None:
    """In what ``line`` differs from ``shape``, if it does. Names that are missing or not known do not count."""
    for name, kinds in shape.items():
        if name in line and not isinstance(line[name], kinds):
            return f"its {where}{name} is {shown(line[name])}"
    return None


def misfit_of_trial(record: Mapping[str, Any]) -> str | None:
    """In what a trial's record differs from one."""
    if found := misfit(record, _TRIAL_OF_OURS):
        return found
    for attempt in record.get("attempts", ()):
        if not isinstance(attempt, dict) or "number" not in attempt:
            return f"one of its attempts is {shown(attempt)}"
        if found := misfit(attempt, ATTEMPT, "attempt's ") or _misfit_of_worker(attempt.get("worker")):
            return found
    return misfit(record.get("timings", {}), TIMINGS, "timings' ") or _misfit_of_worker(record.get("worker"))


def _misfit_of_worker(worker: Mapping[str, Any] | None) -> str | None:
    return None if worker is None else misfit(worker, WORKER, "worker's ")


def misfit_of_header(header: Mapping[str, Any]) -> str | None:
    """In what a session's header differs from one."""
    found = misfit(header, HEADER)
    return found or misfit(header["plan"], PLAN, "plan's ") or misfit(header["fingerprint"], FINGERPRINT, "")


def fitted(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The record with what agents and routers gave put into shape; itself where there is nothing to do."""
    wrong = [name for name in _OF_OTHERS if name in record and not isinstance(record[name], TRIAL[name])]
    if not wrong:
        return record
    told = [f"{name} was given as {shown(record[name])}" for name in wrong if record[name] is not None]
    fit = {name: _fitted(name, record[name]) for name in wrong}
    return {**record, **fit, "warnings": [*record.get("warnings", ()), *told]}


_OF_OTHERS = ("state", "tool_statistics", "token_usage", "messages", "agent_status", "error_message", "surrendered")


def _fitted(name: str, given: Any) -> Any:
    kind = TRIAL[name][0]
    if given is None or kind is dict:
        return kind()
    if kind is list:
        return [given]
    return bool(given) if kind is bool else str(given)


_TRIAL_OF_OURS = {name: kinds for name, kinds in TRIAL.items() if name not in _OF_OTHERS}
