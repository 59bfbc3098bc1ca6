"""What a report says beside scores: where the time went, memory, tokens and what they cost. Pure.

All of it is read from the trials' records, so that a report built from a journal says the same as the run's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.errors import ConfigError
from corral.plain import plain
from corral.report.metrics import mean, total
from corral.types import TaskTrialResult

PHASES = ("queued", "configured", "agent", "tools", "scored")
"""The parts of a trial's time, in their order. ``agent`` is here without its tool calls."""


def tool_seconds(trial: TaskTrialResult) -> float:
    """Seconds that the trial's tool calls took, added up."""
    return seconds_of_calls(trial.state.get("tool_calls"))


def seconds_of_calls(calls: object) -> float:
    """The same, of a state's tool calls."""
    return total(_duration(call) for call in calls) if isinstance(calls, list | tuple) else 0.0


def _duration(call: object) -> float:
    seconds = call.get("duration") if isinstance(call, Mapping) else getattr(call, "duration", None)
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def phases(trial: TaskTrialResult) -> dict[str, float]:
    """Seconds by phase. Tool calls of one trial may overlap, so ``agent`` is what they leave of its time, 0 or more."""
    times, tools = trial.timings, tool_seconds(trial)
    return {
        "queued": times.queued,
        "configured": times.configured,
        "agent": max(0.0, times.agent - tools),
        "tools": tools,
        "scored": times.scored,
    }


def peak_memory(trial: TaskTrialResult) -> int | None:
    """Bytes of the greatest attempt; None where nothing was measured, as in-process."""
    return max((attempt.peak_rss for attempt in trial.attempts if attempt.peak_rss), default=None)


def resources(trials: Iterable[TaskTrialResult]) -> dict[str, Any]:
    """The report's ``time`` and ``peak_rss``."""
    rows = [(phases(trial), peak_memory(trial)) for trial in trials]
    return {
        "time": {
            name: {"total_s": total(row[name] for row, _ in rows), "mean_s": mean(row[name] for row, _ in rows)}
            for name in PHASES
        },
        "peak_rss": max((peak for _, peak in rows if peak is not None), default=None),
    }


def add_numbers(so_far: dict[str, Any], usage: Mapping[str, Any]) -> None:
    """Add every number in ``usage`` to that of its name in ``so_far``, nested ones too."""
    for name, value in usage.items():
        if isinstance(value, Mapping):
            if isinstance(nested := so_far.setdefault(name, {}), dict):
                add_numbers(nested, value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            known = so_far.get(name, 0)
            if not isinstance(known, dict):
                so_far[name] = known + value


def flat_numbers(usage: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested usage by dotted names, such as ``details.cached``."""
    found: dict[str, float] = {}
    for name, value in plain(usage).items():
        if isinstance(value, dict):
            found |= flat_numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = value
    return found


class Cost:
    """A metric: what the run's tokens cost, in total and per trial.

    ``prices`` are per million tokens, by the name that the agent's ``token_usage`` has for them (dotted where nested):
    ``Cost({"prompt_tokens": 3.0, "completion_tokens": 15.0})``. Names that only one side has cost nothing; tokens that
    the agent counts twice, such as cached ones within the prompt's, are priced by their difference.
    """

    def __init__(self, prices: Mapping[str, float], *, name: str = "cost") -> None:
        for kind, price in prices.items():
            if isinstance(price, bool) or not isinstance(price, int | float):
                raise ConfigError(f"the price of {kind!r} must be a number per million tokens, not {price!r}")
        self.name = name
        self._prices = dict(prices)

    def of(self, usage: Mapping[str, Any]) -> float:
        """What the tokens of ``usage`` cost."""
        numbers = flat_numbers(usage)
        return total(numbers.get(kind, 0) * price / 1e6 for kind, price in self._prices.items())

    def compute(self, result: Any) -> dict[str, float]:
        """The value in the report."""
        costs = [self.of(trial.token_usage) for trial in result.trials]
        return {"total": total(costs), "per_trial": mean(costs)}
