"""What a tool call costs through the worker pool, beside the peers and the bare pipe, on the same work in the same run.

Every subject answers with what it was sent. Corral's is the whole way of an agent's tool call: router, validation,
wire, environment, record. Rounds of all subjects alternate, so that a noisy moment hits all of them.

The first call of a round finds processors asleep and their caches filled by the others' rounds: it stands by itself, as
"first". It and the few that follow it, one for each 80 of a round, are in no other column.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import anyio

from benchmarks.callers import CORRAL, EXECUTOR, LOKY, PIPE, PIPE5, SOCKET, callers
from benchmarks.measuring import TIMING_COLUMNS, Call, Timings, count, ratio, time_calls
from benchmarks.report import Report, progress

BACKENDS = ("asyncio", "uvloop", "trio")
WARM = 20
"""Calls before the first round, at most."""
PER_COLD_CALL = 80
"""Calls of a round for each that goes before them: none of these is among the hundredth that p99 leaves out."""


@dataclass(frozen=True)
class Payload:
    """What is sent there and back."""

    name: str
    size: int
    calls: int
    """In a round, for each subject."""
    is_array: bool = False

    def value(self) -> Any:
        """A text, or an array of floats; ImportError without NumPy."""
        if not self.is_array:
            return "x" * self.size
        import numpy

        return numpy.arange(self.size // 8, dtype=float)


PAYLOADS = {
    payload.name: payload
    for payload in (
        Payload("100B", 100, 400),
        Payload("10kB", 10_000, 200),
        Payload("10MB", 10_000_000, 5),
        Payload("10MB-array", 10_000_000, 5, is_array=True),
    )
}
COLUMNS = {
    "subject": "text", "first": "s", **TIMING_COLUMNS, "/ pipe": "x", "/ Executor": "x", "/ loky": "x",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--payloads", nargs="+", choices=PAYLOADS, default=list(PAYLOADS), help="what is sent")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS), help="event loops")
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--calls", type=count, help="calls of each subject in a round (400 of 100 B, fewer of more)")


def run(options: argparse.Namespace) -> Report:
    report = Report("calls", vars(options))
    for name in options.payloads:
        payload = PAYLOADS[name]
        for backend in options.backends:
            measure_one(report, payload, backend, options)
    return report


def measure_one(report: Report, payload: Payload, backend: str, options: argparse.Namespace) -> None:
    """One table: a payload on an event loop."""
    number = options.calls or payload.calls
    title = f"A tool call, {payload.name} there and back, {backend} ({options.rounds} rounds of {number} calls)"
    try:
        value = payload.value()
        settings = _settings_of(backend)
    except ImportError as error:
        report.table(title, COLUMNS, [{"subject": f"{error.name}: not installed"}])
        return
    progress(f"{payload.name} on {backend}")
    timings, firsts, missing = anyio.run(measure, backend, value, number, options.rounds, **settings)
    pipe = PIPE5 if payload.is_array else PIPE
    rows: list[dict[str, Any]] = [
        {
            "subject": name,
            "first": firsts[name].median,
            **timing.figures(),
            "/ pipe": ratio(timing, timings[pipe]),
            "/ Executor": ratio(timing, timings[EXECUTOR]),
            "/ loky": ratio(timing, timings.get(LOKY)),
        }
        for name, timing in timings.items()
    ]
    rows += [{"subject": f"{name}: not installed"} for name in missing]
    report.table(title, COLUMNS, rows, f"the pipe: {pipe}")
    add_targets(report, payload, backend, timings)


def _settings_of(backend: str) -> dict[str, Any]:
    if backend == "trio":
        import trio  # noqa: F401 - ImportError, where it is not installed

        return {"backend": "trio"}
    if backend == "uvloop":
        import uvloop  # noqa: F401

    return {"backend": "asyncio", "backend_options": {"use_uvloop": backend == "uvloop"}}


async def measure(
    backend: str, value: Any, number: int, rounds: int
) -> tuple[dict[str, Timings], dict[str, Timings], list[str]]:
    """The timings by subject, those of the first calls, and the subjects that are not installed."""
    makes, missing = callers(backend), []
    timings: dict[str, Timings] = {}
    firsts: dict[str, Timings] = {}
    async with AsyncExitStack() as stack:
        calls: dict[str, Call] = {}
        for name, make in makes.items():
            try:
                calls[name] = await make(stack)
            except ImportError:
                missing.append(name)
        for name, call in calls.items():
            await time_calls(call, value, min(WARM, number), _check_of(name))
            timings[name], firsts[name] = Timings(), Timings()
        for _ in range(rounds):
            for name, call in calls.items():
                cold = await time_calls(call, value, max(1, number // PER_COLD_CALL), _check_of(name))
                firsts[name].rounds.append(cold[:1])
                timings[name].rounds.append(await time_calls(call, value, number, _check_of(name)))
    return timings, firsts, missing


def _check_of(name: str) -> Callable[[Any, Any], bool]:
    return _same_bytes if name == SOCKET else _same


def _same(sent: Any, got: Any) -> bool:
    return bool(sent == got) if isinstance(sent, str) else bool((sent == got).all())


def _same_bytes(sent: Any, got: Any) -> bool:
    return bool(got == (sent.encode() if isinstance(sent, str) else sent.tobytes()))


def add_targets(report: Report, payload: Payload, backend: str, timings: dict[str, Timings]) -> None:
    own, what = timings[CORRAL], f"a tool call of {payload.name}, {backend}"
    if payload.is_array:
        report.target(f"{what}, to the bare pipe with protocol 5", ratio(own, timings[PIPE5]), 1.3)
    if payload.name != "100B":
        return
    report.target(f"{what}, to the bare pipe", ratio(own, timings[PIPE]), 2.0 if backend == "asyncio" else 1.5)
    if backend == "asyncio":
        report.target(f"{what}, to ProcessPoolExecutor", ratio(own, timings[EXECUTOR]), 0.33)
        report.target(f"{what}, to loky", ratio(own, timings.get(LOKY)), 0.25)
        report.target(f"{what}, p99 to its own median", own.p99 / own.median, 3.0)
