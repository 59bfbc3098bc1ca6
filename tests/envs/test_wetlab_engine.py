"""The engine's guarantees: nonsense refused, no history, retries, nothing left in the current directory."""

from __future__ import annotations

import json
import locale
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("phreeqc")

from corral.envs.wetlab import build_envs
from corral.envs.wetlab.bench import Bench, new_vessel
from corral.envs.wetlab.engine import STARTS, Engine, NoEquilibrium, database


@pytest.mark.parametrize("amount", [math.nan, -1e-3, math.inf, 1e9, 10**400, True, "1", None])
@pytest.mark.parametrize("where", ["totals", "solids", "water"])
def test_a_nonsensical_amount_is_refused(amount: Any, where: str) -> None:
    totals = {"Na": amount if where == "totals" else 0.1, "Cl": 0.1}
    solids = {"AgCl": amount} if where == "solids" else {}
    with pytest.raises(ValueError, match="must be"):
        Engine().equilibrate(totals, solids, amount if where == "water" else 1.0)


@pytest.mark.parametrize(
    ("totals", "solids", "name"),
    [
        ({"Xx": 1.0}, {}, "Xx"),
        ({"H": 1.0}, {}, "H"),
        ({"Na\nEND": 1.0}, {}, "Na"),
        ({}, {"Unobtainium": 1.0}, "Unobtainium"),
        ({}, {"CO2(g)": 1.0}, "CO2"),
    ],
)
def test_an_unknown_name_is_refused(totals: dict[str, float], solids: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown .*{name}"):
        Engine().equilibrate(totals, solids, 1.0)


def test_it_starts_again_from_another_ph(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    run = Engine.run

    def stubborn(self: Engine, text: str) -> list[dict[str, Any]]:
        tried.append(text.split("pH ")[1].split(" ")[0])
        if len(tried) < 3:
            raise NoEquilibrium("not yet")
        return run(self, text)

    monkeypatch.setattr(Engine, "run", stubborn)
    done = Engine().equilibrate({"Na": 0.1, "Cl": 0.1}, {}, 1.0)
    assert tried == [str(start) for start in STARTS[:3]]
    assert done.ph == pytest.approx(7.0, abs=0.1)


def test_where_nothing_converges_the_bench_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench({"a": new_vessel({"Na": 1e-3, "Cl": 1e-3}, 0.01)})
    before = json.dumps(bench.vessels)

    def hopeless(self: Engine, text: str) -> list[dict[str, Any]]:
        raise NoEquilibrium("no hope")

    monkeypatch.setattr(Engine, "run", hopeless)
    operations: list[Callable[[], Any]] = [
        lambda: bench.add("a", "HCl 1M", 1),
        lambda: bench.titrate("a", "HCl 1M", 1, 2),
        lambda: bench.boil("a", 5),
        lambda: bench.run_column("a", "sand", 2, 2),
    ]
    for operation in operations:
        with pytest.raises(ValueError, match=r"could not be brought to equilibrium$"):
            operation()
    assert json.dumps(bench.vessels) == before


def test_a_failing_run_reports_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoEquilibrium) as caught:
        Engine().run("SOLUTION 1\nEQUILIBRIUM_PHASES 1\n Unobtainium 0 1\nEND\n")
    assert "Unobtainium" in caught.value.detail
    assert "Unobtainium" not in str(caught.value)
    impossible = "KNOBS\n -iterations 1\nSOLUTION 1\n pH 7 charge\n Na 1\n Cl 1\n Fe 1\nEND\n"
    with pytest.raises(NoEquilibrium):
        Engine().run(impossible)
    assert os.listdir(tmp_path) == []
    assert Path.cwd() == tmp_path


def test_the_numeric_locale_is_c(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(locale, "setlocale", lambda *args: asked.append(args))
    Engine()
    assert asked == [(locale.LC_NUMERIC, "C")]


def session() -> str:
    """A few calls of every kind; what they answer and what they leave, as JSON."""
    bench = Bench({"s": new_vessel({"Ag": 4e-4, "Cu": 6e-4, "Fe": 5e-4, "Zn": 6e-4, "N": 0.02}, 0.02)})
    answers: list[Any] = [
        bench.split("s", "a", 8),
        bench.add("a", "HCl 6M", 1),
        bench.centrifuge("a", "b", "c"),
        bench.add("c", "NH3 6M", 2),
        bench.bubble_h2s("b"),
        bench.boil("b", 5),
        bench.titrate("s", "NaOH 1M", 10, 20),
        bench.solubility_scan("s", "NH3 6M", 6),
    ]
    return json.dumps([answers, bench.vessels])


def test_results_depend_on_no_history() -> None:
    fresh = session()
    for i in range(50):
        Engine().equilibrate({"Pb": 1e-3 * (i + 1), "S": 2e-3, "Hg(2)": 1e-3, "Cl": 0.01}, {}, 0.05)
    assert session() == fresh


def test_results_are_the_same_in_another_process() -> None:
    code = "import sys; from tests.envs.test_wetlab_engine import session; sys.stdout.write(session())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == session()


def test_importing_the_package_imports_no_engine() -> None:
    code = "import sys, corral.envs.wetlab; sys.exit(bool({'phreeqc', 'pydantic', 'httpx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_leaves_one_thread_and_an_engine_to_fork_from() -> None:
    """A worker forks its trials from here: only a process with one thread may be forked."""
    code = (
        "import sys, psutil; from corral.envs.wetlab import build_envs; build_envs();"
        "sys.exit(psutil.Process().num_threads() != 1 or 'phreeqc' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phreeqc", None)
    monkeypatch.delitem(sys.modules, "corral.envs.wetlab.engine")
    with pytest.raises(ImportError, match=r"pip install 'corral\[wetlab\]'"):
        build_envs()


def test_the_database_knows_its_phases() -> None:
    assert len(database().phases) == 91
    assert "Hg(1)" in database().elements
    assert not {"H", "O", "E"} & database().elements
