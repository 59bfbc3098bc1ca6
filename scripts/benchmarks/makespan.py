"""How long a session of unequal trials takes, to the least that their durations allow.

Mixes of trials that wait, on a pool of 8, and of trials that compute, on a pool of 2: even and uneven ones, long tails,
chains, models with limits of their own. The lower bound is the greatest of: all durations over the slots, the longest
chain, and, for each model with a limit, its durations over that. No order may reach it; "best in order" is what the
same order takes when nothing but the trials takes time (simulated). The pool is ready before the clock starts.
"""

from __future__ import annotations

import argparse
import heapq
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from benchmarks.environments import build_graph
from benchmarks.measuring import count, cpu_seconds
from benchmarks.pools import serving
from benchmarks.report import Report, progress
from corral import ConcurrencyConfig, CorralRunner
from corral.agents import ScriptedAgent
from corral.planner import SLOT, Planner, Request, model_resource
from corral.scratch import scratch_folder
from corral.types import TrialContext

COLUMNS = {
    "mix": "text", "trials": "n", "lower bound": "s", "best in order": "s", "took": "s", "/ bound": "x",
    "/ best": "x", "CPU": "s",
}  # fmt: skip

SCALE = 4.0
"""With it a trial takes a second on average, which is short for one with a model in it: what Corral loses shows."""


@dataclass
class Mix:
    """Chains of trials by the durations of their tasks, in the order in which they are planned."""

    chains: list[list[float]]
    models: list[str] = field(default_factory=list)
    """Of each chain; none means that all have the same, without a limit."""
    limits: Mapping[str, int] = field(default_factory=dict)

    def model(self, index: int) -> str:
        """The model of a chain."""
        return self.models[index] if self.models else "any"

    @property
    def trials(self) -> int:
        """How many there are."""
        return sum(map(len, self.chains))

    def tasks(self) -> dict[str, tuple[int, float]]:
        """Chain and duration by task."""
        return {name_of(c, t): (c, s) for c, chain in enumerate(self.chains) for t, s in enumerate(chain)}

    def lower_bound(self, slots: int) -> float:
        """What no schedule can be shorter than."""
        lengths = [sum(chain) for chain in self.chains]
        bounds = [sum(lengths) / slots, max(lengths)]
        for model, limit in self.limits.items():
            bounds.append(sum(s for c, s in enumerate(lengths) if self.model(c) == model) / limit)
        return max(bounds)

    def best_in_order(self, slots: int) -> float:
        """What the planner's order takes when nothing but the trials takes time. A chain keeps its slot to its end."""
        planner = Planner({SLOT: slots} | {model_resource(model): limit for model, limit in self.limits.items()})
        for index in range(len(self.chains)):
            needs = {SLOT: 1} | {model_resource(m): 1 for m in self.limits if m == self.model(index)}
            planner.add(Request(index, needs, index))
        now, running = 0.0, list[tuple[float, int]]()
        while True:
            for key in planner.admit():
                index = int(str(key))
                heapq.heappush(running, (now + sum(self.chains[index]), index))
            if not running:
                return now
            now, index = heapq.heappop(running)
            planner.release(index)


def name_of(chain: int, task: int) -> str:
    return f"chain-{chain:03}-{task}"


def waiting_mixes(scale: float) -> dict[str, Mix]:
    """For a pool of 8."""
    dice = random.Random(8)
    uneven = [[dice.uniform(0.05, 0.5) * scale] for _ in range(256)]
    tail = [[0.1 * scale] for _ in range(440)]
    for _ in range(4):
        tail.insert(dice.randrange(220), [2.0 * scale])
    chains = [[dice.uniform(0.1, 0.3) * scale for _ in range(4)] for _ in range(48)]
    chains += [[dice.uniform(0.05, 0.2) * scale] for _ in range(64)]
    dice.shuffle(models := ["two at once"] * 32 + ["four at once"] * 48 + ["any"] * 40)
    return {
        "even": Mix([[0.25 * scale] for _ in range(128)]),
        "uneven": Mix(uneven),
        "long-tail": Mix(tail),
        "chains": Mix(chains),
        "model-limits": Mix([[0.25 * scale] for _ in models], models, {"two at once": 2, "four at once": 4}),
    }


