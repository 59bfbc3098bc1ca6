"""Scores the stored answers of a session again, with a changed scorer and without running agents.

Each trial gets a fresh environment, its seed, its parents' outputs, and the recorded tool calls in ``env.state``; then
its answer is submitted as its agent did. What a scorer would read beyond that (files of the workspace, a live
simulation) is gone, and such a scorer's error makes the trial not graded. Everything runs in this process, one trial
after the other. The new scores are a session of their own; the old one stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from corral.catalogue import load
from corral.environment import Environment
from corral.errors import ConfigError, TrialError
from corral.journal import Header, Journal
from corral.records import known_fields, to_record
from corral.report.result import BenchmarkResult
from corral.report.sessions import open_session
from corral.runtime import TrialRuntime
from corral.scratch import scratch_folder
from corral.tasks import task_output
from corral.types import TaskTrialResult, ToolCall, TrialKey, TrialSpec, derive_seed

_BATCH = 100
"""Records that are made durable together."""


def regrade(
    result: BenchmarkResult, build_envs: Callable[[], Mapping[str, Environment]], directory: str | os.PathLike[str]
) -> BenchmarkResult:
    """Score ``result`` again and record it as a session in ``directory``, whose name is its id.

    Raises ConfigError where ``directory`` holds a session already or the environments lack a task of the result,
    EnvStartError where they cannot be built.
    """
    folder = Path(directory)
    environments = load(build_envs)
    if lacking := [task_id for task_id in result.task_results if task_id not in environments]:
        raise ConfigError(f"the environments have no task {', '.join(map(repr, lacking))}, which the session has")
    plan = {
        "task_ids": list(result.task_results),
        "trials_per_task": result.trials_per_task,
        "seed": result.seed,
    }
    fingerprint = {"model": result.model, "regraded_from": result.session_id}
    journal = Journal.create(folder, Header.new(folder.name, plan, fingerprint, datetime.now().astimezone()))
    try:
        trials = _regraded(result, environments)
        while batch := [to_record(trial) for trial in islice(trials, _BATCH)]:
            journal.append(batch)
        again = open_session(folder)
        again = replace(
            again,
            k_values=result.k_values,
            run_name=result.run_name,
            wall_seconds=result.wall_seconds,
            settings={**result.settings, "regraded_from": result.session_id},
        )
        journal.append_run(again.closing_record())
    finally:
        journal.close()
    return open_session(folder)


def _regraded(result: BenchmarkResult, environments: Mapping[str, Environment]) -> Iterator[TaskTrialResult]:
    known = {trial.key: trial for trial in result.trials}
    with scratch_folder() as folder:
        for trial in result.whole_trials:
            if not _has_answer(trial):
                yield trial
                continue
            outputs = {}
            for parent in environments[trial.task_id].parents:
                key = TrialKey(parent, trial.trial_index)
                if key in known:
                    outputs[parent] = task_output(result.whole(known[key]).state)
            spec = TrialSpec(f"tr_{len(known):016x}", *trial.key, derive_seed(result.seed or 0, *trial.key), outputs)
            yield _scored(trial, environments[trial.task_id], spec, folder)


def _has_answer(trial: TaskTrialResult) -> bool:
    return trial.state.get("submitted_answer") is not None and not trial.surrendered


def _scored(trial: TaskTrialResult, prototype: Environment, spec: TrialSpec, folder: str | Path) -> TaskTrialResult:
    """``trial`` with the score that it gets now. Its transcript, times and attempts stay."""
    try:
        runtime = TrialRuntime(prototype, spec, folder, seed_globals=True)
        try:
            runtime.env.state.tool_calls = [_tool_call(call) for call in trial.state.get("tool_calls") or ()]
            given = runtime.submit(trial.state["submitted_answer"])
        finally:
            runtime.close()
    except TrialError as error:
        kind = error.kind
        return replace(trial, score=0.0, failure=kind, error_message=str(error), graded=kind.graded)
    return replace(trial, score=given.score, state=given.state, failure=None, error_message=None, graded=True)


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**known_fields(ToolCall, call))
