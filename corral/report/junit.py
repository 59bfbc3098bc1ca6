"""A session as JUnit XML, for the test pages of CI systems: a suite per task, a case per trial.

A trial without success is a failure, one that was not graded an error, and one that was not run for another's sake is
skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from corral.errors import FailureKind
from corral.report import files
from corral.report.task_results import TaskTrialResults, failure_kind
from corral.report.text import figure
from corral.types import TaskTrialResult

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold in any form."""

_SKIPPED = (FailureKind.NOT_RUN, FailureKind.CANCELLED)


def write_junit(result: BenchmarkResult, path: str | os.PathLike[str]) -> Path:
    """Write ``result`` to ``path`` in one step."""
    return files.write_chunks(path, (text.encode() for text in _document(result)))


def _document(result: BenchmarkResult) -> Iterator[str]:
    tasks = list(result.task_results.values())
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield f"<testsuites {_counts(tasks)} name={_attribute(result.run_name or result.session_id)}>\n"
    for task in tasks:
        yield f"  <testsuite {_counts([task])} name={_attribute(task.task_id)}"
        yield f' timestamp="{result.created.isoformat(timespec="seconds")}">\n'
        for trial in task.trials:
            yield from _case(result.whole(trial))
        for index in range(len(task.trials), task.n):
            yield f"    <testcase classname={_attribute(task.task_id)} name={_attribute(f'trial {index} of the plan')}>"
            yield '<skipped message="the run was stopped before it"/></testcase>\n'
        yield "  </testsuite>\n"
    yield "</testsuites>\n"


def _counts(tasks: list[TaskTrialResults]) -> str:
    kinds = [_verdict(trial) for task in tasks for trial in task.trials]
    skipped = kinds.count("skipped") + sum(task.n - len(task.trials) for task in tasks)
    seconds = sum(trial.duration for task in tasks for trial in task.trials)
    return (
        f'tests="{sum(task.n for task in tasks)}" failures="{kinds.count("failure")}" '
        f'errors="{kinds.count("error")}" skipped="{skipped}" time="{seconds:.3f}"'
    )


def _verdict(trial: TaskTrialResult) -> str:
    if not trial.graded:
        return "skipped" if trial.failure in _SKIPPED else "error"
    return "passed" if trial.success else "failure"


def _case(trial: TaskTrialResult) -> Iterator[str]:
    name = _attribute(f"trial {trial.trial_index}")
    yield f'    <testcase classname={_attribute(trial.task_id)} name={name} time="{trial.duration:.3f}">'
    verdict = _verdict(trial)
    message = trial.error_message or ("surrendered" if trial.surrendered else f"score {figure(trial.score)}")
    if verdict == "skipped":
        yield f"<skipped message={_attribute(message)}/>"
    elif verdict != "passed":
        kind = failure_kind(trial) if trial.failure else "score"
        last = trial.attempts[-1] if trial.attempts else None
        evidence = "\n".join(part for part in (last.traceback, last.output) if part) if last else ""
        yield f"<{verdict} type={_attribute(kind)} message={_attribute(message)}>{escape(_legal(evidence))}</{verdict}>"
    yield "</testcase>\n"


def _attribute(text: object) -> str:
    return quoteattr(_legal(str(text)))


def _legal(text: str) -> str:
    return _ILLEGAL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
