"""What an environment server counts, for Prometheus: its pool, its trials, its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Gauges = Callable[[], dict[str, float]]
"""Gives the present value of each gauge by its name."""

_HELP = {
    "slots": "Slots of the worker pool.",
    "slots_idle": "Slots whose worker is ready and free.",
    "slots_leased": "Slots that a trial or episode holds.",
    "slots_starting": "Slots whose worker is starting.",
    "worker_restarts": "Workers that took the place of one that was lost.",
    "trials_open": "Trials that are open.",
    "trials_waiting": "Trials that wait for a place.",
    "calls_running": "Calls into environments that run or wait for their turn.",
}


class Counters:
    """The counters of one server, in a registry of their own: several servers may live in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.opened = Counter("corral_trials_opened", "Trials opened.", ["mode"], registry=self._registry)
        self.failed = Counter("corral_trials_failed", "Trials that broke.", ["kind"], registry=self._registry)
        self.seconds = Histogram(
            "corral_call_seconds", "Calls into environments, waiting included.", ["action"], registry=self._registry
        )

    def watch(self, gauges: Gauges) -> None:
        """Tell these gauges too."""
        self._registry.register(_Gauges(gauges))

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self._registry)


class _Gauges:
    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def describe(self) -> list[Any]:
        """Nothing ahead of time: a registry would call ``collect`` for it."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges now."""
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"corral_{name}", _HELP[name], value=value)
