"""SWMM against textbook hydraulics, and the rules of the library that make it process-class."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyswmm")

from pyswmm import Simulation
from pyswmm.errors import MultiSimulationError

from corral.envs.stormwater.inp import edited, network, rows
from corral.envs.stormwater.solver import simulate
from corral.envs.stormwater.tasks import TASKS

GRAVITY = 9.81
"""m/s2"""

PIPE = """\
[OPTIONS]
FLOW_UNITS KINEMATIC_UNITS
FLOW_ROUTING KINWAVE
START_DATE 06/01/2024
START_TIME 00:00:00
END_DATE 06/01/2024
END_TIME 02:00:00
ROUTING_STEP 5
THREADS 1
[JUNCTIONS]
J1 11.5 3 0 0 0
[OUTFALLS]
O1 10.0 FREE NO
[CONDUITS]
C1 J1 O1 300 0.013 0 0 0 0
[XSECTIONS]
C1 CIRCULAR 0.5 0 0 0 1
[INFLOWS]
J1 FLOW "" FLOW 1.0 1.0 1.0
""".replace("KINEMATIC_UNITS", "CMS")
"""300 m of pipe, 0.5 m wide, at a slope of 0.005, with a steady inflow of 1 m3/s."""


def manning_full(diameter: float, slope: float, n: float = 0.013) -> float:
    """Full flow of a circular pipe in m3/s: V = R^(2/3) S^(1/2) / n (Chow, "Open-Channel Hydraulics", 1959, ch. 5)."""
    radius = diameter / 4
    return math.pi * diameter**2 / 4 * math.pow(radius, 2 / 3) * math.sqrt(slope) / n


def steady(flow: float, folder: Path) -> tuple[float, float]:
    """The depth at the pipe's upper end and the flow in it, at the end of two hours of this inflow."""
    text = PIPE.replace('FLOW "" FLOW 1.0 1.0 1.0', f'FLOW "" FLOW 1.0 1.0 {flow!r}')
    run = simulate(text, folder)
    return run.depth["J1"][-1], run.flow["C1"][-1]


def test_a_full_pipe_carries_what_manning_says(tmp_path: Path) -> None:
    full = manning_full(0.5, 1.5 / 300)
    assert full == pytest.approx(0.267, abs=0.001)
    assert steady(2 * full, tmp_path)[1] == pytest.approx(full, rel=0.01)


@pytest.mark.parametrize(("share", "depth"), [(0.5, 0.5), (0.196, 0.3), (0.837, 0.7)])
def test_a_part_full_pipe_runs_at_its_normal_depth(share: float, depth: float, tmp_path: Path) -> None:
    # Q/Qfull by y/D of circular pipes: Chow 1959, appendix A, geometric elements for circular channel sections.
    at, flow = steady(share * manning_full(0.5, 1.5 / 300), tmp_path)
    assert flow == pytest.approx(share * manning_full(0.5, 1.5 / 300), rel=0.005)
    assert at == pytest.approx(depth * 0.5, rel=0.02)


def test_outlet_and_spillway_follow_torricelli_and_the_weir_equation(tmp_path: Path) -> None:
    text = edited(network("pond"), "XSECTIONS", "OUTLET", 2, 0.2)
    run = simulate(text, tmp_path)
    depth, outlet, spill = (max(series) for series in (run.depth["POND"], run.flow["OUTLET"], run.flow["SPILLWAY"]))
    # Q = Cd A sqrt(2 g h) over the orifice's centre; Q = Cw L h^1.5 over the crest (Brater and King, 1976).
    assert outlet == pytest.approx(0.65 * math.pi * 0.2**2 / 4 * math.sqrt(2 * GRAVITY * (depth - 0.1)), rel=0.01)
    assert spill == pytest.approx(1.70 * 2.0 * (depth - 1.6) ** 1.5, rel=0.03)