def computing_mixes(scale: float) -> dict[str, Mix]:
    """For a pool of 2."""
    dice = random.Random(2)
    tail = [[0.1 * scale] for _ in range(50)]
    tail.insert(dice.randrange(25), [1.5 * scale])
    chains = [[dice.uniform(0.05, 0.2) * scale for _ in range(4)] for _ in range(8)]
    chains += [[dice.uniform(0.05, 0.15) * scale] for _ in range(24)]
    return {
        "even": Mix([[0.2 * scale] for _ in range(30)]),
        "uneven": Mix([[dice.uniform(0.05, 0.3) * scale] for _ in range(40)]),
        "long-tail": Mix(tail),
        "chains": Mix(chains),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mixes", nargs="+", choices=waiting_mixes(1), default=list(waiting_mixes(1)), help="only these"
    )
    parser.add_argument("--scale", type=float, default=SCALE, help="factor of all durations")
    parser.add_argument(
        "--fresh", choices=("auto", "fork", "spawn"), default="auto", help="how trial processes are made"
    )
    parser.add_argument("--waiting-slots", type=count, default=8)
    parser.add_argument("--computing-slots", type=count, default=2)


def run(options: argparse.Namespace) -> Report:
    report = Report("makespan", vars(options))
    kinds = (
        ("wait", options.waiting_slots, waiting_mixes(options.scale), 1.03),
        ("compute", options.computing_slots, computing_mixes(options.scale), 1.08),
    )
    for tool, slots, mixes, limit in kinds:
        rows = []
        for name, mix in mixes.items():
            if name not in options.mixes:
                continue
            progress(f"{name}: {mix.trials} trials that {tool}")
            took, used = anyio.run(session, mix, tool, slots, options.fresh)
            bound, best = mix.lower_bound(slots), mix.best_in_order(slots)
            rows.append({"mix": name, "trials": mix.trials, "lower bound": bound, "best in order": best, "took": took,
                         "/ bound": took / bound, "/ best": took / best, "CPU": used})  # fmt: skip
            report.target(f"{name}, trials that {tool}, to the lower bound", took / bound, limit)
        if rows:
            report.table(f"Sessions of trials that {tool}, {slots} slots", COLUMNS, rows, "CPU: of the supervisor")
    return report


async def work(tool: str, seconds: float, lab: Any, prompt: str) -> float:
    """A policy of one call."""
    return float(await lab.call(tool, seconds=seconds))


async def session(mix: Mix, tool: str, slots: int, fresh: str) -> tuple[float, float]:
    """Seconds that it takes on a pool that is ready, and the supervisor's CPU time."""
    tasks = mix.tasks()

    def agent(context: TrialContext) -> ScriptedAgent:
        chain, seconds = tasks[context.task_id]
        return ScriptedAgent(partial(work, tool, seconds), model=mix.model(chain))

    limits = ConcurrencyConfig(global_trials=slots, per_task=1, per_model=mix.limits or None)
    build = partial(build_graph, [len(chain) for chain in mix.chains])
    async with serving(build, slots, fresh=fresh) as served:
        await served.all_ready()
        with scratch_folder() as folder:
            runner = CorralRunner(served.router, agent_factory=agent, checkpoint_dir=Path(folder), concurrency=limits)
            began, cpu = time.perf_counter(), cpu_seconds()
            result = await runner.abench(seed=1, progress=False)
            took, used = time.perf_counter() - began, cpu_seconds() - cpu
    if result.success_rate() != 1.0:
        raise SystemExit(f"trials failed: {result.first_cause()}")
    return took, used
