"""Reports as files, and what of a report must be equal in two equal runs.

A report is strict JSON in UTF-8 and is written at once or not at all: a reader, or a kill at any instant, finds the
old file or the new one. ``stable`` takes away what may differ between two runs that are equal; two runs are equal
when ``stable_bytes`` gives the same bytes for both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from corral.plain import plain
from corral.records import encode


class Reportable(Protocol):
    """What can give a report: a ``BenchmarkResult``."""

    def to_report(self) -> dict[str, Any]:
        """The report as JSON data."""
        ...


Report: TypeAlias = Mapping[str, Any] | Reportable | str | os.PathLike[str]
"""A report: as data, as the result that gives it, or as the path of its file."""


def dump(value: object, *, indent: int | None = 2) -> str:
    """``value`` as strict JSON text that can be written as UTF-8: a lone surrogate stands as its escape."""
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
    # Only surrogates have no form in UTF-8, and Python's escape for them is the one of JSON.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def print_document(value: object) -> None:
    """``dump`` on standard output; where its encoding is not UTF-8, with JSON's escapes for all that is not ASCII."""
    text = dump(value)
    if not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf"):
        text = json.dumps(json.loads(text), indent=2)
    sys.stdout.write(f"{text}\n")


def write(path: str | os.PathLike[str], text: str) -> Path:
    """Write ``text`` to ``path`` in one step, durably; directories that are missing are made. Returns the path."""
    return write_chunks(path, [text.encode("utf-8")])


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """``write`` for what is made piece by piece: nothing is in place before the last piece was written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():
        # A device or a pipe, such as /dev/stdout, has no other file to be replaced by.
        with open(target, "wb") as device:
            device.writelines(chunks)
        return path
    draft = target.with_name(f".corral-{secrets.token_hex(8)}.tmp")
    try:
        with open(draft, "xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_directory(target.parent)
    return path


def _sync_directory(path: Path) -> None:
    # Makes the new name durable. Some systems cannot open or sync a directory, and need not.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def report_chunks(
    head: Mapping[str, Any], tasks: Iterable[tuple[str, Mapping[str, Any], Iterable[Mapping[str, Any]]]]
) -> Iterator[bytes]:
    """A report as JSON text, with its tasks (id, head, trials) as they come: indented, and one trial in one line.

    So a session of any size is written without being held in memory, and its file can be read with line tools.
    """
    yield _open_end(dump(head), "\n") + b',\n  "tasks": {'
    separator = b"\n"
    for task_id, task, trials in tasks:
        yield separator + b"    " + dump(task_id).encode() + b": "
        yield _open_end(dump(task).replace("\n", "\n    "), "\n    ") + b',\n      "trials": ['
        separator = b"\n"
        for trial in trials:
            yield separator + b"        " + encode(trial).rstrip(b"\n")
            separator = b",\n"
        yield b"]\n    }"
        separator = b",\n"
    yield b"}\n}\n" if separator == b"\n" else b"\n  }\n}\n"


def _open_end(text: str, indent: str) -> bytes:
    """JSON text of an object without its closing brace."""
    return text.removesuffix(f"{indent}}}").encode()


def load(report: Report) -> dict[str, Any]:
    """``report`` as JSON data of its own. ValueError for a file that holds none."""
    if isinstance(report, str | os.PathLike):
        data = plain(_parsed(Path(report).read_bytes()))  # a file may be nested more deeply than the report of a result
    elif isinstance(report, Mapping):
        data = plain(report)
    else:
        data = plain(report.to_report())
    if not isinstance(data, dict):
        raise ValueError(f"a report is a JSON object, and this is a {type(data).__name__}")
    return data


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("a report is a JSON object, and this is nested too deeply to be read") from None


# What may differ between two equal runs, by the place where it stands.
_OF_RUN = frozenset({
    "session", "run_name", "model", "seed", "created", "journal", "version", "versions", "wall_s", "settings", "pool",
    "time", "peak_rss",
})  # fmt: skip
_OF_TRIAL = frozenset({"duration", "timings", "worker"})
_OF_ATTEMPT = frozenset({
    "number", "worker", "peak_rss", "cpu_seconds", "traceback", "output", "started_at", "opened",
    "seconds",
})  # fmt: skip
_OF_STATE = frozenset({"workspace", "trial_id", "runtime_id"})
_OF_MESSAGE = frozenset({"timestamp", "created", "created_at", "duration", "elapsed", "latency"})

_VARYING = (
    (re.compile(r"\bpid \d+"), "pid <pid>"),
    (re.compile(r"\bslot \d+(, node [^\s,()]+)?"), "slot <slot>"),
    (re.compile(r"\bused \d+ MiB"), "used <n> MiB"),
    (re.compile(r"\btr_[0-9a-f]{16}\b"), "tr_<id>"),
)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")
"""In the ``repr`` that Python gives an object."""

_LEFT_BEHIND = "left behind in its process"

Rewrite: TypeAlias = Callable[[str], str]


def stable(report: Report) -> dict[str, Any]:
    """The report without what may differ between two equal runs.

    Gone are the session's id, name and seed, settings, times, pids, slots, nodes and pool. Of a trial's attempts the
    last one stays: those before it failed in the machinery, and another run need not repeat that. A trial's own
    workspace reads ``<workspace>`` wherever it stands in text, that of another task of its round
    ``<workspace of TASK>``; an object's address in memory goes. Other absolute paths inside results are data, and stay.
    """
    data = load(report)
    tasks = data.get("tasks")
    kept = _without(data, _OF_RUN)
    if isinstance(tasks, dict):
        rounds = _rounds(tasks)
        kept["tasks"] = {task_id: _stable_task(task_id, task, rounds) for task_id, task in tasks.items()}
    return kept


def stable_bytes(report: Report) -> bytes:
    """``stable`` as canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(stable(report), sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _without(data: Mapping[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


class _Round:
    """The workspaces of the trials of one index: those of one task may speak of those of the tasks it builds on."""

    def __init__(self) -> None:
        self._owners: dict[str, list[str]] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, task_id: str, workspace: str) -> None:
        """``workspace`` is that of ``task_id``; all its spellings in text are known from here on."""
        doubled = workspace.replace("\\", "\\\\")
        for spelling in {workspace, workspace.replace("\\", "/"), json.dumps(workspace)[1:-1], doubled}:
            self._owners.setdefault(spelling, []).append(task_id)
        self._pattern = None

    def rewrite(self, text: str, task_id: str) -> str:
        """``text`` of ``task_id`` with a name for each workspace that stands in it, whole or as a path's start."""
        if not self._owners:
            return text
        if self._pattern is None:
            longest_first = sorted(self._owners, key=len, reverse=True)
            self._pattern = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?![\\w-])")
        return self._pattern.sub(lambda found: self._name(found[0], task_id), text)

    def _name(self, spelling: str, task_id: str) -> str:
        owners = self._owners[spelling]
        return "<workspace>" if task_id in owners else f"<workspace of {owners[0]}>"


def _rounds(tasks: Mapping[str, Any]) -> dict[Any, _Round]:
    """The rounds by trial index."""
    rounds: dict[Any, _Round] = {}
    for task_id, task in tasks.items():
        for trial in task.get("trials", ()):
            found = rounds.setdefault(trial.get("trial_index"), _Round())
            workspace = (trial.get("state") or {}).get("workspace")
            if isinstance(workspace, str) and len(workspace) > 3:  # not "." or "/"
                found.add(task_id, workspace)
    return rounds


def _stable_task(task_id: str, task: Mapping[str, Any], rounds: Mapping[Any, _Round]) -> dict[str, Any]:
    kept = dict(task)
    kept["trials"] = [
        _stable_trial(trial, partial(rounds[trial.get("trial_index")].rewrite, task_id=task_id))
        for trial in task.get("trials", ())
    ]
    return kept


def _stable_trial(trial: Mapping[str, Any], rewrite: Rewrite) -> dict[str, Any]:
    kept = _without(trial, _OF_TRIAL)
    if isinstance(trial.get("state"), dict):
        kept["state"] = _without(trial["state"], _OF_STATE)
    if isinstance(trial.get("messages"), list):
        kept["messages"] = [_without(m, _OF_MESSAGE) if isinstance(m, dict) else m for m in trial["messages"]]
    if trial.get("attempts"):
        last = _without(trial["attempts"][-1], _OF_ATTEMPT)
        if last.get("failure") != "worker_died":  # else it is of how the trial was run: in-process there is none
            last.pop("exit_status", None)
        kept["attempts"] = [last | {"message": _without_numbers(last.get("message"))}]
    if isinstance(kept.get("warnings"), list):  # what a reused process keeps, none that is fresh does
        kept["warnings"] = [text for text in kept["warnings"] if not str(text).startswith(_LEFT_BEHIND)]
    for place in ("error_message", "warnings"):
        if place in kept:
            kept[place] = _without_numbers(kept[place])
    return {key: _rewritten(value, rewrite) for key, value in kept.items()}


def _without_numbers(text: Any) -> Any:
    """A sentence of Corral's own (or a list of them) without the pids, slots and sizes that it names."""
    if isinstance(text, list):
        return [_without_numbers(part) for part in text]
    if isinstance(text, str):
        for pattern, name in _VARYING:
            text = pattern.sub(name, text)
    return text


def _rewritten(value: Any, rewrite: Rewrite) -> Any:
    """``value`` without durations of tool calls and addresses of objects, with ``rewrite`` applied to every text."""
    if isinstance(value, str):
        return _ADDRESS.sub(" at 0x<address>", rewrite(value))
    if isinstance(value, list):
        return [_rewritten(item, rewrite) for item in value]
    if isinstance(value, dict):
        is_call = {"tool", "arguments", "duration"} <= value.keys()
        return {
            rewrite(key): _rewritten(item, rewrite)
            for key, item in value.items()
            if not (is_call and key == "duration")
        }
    return value
