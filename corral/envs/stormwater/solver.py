"""EPA SWMM 5.2 through pyswmm: one design storm over one network. The only module that loads pyswmm.

Purpose
    Run an input file and say how deep the water stood and how much flowed.
Assumptions, all process-global and the reason for ``concurrency = "process"``
    SWMM keeps its project in C globals, so pyswmm refuses a second simulation in a process while one is open
    (MultiSimulationError), and the toolkit under it would silently mix the two up. ``LC_NUMERIC`` must be "C": SWMM
    reads numbers with C's own functions. One thread per run (``THREADS 1`` in the input), so that a process that has
    simulated can still be forked.
"""

from __future__ import annotations

import itertools
import locale
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyswmm import Links, Nodes, Simulation, SystemStats

MINUTE = 60
"""Seconds between two values of a series."""

CUBIC_FOOT = 0.3048**3
"""In m3. pyswmm 2.2 converts every volume of the balance but the final storage, which stays in SWMM's own unit."""


@dataclass(frozen=True)
class Run:
    """What a simulation came to. Metres, cubic metres, m3/s."""

    max_depth: Mapping[str, float]
    """The deepest water at each node."""
    flooding: Mapping[str, float]
    """The volume that left each node over its rim."""
    peak_inflow: Mapping[str, float]
    """The largest flow into each node."""
    depth: Mapping[str, list[float]]
    """Depth at each node, minute by minute."""
    flow: Mapping[str, list[float]]
    """Flow in each link, minute by minute."""
    balance: Mapping[str, float]
    """Of water: rain and runoff (mm), inflow, outflow, flooding and rest (m3), and the errors of both balances (%)."""


def simulate(text: str, folder: Path) -> Run:
    """Run an input file. Its files are written into ``folder``, over those of the run before."""
    locale.setlocale(locale.LC_NUMERIC, "C")
    path = folder / "design.inp"
    path.write_text(text, "utf-8")
    with Simulation(str(path), str(path.with_suffix(".rpt")), str(path.with_suffix(".out"))) as simulation:
        simulation.step_advance(MINUTE)
        nodes = {node.nodeid: node for node in Nodes(simulation)}
        links = {link.linkid: link for link in Links(simulation)}
        depth: dict[str, list[float]] = {name: [] for name in nodes}
        flow: dict[str, list[float]] = {name: [] for name in links}
        for _ in itertools.chain(simulation, [None]):  # once more at the end, which the iterator leaves out
            for name, node in nodes.items():
                depth[name].append(node.depth)
            for name, link in links.items():
                flow[name].append(link.flow)
        statistics = {name: node.statistics for name, node in nodes.items()}
        system = SystemStats(simulation)
        runoff, routing = system.runoff_stats, system.routing_stats
    return Run(
        max_depth={name: found["max_depth"] for name, found in statistics.items()},
        flooding={name: found["flooding_volume"] for name, found in statistics.items()},
        peak_inflow={name: found["peak_total_inflow"] for name, found in statistics.items()},
        depth=depth,
        flow=flow,
        balance={
            "rain_mm": runoff["rainfall"],
            "runoff_mm": runoff["runoff"],
            "inflow_m3": routing["wet_weather_inflow"] + routing["external_inflow"],
            "outflow_m3": routing["outflow"],
            "flooding_m3": routing["flooding"],
            "stored_m3": routing["final_storage"] * CUBIC_FOOT,
            "runoff_error_percent": runoff["routing_error"],
            "routing_error_percent": routing["routing_error"],
        },
    )
