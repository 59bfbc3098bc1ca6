"""The bench: what is seen, what is conserved, and what is refused."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

pytest.importorskip("phreeqc")

from corral.envs.wetlab import column
from corral.envs.wetlab.bench import Bench, Vessel, check_vessel, elements, new_vessel
from corral.envs.wetlab.engine import GASES, INERT, base, database
from corral.envs.wetlab.looks import COLOUR_OF
from corral.envs.wetlab.stock import SHELF, solution_totals, stock


def solution(ions: dict[str, float], ml: float = 20.0) -> Vessel:
    return new_vessel(solution_totals(ions, ml / 1000), ml / 1000)


def one(**ions: float) -> Bench:
    names = {
        "Ag": "Ag+",
        "Pb": "Pb+2",
        "Cu": "Cu+2",
        "Fe": "Fe+3",
        "Na": "Na+",
        "K": "K+",
        "Hg1": "Hg2+2",
        "Cd": "Cd+2",
    }
    return Bench({"s": solution({**{names[i]: c for i, c in ions.items()}, "NO3-": 0.3 + 3 * sum(ions.values())})})


def precipitates(seen: dict[str, Any]) -> dict[str, str]:
    return {p["colour"]: p["amount"] for p in seen["precipitates"]}


def test_silver_chloride_comes_goes_and_comes_again() -> None:
    bench = one(Ag=0.03)
    assert precipitates(bench.add("s", "HCl 6M", 1)) == {"white": "heavy"}
    seen = bench.centrifuge("s", "liquid", "solid")
    assert seen["solid"] == {"precipitates": [{"colour": "white", "amount": "heavy"}]}
    assert bench.vessels["solid"]["pH"] is None
    assert precipitates(bench.add("solid", "NH3 6M", 5)) == {}
    assert precipitates(bench.add("solid", "HNO3 6M", 8)) == {"white": "heavy"}


@pytest.mark.parametrize(
    ("ions", "reagent", "colour"),
    [
        ({"Cu": 0.03}, "NH3 6M", "deep blue"),
        ({"Fe": 0.01}, "KSCN 0.1M", "blood red"),
        ({"Cu": 0.03}, "water", "pale blue"),
        ({"Na": 0.03}, "K2CrO4 0.1M", "orange"),
        ({"Na": 0.03}, "water", "colourless"),
    ],
)
def test_solution_colours(ions: dict[str, float], reagent: str, colour: str) -> None:
    assert colour in one(**ions).add("s", reagent, 10)["solution"]


def test_black_hides_a_lighter_precipitate_until_they_are_parted() -> None:
    bench = one(Cu=0.03, Cd=0.03)
    assert set(precipitates(bench.bubble_h2s("s"))) == {"black"}
    bench.centrifuge("s", "l", "p")
    seen = bench.add("p", "HCl 6M", 5)
    assert "rotten eggs" in seen["gas"][0]
    bench.centrifuge("p", "cadmium", "copper")
    bench.add("cadmium", "NH3 6M", 4.5)
    assert set(precipitates(bench.bubble_h2s("cadmium"))) == {"yellow"}


def test_gases_are_noticed() -> None:
    bench = one(Na=0.03)
    assert bench.add("s", "Na2CO3 0.1M", 60)["gas"] == []
    assert "limewater" in bench.add("s", "HCl 6M", 20)["gas"][0]
    bench.add("ammonium", "buffer NH3/NH4Cl 1/2M", 2)
    bench.add("ammonium", "NaOH 6M", 2)
    assert "litmus" in bench.boil("ammonium", 3)["gas"][0]


def test_flames() -> None:
    bench = Bench({"na": solution({"Na+": 0.1, "K+": 0.1, "Cl-": 0.2}), "sr": solution({"Sr+2": 0.03, "Cl-": 0.06})})
    assert bench.flame_test("na") == "intense yellow"
    assert bench.flame_test("na", cobalt_glass=True) == "crimson-violet"
    assert bench.flame_test("sr") == "crimson"
    assert bench.flame_test("sr", cobalt_glass=True) == "no colour"


def test_declared_rule_nitric_acid_leaves_mercury_sulfide() -> None:
    bench = Bench({"s": solution({"Hg+2": 0.03, "Pb+2": 0.03, "NO3-": 0.42})})
    bench.bubble_h2s("s")
    bench.centrifuge("s", "l", "p")
    assert precipitates(bench.digest_nitric("p", 5)) == {"black": "heavy"}
    assert set(bench.vessels["p"]["solids"]) == {"HgS"}
    assert bench.vessels["p"]["totals"]["Pb"] == pytest.approx(6e-4, rel=1e-2)


def test_declared_rule_peroxide_makes_chromate_in_alkali_only() -> None:
    bench = Bench({"s": solution({"Cr+3": 0.03, "Mn+2": 0.03, "NO3-": 0.45})})
    assert "yellow" not in bench.oxidise_h2o2("s")["solution"]
    bench.add("s", "NaOH 6M", 10)
    seen = bench.oxidise_h2o2("s")
    assert "yellow" in seen["solution"]
    assert "brown-black" in precipitates(seen)
    assert "brown-black" in precipitates(bench.add("s", "HNO3 6M", 20))


def test_titration_sees_hydroxides_in_order() -> None:
    bench = one(Fe=0.03, Cu=0.03)
    seen = bench.titrate("s", "NaOH 1M", 20, 100)
    assert [event["seen"] for event in seen["events"]] == [
        "a red-brown precipitate begins to form",
        "a pale blue precipitate begins to form",
    ]
    assert [point["pH"] for point in seen["curve"]] == sorted(point["pH"] for point in seen["curve"])
    assert bench.vessels["s"]["water_kg"] == pytest.approx(0.04)


def test_solubility_scan_takes_its_tubes_and_sees_the_change() -> None:
    bench = Bench({"s": solution({"Al+3": 0.03, "NO3-": 0.09})})
    seen = bench.solubility_scan("s", "NaOH 1M", 40)
    assert [bool(row["precipitates"]) for row in seen["changes"]][:2] == [False, True]
    assert seen["changes"][-1]["precipitates"] == []
    assert seen["left"]["volume_ml"] == pytest.approx(18.0)


def test_column_holds_lead_longer_than_potassium_and_sand_holds_nothing() -> None:
    feed = solution({"K+": 0.001, "Pb+2": 0.001, "Na+": 0.1, "NO3-": 0.104}, 100)
    bench = Bench({"s": feed})
    seen = bench.run_column("s", "cation resin", 10, 40)
    assert len(seen["fractions"]) == 20
    assert seen["left"]["volume_ml"] == pytest.approx(60)
    held = [elements(bench.vessels[name]) for name in seen["fractions"]]
    first = {e: next((i for i, f in enumerate(held) if f.get(e, 0) / 2e-3 > 5e-4), 99) for e in ("K", "Pb")}
    assert 10 < first["K"] < first["Pb"]
    sand = column.breakthrough(feed, "sand", 10, 20)
    assert sand[-1]["Pb"] == pytest.approx(0.001, rel=1e-3)
    assert next(i for i, mix in enumerate(sand) if mix["Pb"] > 5e-4) in (9, 10)


def everything(bench: Bench) -> dict[str, float]:
    held: dict[str, float] = {}
    for vessel in bench.vessels.values():
        for element, moles in elements(vessel).items():
            held[element] = held.get(element, 0.0) + moles
    return held


@pytest.mark.parametrize("seed", range(12))
def test_elements_are_conserved(seed: int) -> None:
    """Whatever is added, split, poured and centrifuged: elements in are elements out, and so is the water."""
    rng = random.Random(seed)
    ions = rng.sample(["Ag+", "Pb+2", "Hg+2", "Hg2+2", "Cu+2", "Fe+3", "Al+3", "Cr+3", "Zn+2", "Mn+2", "Ba+2"], 4)
    bench = Bench({"v0": solution({**{ion: rng.uniform(0.02, 0.05) for ion in ions}, "NO3-": 0.8})})
    put_in, water = everything(bench), 0.02
    reagents = [name for name in SHELF if "CO3" not in name and "S " not in name]  # Those give off gases.
    for step in range(15):
        name = rng.choice(sorted(bench.vessels))
        wet = bench.vessels[name]["pH"] is not None
        action = rng.choice(["add", "add", "split", "centrifuge", "pour"] if wet else ["add"])
        if action == "add":
            reagent, ml = rng.choice(reagents), rng.uniform(0.5, 4)
            bench.add(name, reagent, ml)
            water += ml / 1000
            for element, moles in solution_totals(stock()[reagent], ml / 1000).items():
                put_in[base(element)] = put_in.get(base(element), 0.0) + moles
        elif action == "split":
            bench.split(name, f"v{step + 1}", rng.uniform(0.1, 0.9) * bench.vessels[name]["water_kg"] * 1000)
        elif action == "centrifuge":
            bench.centrifuge(name, f"l{step + 1}", f"s{step + 1}")
        elif len(bench.vessels) > 1:
            bench.mix(name, next(other for other in sorted(bench.vessels) if other != name))
    held = everything(bench)
    for element, moles in put_in.items():
        assert held.get(element, 0.0) == pytest.approx(moles, rel=1e-6, abs=1e-10), element
    assert sum(vessel["water_kg"] for vessel in bench.vessels.values()) == pytest.approx(water)


def test_vessels_are_plain_json_and_a_bench_can_start_from_them() -> None:
    bench = one(Ag=0.03, Cu=0.02)
    bench.add("s", "HCl 6M", 1)
    copied = json.loads(json.dumps(bench.vessels))
    again = Bench(copied)
    assert again.vessels == bench.vessels
    assert again.bubble_h2s("s") == bench.bubble_h2s("s")
    assert again.vessels == bench.vessels
    copied["s"]["totals"]["Ag"] = 99.0
    assert again.vessels["s"]["totals"].get("Ag") != 99.0


@pytest.mark.parametrize(
    "vessel",
    [
        None,
        {},
        {"water_kg": 0.01, "totals": {}, "solids": {}},
        {"water_kg": 0.01, "totals": {"Xx": 1.0}, "solids": {}, "pH": 7.0},
        {"water_kg": math.nan, "totals": {}, "solids": {}, "pH": 7.0},
        {"water_kg": 0.01, "totals": {}, "solids": {}, "pH": None},
        {"water_kg": 0.01, "totals": {}, "solids": {}, "pH": "7"},
    ],
)
def test_a_malformed_vessel_is_refused(vessel: Any) -> None:
    with pytest.raises(ValueError, match=r"vessel|unknown|must be"):
        check_vessel(vessel)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda b: b.add("s", "unicorn tears", 1), "no reagent 'unicorn tears'"),
        (lambda b: b.add("s", "HCl 6M", math.nan), "volume in mL must be"),
        (lambda b: b.add("s", "HCl 6M", -1), "volume in mL must be"),
        (lambda b: b.add("s", "HCl 6M", 0), "volume in mL must be"),
        (lambda b: b.add("s", "HCl 6M", 240), "holds 250 mL"),
        (lambda b: b.add("bad/name", "HCl 6M", 1), "vessel's name"),
        (lambda b: b.split("nowhere", "a", 1), "there is no vessel 'nowhere'; there are s, dry"),
        (lambda b: b.split("s", "a", 21), "holds only 20.00 mL"),
        (lambda b: b.split("s", "dry", 1), "there is a vessel 'dry' already"),
        (lambda b: b.split("dry", "a", 1), "holds no liquid"),
        (lambda b: b.discard("nowhere"), "there is no vessel"),
        (lambda b: b.mix("s", "s"), "into itself"),
        (lambda b: b.centrifuge("s", "a", "a"), "two different vessels"),
        (lambda b: b.centrifuge("dry", "a", "b"), "holds no liquid"),
        (lambda b: b.bubble_h2s("dry"), "holds no liquid"),
        (lambda b: b.measure_ph("dry"), "holds no liquid"),
        (lambda b: b.boil("s", 30), "holds only 20.00 mL"),
        (lambda b: b.titrate("s", "NaOH 1M", 10, 0), "steps must be"),
        (lambda b: b.titrate("s", "NaOH 1M", 10, 401), "steps must be"),
        (lambda b: b.titrate("s", "NaOH 1M", 240, 10), "holds 250 mL"),
        (lambda b: b.solubility_scan("s", "NaOH 1M", 1.5), "points must be"),
        (lambda b: b.run_column("s", "gold dust", 10, 10), "no packing 'gold dust'"),
        (lambda b: b.run_column("s", "sand", 41, 10), "cells must be"),
        (lambda b: b.run_column("s", "sand", 2, 30), "holds 20.00 mL"),
    ],
)
def test_a_refused_operation_says_why_and_changes_nothing(operation: Any, message: str) -> None:
    bench = one(Ag=0.03)
    bench.add("s", "HCl 1M", 1)
    bench.centrifuge("s", "s", "dry")
    bench.split("s", "rest", 1)
    bench.discard("rest")
    before = json.dumps(bench.vessels)
    with pytest.raises(ValueError, match=message):
        operation(bench)
    assert json.dumps(bench.vessels) == before


def test_a_turbid_feed_is_refused() -> None:
    bench = one(Ag=0.03)
    bench.add("s", "HCl 1M", 5)
    with pytest.raises(ValueError, match="not clear"):
        bench.run_column("s", "sand", 5, 5)


def test_a_liquid_without_visible_solid_is_all_liquid() -> None:
    bench = one(Cu=0.03)
    assert bench.centrifuge("s", "l", "p")["solid"] is None
    assert list(bench.vessels) == ["l"]


def test_taking_everything_empties_the_vessel() -> None:
    bench = one(Cu=0.03)
    assert bench.split("s", "a", 20)["left"] is None
    assert list(bench.vessels) == ["a"]


def test_every_solid_has_a_colour_and_every_reagent_a_recipe() -> None:
    assert set(COLOUR_OF) == (set(database().phases) | set(INERT)) - set(GASES)
    assert set(SHELF) <= set(stock())
