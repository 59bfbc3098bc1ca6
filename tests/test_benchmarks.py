"""The benchmark programs: each runs, at a size that says nothing of speed, and its figures hang together."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from benchmarks.command import COMMANDS
from benchmarks.makespan import Mix, computing_mixes, waiting_mixes
from benchmarks.measuring import Timings
from benchmarks.report import Report, Target, seconds, shown, size
from benchmarks.throughput import cost_of

from tests.support.scripts import ROOT, python

PATH = f"{ROOT / 'scripts'}:{ROOT}"
patient = pytest.mark.timeout(300)


def run(folder: Path, *arguments: str, path: str = PATH) -> dict[str, Any]:
    """What a sub-command wrote to its file."""
    told = folder / "figures.json"
    variables = {"PYTHONPATH": path, "PYTHONWARNINGS": "default"}  # the peers warn of this and that
    done = python("-m", "benchmarks", *arguments, "--json", str(told), folder=folder, within=280, variables=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    # A peer's process that is ended while it starts may leave a traceback of the peer's.
    ours = [
        line for line in done.stderr.splitlines() if f'File "{ROOT}/corral/' in line or f'File "{ROOT}/scripts/' in line
    ]
    assert not ours, done.stderr
    given: dict[str, Any] = json.loads(told.read_text())
    assert given["command"] == arguments[0]
    assert given["machine"]["processors"] >= 1
    for target in given["targets"]:
        assert target["met"] == (None if target["measured"] is None else target["measured"] <= target["limit"])
    for table in given["tables"]:
        assert table["title"] in done.stdout
        assert table["rows"]
    return given


def rows(given: dict[str, Any], title: str) -> dict[str, dict[str, Any]]:
    """The rows of the table whose title begins so, by their first column."""
    (table,) = [table for table in given["tables"] if table["title"].startswith(title)]
    first = next(iter(table["columns"]))
    return {str(row[first]): row for row in table["rows"]}


# ---- the programs ----


@patient
def test_calls_compares_all_subjects_on_each_event_loop(tmp_path: Path) -> None:
    given = run(
        tmp_path, "calls", "--rounds", "2", "--calls", "3", "--payloads", "100B", "--backends", "asyncio", "trio"
    )
    everywhere = {
        "Corral, a tool call", "anyio.to_process", "a thread and a Pipe", "ProcessPoolExecutor", "multiprocessing.Pool",
        "loky", "pebble", "multiprocessing.Pipe", "multiprocessing.Pipe, protocol 5", "socketpair, bytes as they are",
    }  # fmt: skip
    on_asyncio = rows(given, "A tool call, 100B there and back, asyncio")
    assert set(on_asyncio) == everywhere | {"ProcessPoolExecutor, run_in_executor"}
    assert set(rows(given, "A tool call, 100B there and back, trio")) == everywhere | {"trio-parallel"}
    pipe, own = on_asyncio["multiprocessing.Pipe"], on_asyncio["Corral, a tool call"]
    assert own["/ pipe"] == pytest.approx(own["median"] / pipe["median"])
    assert own["/ loky"] == pytest.approx(own["median"] / on_asyncio["loky"]["median"])
    assert all(0 < row["median"] <= row["p99"] for row in on_asyncio.values())
    assert given["targets"][0]["measured"] == own["/ pipe"]
    assert [target["limit"] for target in given["targets"]] == [2.0, 0.33, 0.25, 3.0, 1.5]


@patient
def test_calls_sends_arrays_there_and_back(tmp_path: Path) -> None:
    given = run(tmp_path, "calls", "--rounds", "1", "--calls", "1", "--payloads", "10MB-array", "--backends", "uvloop")
    found = rows(given, "A tool call, 10MB-array")
    assert found["multiprocessing.Pipe, protocol 5"]["/ pipe"] == 1
    assert given["targets"][0]["measured"] == found["Corral, a tool call"]["/ pipe"]


@patient
def test_a_peer_that_is_not_installed_is_a_line(tmp_path: Path) -> None:
    for name in ("loky", "uvloop", "pebble"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')")
    given = run(
        tmp_path, "calls", "--rounds", "1", "--calls", "2", "--payloads", "100B", "--backends", "asyncio", "uvloop",
        path=f"{tmp_path}:{PATH}",
    )  # fmt: skip
    found = rows(given, "A tool call, 100B there and back, asyncio")
    assert {"loky: not installed", "pebble: not installed"} < set(found)
    assert found["Corral, a tool call"]["/ loky"] is None
    assert set(rows(given, "A tool call, 100B there and back, uvloop")) == {"uvloop: not installed"}
    assert [target["measured"] for target in given["targets"] if "loky" in target["text"]] == [None]


@patient
@pytest.mark.slow
def test_start_waits_for_every_process(tmp_path: Path) -> None:
    given = run(tmp_path, "start", "--sizes", "1", "2", "--rounds", "1", "--kills", "1")
    subjects = {
        "Corral", "Corral, fresh interpreters", "bare interpreters", "anyio.to_process", "ProcessPoolExecutor", "loky",
    }  # fmt: skip
    assert set(rows(given, "From nothing to a task in each of 1 ")) == subjects
    both = rows(given, "From nothing to a task in each of 2 ")
    assert set(both) == subjects
    assert all(0 < row["first"] < row["all"] for row in both.values())
    assert all(row["CPU"] > 0.01 for row in both.values())
    assert len(rows(given, "From a kill")) == 6


@patient
@pytest.mark.slow
def test_throughput_runs_sessions_and_peers(tmp_path: Path) -> None:
    kinds = ("in-process", "pool-reused")
    given = run(
        tmp_path, "throughput", "--trials", "200", "--rounds", "1", "--size", "2", "--kinds", *kinds,
        "--waits", "4", "--wait", "0.1", "--slots", "2", "--flush", "0.02",
    )  # fmt: skip
    slow = rows(given, "The same on a disk whose flush takes 20 ms longer")
    assert all(row["wall"] > 0.02 for name, row in slow.items() if name != "a trial on a reused process")
    assert len(slow) == 7
    assert slow["a trial on a reused process"]["wall"] < 0.02  # its records share their flushes
    for kind in kinds:
        row = rows(given, f"One more trial that does nothing: {kind}")["200"]
        assert row["a second"] == pytest.approx(1 / row["wall"])
        assert 300 < row["journal"] < 10_000
        assert 300 < row["its state"] < 10_000
        assert row["resume"] > 0
    assert rows(given, "One more trial that does nothing: in-process")["200"]["processes' CPU"] < 1e-3
    peers = rows(given, "One more task")
    assert len(peers) == 6
    assert all(row["wall"] > 0 for row in peers.values())
    for row in rows(given, "4 trials that wait").values():
        assert row["least"] == pytest.approx(0.2)
        assert row["wall"] > row["least"]
        assert row["lost"] == pytest.approx(row["wall"] / row["least"] - 1)


@patient
def test_planner_counts_what_it_looks_at(tmp_path: Path) -> None:
    given = run(
        tmp_path, "planner", "--waiting", "200", "1000", "--releases", "300", "--records", "50", "100", "--rounds", "1"
    )
    found = rows(given, "The planner")
    assert [row["tasks"] for row in found.values()] == [200, 1000]
    assert all(1 <= row["looks"] < 30 for row in found.values())
    assert set(rows(given, "The collector")) == {"50", "100"}
    assert all(row["CPU"] > 0 for row in rows(given, "The collector").values())


@patient
@pytest.mark.slow
def test_makespan_is_never_below_its_bound(tmp_path: Path) -> None:
    given = run(tmp_path, "makespan", "--scale", "0.1", "--mixes", "model-limits", "chains", "--waiting-slots", "8")
    waiting = rows(given, "Sessions of trials that wait")
    computing = rows(given, "Sessions of trials that compute")
    assert (set(waiting), set(computing)) == ({"chains", "model-limits"}, {"chains"})
    for row in (*waiting.values(), *computing.values()):
        assert row["lower bound"] <= row["best in order"] + 1e-9
        assert row["took"] > row["lower bound"]


@patient
@pytest.mark.slow
def test_fresh_and_memory_measure_every_mode(tmp_path: Path) -> None:
    given = run(tmp_path, "fresh", "--environments", "light", "--rounds", "1", "--trials", "2", "--kills", "1")
    modes = rows(given, "A trial in fresh process state, light")
    assert set(modes) == {"reused", "reused, at once", "by fork", "by fork, at once", "by spawn", "by spawn, at once"}
    assert modes["reused"]["over reused"] == 0
    assert all(0 < row["first answer"] < row["whole"] for row in modes.values())
    assert set(rows(given, "From a crash in a trial")) == {"by fork", "by spawn"}

    held = rows(run(tmp_path, "memory", "--environments", "light", "--size", "2"), "What processes hold")
    assert all(0 < row["USS"] <= row["PSS"] <= row["RSS"] for row in held.values())
    worker, trial = held["worker idle, light, fork"], held["  the trial process, light, fork"]
    assert trial["RSS"] < worker["RSS"]  # a fork maps what it touches; what either has alone depends on who shares it
    assert held["a pool of 2 idle, all its processes, light, fork"]["RSS"] > 1.5 * worker["RSS"]
    base = held["bare interpreter with anyio, cloudpickle, pydantic"]
    assert worker["/ bare"] == pytest.approx(worker["RSS"] / base["RSS"])


@patient
@pytest.mark.slow
def test_server_compares_each_way_to_a_bare_echo(tmp_path: Path) -> None:
    found = rows(run(tmp_path, "server", "--rounds", "1", "--calls", "3"), "A tool call")
    assert len(found) == 8
    floor = found["bare ASGI, httpx"]
    assert floor["to bare ASGI, httpx"] == 1
    own = found["HTTP, async, pool"]
    assert own["to bare ASGI, httpx"] == pytest.approx(own["median"] / floor["median"])


@patient
@pytest.mark.slow
def test_distributed_compares_nodes_to_the_local_pool(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    given = run(tmp_path, "distributed", "--rounds", "1", "--calls", "3", "--slots", "4", "--nodes", "2",
                "--seconds", "0.5")  # fmt: skip
    found = rows(given, "A tool call, 100B there and back")
    assert set(found) == {"Corral, the local pool", "Corral, nodes of Dask", "Corral, nodes of Dask, two slots",
                          "Dask, a task", "Dask, an actor"}  # fmt: skip
    both = found["Corral, nodes of Dask, two slots"]
    (crowd,) = rows(given, "4 slots on 2 nodes call at once").values()
    assert all(crowd[f"CPU, {kind}"] > 0 for kind in ("supervisor", "Dask worker", "agent"))
    held = rows(given, "What the processes of a node hold")
    assert set(held) == {"Dask worker (the largest of 2)", "agent (the largest of 2)"}
    measured = [target["measured"] for target in given["targets"]]
    assert measured == [both["median"], both["p99"], pytest.approx(1 / crowd["calls a second"]),
                        sum(row["PSS"] for row in held.values())]  # fmt: skip


def test_every_command_has_help_of_its_own(tmp_path: Path) -> None:
    for command in COMMANDS:
        done = python("-m", "benchmarks", command, "--help", folder=tmp_path, variables={"PYTHONPATH": PATH})
        assert done.returncode == 0, done.stderr
        assert "--json FILE" in done.stdout
        assert len(done.stdout) > 500, done.stdout
    done = python("-m", "benchmarks", "nonsense", folder=tmp_path, variables={"PYTHONPATH": PATH})
    assert done.returncode == 2


# ---- what they compute ----


def test_medians_tails_and_spread() -> None:
    timings = Timings([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert timings.median == 2.5
    assert timings.p99 == 4.0
    assert timings.spread == pytest.approx((3.0 - 2.0) / 2.5)
    assert Timings([[float(number) for number in range(1, 201)]]).p99 == 199.0


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.234e-5, "s", "12.3 us"), (0.0456, "s", "45.6 ms"), (12.34, "s", "12.3 s"), (999.7e-6, "s", "1 ms"),
        (512.0, "B", "512 B"), (3_000.0, "B", "3 kB"), (12_345_678.0, "B", "12.3 MB"), (1.5, "x", "1.50 x"),
        (0.031, "%", "3.1 %"), (12_345, "n", "12,345"), (None, "s", "-"), (math.nan, "s", "-"),
        ("fork", "text", "fork"),
    ],
)  # fmt: skip
def test_values_are_shown_in_units_that_suit_them(value: Any, unit: str, text: str) -> None:
    assert shown(value, unit) == text
    assert seconds(-0.002) == "-2 ms"
    assert size(0) == "0 B"


def test_targets_are_met_up_to_their_limit() -> None:
    assert Target("a", 2.0, 2.0, "x").met is True
    assert Target("a", 2.0, 2.01, "x").met is False
    assert Target("a", 2.0, None, "x").met is None
    report = Report("calls", {"rounds": 3, "json": None})
    report.target("a", None, 1.0)
    assert report.data()["options"] == {"rounds": 3}
    assert report.data()["targets"] == [{"text": "a", "limit": 1.0, "measured": None, "unit": "x", "met": None}]


def test_the_cost_of_a_trial_leaves_out_what_every_session_costs() -> None:
    small = {"cpu": 1.0, "cpu_of_processes": 2.0, "rss": 1_000_000.0}
    large = {"cpu": 1.9, "cpu_of_processes": 3.8, "rss": 1_900_000.0, "each": 0.004, "state": 700.0,
             "journal": 1_000_000.0, "resume": 0.2}  # fmt: skip
    cost = cost_of(large, small, 1000)
    assert cost["supervisor CPU"] == pytest.approx(0.001)
    assert cost["processes' CPU"] == pytest.approx(0.002)
    assert cost["memory"] == pytest.approx(1000)
    assert (cost["wall"], cost["a second"], cost["journal"]) == (0.004, 250.0, 1000.0)


def test_lower_bounds_of_mixes() -> None:
    singles = Mix([[1.0]] * 6)
    assert singles.lower_bound(4) == 1.5
    assert singles.best_in_order(4) == 2.0
    assert Mix([[1.0], [1.0], [0.5, 2.0]]).lower_bound(4) == 2.5
    capped = Mix([[1.0]] * 4 + [[0.5]], ["a"] * 4 + ["b"], {"a": 2})
    assert capped.lower_bound(8) == 2.0
    assert capped.best_in_order(8) == 2.0
    assert Mix([[1.0], [3.0]]).best_in_order(1) == 4.0
    assert Mix([[1.0], [1.0], [2.0]]).best_in_order(2) == 3.0


def test_the_mixes_can_nearly_reach_their_bounds() -> None:
    for mixes, slots in ((waiting_mixes(1.0), 8), (computing_mixes(1.0), 2)):
        for name, mix in mixes.items():
            assert mix.best_in_order(slots) <= 1.05 * mix.lower_bound(slots), name
    assert statistics.fmean(len(mix.chains) for mix in waiting_mixes(1.0).values()) > 80
