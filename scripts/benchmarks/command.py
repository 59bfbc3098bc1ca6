"""Measures how fast Corral is, beside its peers, on the same work in the same run.

    scripts/benchmark calls
    scripts/benchmark start --json start.json

Each prints tables, and beside each target what was measured. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from rich.console import Console

COMMANDS = {
    "calls": "a tool call through the pool, by payload and event loop",
    "start": "a pool's start, its first trial and all of it ready; the same after a kill",
    "throughput": "trials that do nothing, by their number: time, CPU, memory, journal, resume; trials that wait",
    "fresh": "a trial in fresh process state, by fork and by spawn, over a reused process; a crash",
    "memory": "what workers, trial processes and the supervisor hold",
    "makespan": "sessions of unequal trials, to the least that their durations allow",
    "planner": "admission and recording by themselves, by the number of trials",
    "server": "a tool call in-process, on the pool, through HTTP and MCP",
    "distributed": "a tool call on nodes of a Dask cluster: its time, calls a second of many slots, memory",
}

LEAST_WIDTH = 130
"""Columns that the tables need: where the terminal has fewer, its own way of breaking lines loses nothing."""


def main() -> int:
    options = arguments()
    console = Console()
    console.width = max(console.width, LEAST_WIDTH)
    try:
        report = importlib.import_module(f"benchmarks.{options.command}").run(options)
    except KeyboardInterrupt:
        return 130
    report.show(console)
    if options.json is not None:
        report.write(options.json)
    return 0


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    given = sys.argv[1:] if given is None else given
    parser = argparse.ArgumentParser(
        prog="scripts/benchmark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in given:  # the others' modules are not loaded: what they hold would be measured too
            module = importlib.import_module(f"benchmarks.{name}")
            command.description = module.__doc__
            module.add_arguments(command)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too, as JSON")
    return parser.parse_args(given)