def test_the_peak_is_of_the_order_of_the_rational_method(tmp_path: Path) -> None:
    task = TASKS["storm-trunk"]
    run = simulate(task.text(dict.fromkeys(task.start(), 1.2)), tmp_path)
    areas = [(float(row[3]), float(row[4]) / 100) for row in rows(network("street"), "SUBCATCHMENTS")]
    # Q = C i A (Kuichling 1889) with the paved share for C and the most intense ten minutes for i.
    rational = sum(area * 1e4 * paved for area, paved in areas) * 96e-3 / 3600
    assert 0.8 * rational < run.peak_inflow["O1"] < 1.2 * rational
    assert run.balance["rain_mm"] == pytest.approx((10 + 22 + 48 + 96 + 54 + 26 + 12) / 6, rel=1e-6)
    paved = sum(area * share for area, share in areas) / sum(area for area, _ in areas)
    assert 0.9 * paved < run.balance["runoff_mm"] / run.balance["rain_mm"] < 0.9


@pytest.mark.parametrize("name", ["street", "pond"])
def test_water_is_conserved(name: str, tmp_path: Path) -> None:
    balance = simulate(network(name), tmp_path).balance
    assert abs(balance["runoff_error_percent"]) < 0.2
    assert abs(balance["routing_error_percent"]) < 0.5
    gone = balance["outflow_m3"] + balance["flooding_m3"] + balance["stored_m3"]
    assert gone == pytest.approx(balance["inflow_m3"], rel=0.005)
    assert (balance["flooding_m3"] > 500) == (name == "street")


def test_a_run_depends_on_nothing_before_it(tmp_path: Path) -> None:
    first = simulate(network("street"), tmp_path)
    other = simulate(network("pond"), tmp_path)
    assert simulate(network("street"), tmp_path) == first != other


def test_a_second_simulation_beside_an_open_one_is_refused(tmp_path: Path) -> None:
    """Why the environments are process-class."""
    path = tmp_path / "open.inp"
    path.write_text(network("pond"))
    with Simulation(str(path)):
        with pytest.raises(MultiSimulationError):
            simulate(network("street"), tmp_path)
    assert simulate(network("street"), tmp_path).max_depth["J4"] > 0


def test_a_run_that_fails_leaves_the_library_usable(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="ERROR"):
        simulate(PIPE.replace("C1 J1 O1", "C1 J1 nowhere"), tmp_path)
    assert simulate(network("street"), tmp_path).max_depth["J4"] > 0


def test_a_run_prints_nothing_and_writes_only_into_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here, folder = tmp_path / "here", tmp_path / "folder"
    here.mkdir()
    folder.mkdir()
    monkeypatch.chdir(here)
    simulate(network("street"), folder)
    assert capfd.readouterr() == ("", "")
    assert list(here.iterdir()) == []
    assert {path.suffix for path in folder.iterdir()} == {".inp", ".rpt", ".out"}


def test_editing_changes_one_value_and_refuses_what_is_not_there() -> None:
    text = network("pond")
    changed = edited(text, "STORAGE", "POND", 7, 1234.0)
    assert rows(changed, "STORAGE")[0][7] == "1234.0"
    assert rows(changed, "XSECTIONS") == rows(text, "XSECTIONS")
    assert len(set(changed.split("\n")) ^ set(text.split("\n"))) == 2
    with pytest.raises(KeyError, match=r"no 'C9' in \[CONDUITS\]"):
        edited(text, "CONDUITS", "C9", 3, 1.0)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, corral.envs.stormwater as s; print(sorted({'pyswmm', 'swmm', 'pydantic'} & set(sys.modules)))"
    assert python(code) == "[]\n"


def test_loading_and_running_start_no_threads_so_a_fork_is_sound() -> None:
    code = (
        "import psutil, tempfile, pathlib; from corral.envs.stormwater import build_envs; build_envs();"
        "from corral.envs.stormwater.solver import simulate; from corral.envs.stormwater.inp import network;"
        "loaded = psutil.Process().num_threads(); simulate(network('pond'), pathlib.Path(tempfile.mkdtemp()));"
        "print(loaded, psutil.Process().num_threads())"
    )
    assert python(code) == "1 1\n"


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from corral.envs.stormwater import build_envs

    monkeypatch.setitem(sys.modules, "pyswmm", None)
    monkeypatch.delitem(sys.modules, "corral.envs.stormwater.solver")
    with pytest.raises(ImportError, match=r"pip install 'corral\[stormwater\]'"):
        build_envs()
