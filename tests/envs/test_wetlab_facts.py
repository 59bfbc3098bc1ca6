"""The database against known chemistry: one hundred facts, three of them known limits, and its added constants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("phreeqc")

from corral.envs.wetlab.engine import DATA, Engine, Equilibrium, base, database, formula
from corral.envs.wetlab.stock import ion_totals, solution_totals, stock

FACTS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "wetlab_facts.json").read_text("utf-8"))
KNOWN_LIMITS = {"ph-nahco3-0.1", "ph-alcl3-0.1", "mn-not-by-nh3-nh4cl"}
FORMED = 2e-5
"""Mol/L from which on a precipitate counts as formed."""

# Species are named by common formulas in the facts, and by those of the database here.
RENAMED = (("NH3", "NhH3"), ("SCN", "Scn"), ("Cr2O7", "Crvi2O7"), ("CrO4", "CrviO4"))


def mixed(fact: dict[str, Any], species: tuple[str, ...] = ()) -> tuple[Equilibrium, dict[str, float], float]:
    totals: dict[str, float] = {}
    litres = 0.0
    for part in fact["mix"]:
        volume = part["volume_ml"] / 1000
        litres += volume
        for element, moles in solution_totals(stock()[part["solution"]], volume).items():
            totals[element] = totals.get(element, 0.0) + moles
    return Engine().equilibrate(totals, {}, litres, species=species), totals, litres


def in_database(species: str) -> str:
    for theirs, ours in RENAMED:
        species = species.replace(theirs, ours)
    return species


def removed(done: Equilibrium, totals: dict[str, float], element: str) -> float:
    """The fraction of an element that is in solids."""
    phases = database().phases
    in_solids = sum(
        moles * n for solid, moles in done.solids.items() for e, n in phases[solid].items() if base(e) == element
    )
    return in_solids / sum(n for e, n in totals.items() if base(e) == element)


def failures(fact: dict[str, Any]) -> list[str]:
    """What of the expectation does not come out."""
    expect = fact["expect"]
    wanted = {**expect.get("species", {}), **expect.get("species_max", {})}
    names = {name: in_database(name) for name in wanted}
    done, totals, litres = mixed(fact, tuple(names.values()))
    solids = {solid: moles / litres for solid, moles in done.solids.items()}
    found = []
    if "pH" in expect and not expect["pH"][0] <= done.ph <= expect["pH"][1]:
        found.append(f"pH {done.ph:.2f}")
    found += [f"{s} absent" for s in expect.get("precipitate", ()) if solids.get(s, 0.0) < FORMED]
    found += [f"{s} present {solids[s]:.4f} M" for s in expect.get("absent", ()) if solids.get(s, 0.0) >= FORMED]
    for element, (low, high) in {**expect.get("removed", {}), **expect.get("removed_any", {})}.items():
        share = removed(done, totals, element)
        if not low <= round(share, 6) <= high:
            found.append(f"{element} removed {share:.3f}")
    found += [
        f"{s} {done.species[names[s]]:.2g} M"
        for s, c in expect.get("species", {}).items()
        if done.species[names[s]] < c
    ]
    found += [
        f"{s} {done.species[names[s]]:.2g} M"
        for s, c in expect.get("species_max", {}).items()
        if done.species[names[s]] > c
    ]
    return found


@pytest.mark.parametrize("fact", FACTS, ids=[fact["id"] for fact in FACTS])
def test_fact(fact: dict[str, Any]) -> None:
    found = failures(fact)
    if fact["holds"]:
        assert not found, f"{fact['source']}: {found}"
    else:  # A known limit: it must still fail, and just so; a better database shall be noticed.
        assert found == fact["failed"]


@pytest.mark.parametrize("fact", FACTS, ids=[fact["id"] for fact in FACTS])
def test_observation_is_reproduced(fact: dict[str, Any]) -> None:
    done, _, litres = mixed(fact)
    assert done.ph == pytest.approx(fact["observed"]["pH"], abs=2e-3)
    for solid, concentration in fact["observed"]["precipitate_mol_per_L"].items():
        assert done.solids[solid] / litres == pytest.approx(concentration, rel=6e-3)


def test_every_fact_has_a_source_and_three_are_known_limits() -> None:
    assert len(FACTS) == 100
    assert len({fact["id"] for fact in FACTS}) == 100
    assert all(fact["source"] for fact in FACTS)
    assert {fact["id"] for fact in FACTS if not fact["holds"]} == KNOWN_LIMITS


ADDED: list[list[Any]] = json.loads((DATA / "added-constants.json").read_text("utf-8"))


def reactions() -> dict[str, tuple[float, str]]:
    """Every reaction of wetlab.dat -> its log K and the comment beside it; solids as ``Name: reaction``."""
    found: dict[str, tuple[float, str]] = {}
    lines = database().text.splitlines()
    solid = False
    for i, line in enumerate(lines):
        solid = solid or line.strip() == "PHASES"
        log_k = re.fullmatch(r"\s+log_k (\S+)", line)
        if log_k:
            reaction, _, comment = lines[i - 1].partition("#")
            name = f"{lines[i - 2].strip()}: " if solid else ""
            found[name + reaction.strip()] = (float(log_k[1]), comment.strip())
    return found


@pytest.mark.parametrize(("reaction", "log_k", "source"), ADDED, ids=[str(row[0]) for row in ADDED])
def test_added_constant_agrees_with_the_database(reaction: str, log_k: float, source: str) -> None:
    there, comment = reactions()[reaction]
    assert there == pytest.approx(log_k, abs=1e-9)
    assert comment == f"extra: {source}"


def test_every_extra_reaction_of_the_database_is_listed() -> None:
    extra = {reaction for reaction, (_, comment) in reactions().items() if comment.startswith("extra")}
    assert extra == {row[0] for row in ADDED}


def test_the_database_ships_with_its_header_and_notice() -> None:
    assert database().text.startswith("# wetlab.dat - MODIFIED from minteq.v4.dat of USGS PHREEQC")
    assert "USGS" in (DATA / "USGS-NOTICE").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("AgCl", {"Ag": 1, "Cl": 1}),
        ("MgNhH4PO4:6H2O", {"Mg": 1, "Nh": 1, "P": 1}),
        ("Pb3(PO4)2", {"Pb": 3, "P": 2}),
        ("Cu2(OH)2CO3", {"Cu": 2, "C": 1}),
        ("Sb2Sii3", {"Sb": 2, "Sii": 3}),
        ("PbCrviO4", {"Pb": 1, "Crvi": 1}),
    ],
)
def test_formula(text: str, counts: dict[str, float]) -> None:
    assert formula(text) == counts


def test_every_stock_solution_is_made_of_known_elements_and_is_neutral() -> None:
    charge = re.compile(r"([+-])(\d?)$")
    for name, ions in stock().items():
        total = 0.0
        for ion, molarity in ions.items():
            assert set(ion_totals(ion)) <= database().elements, name
            match = charge.search(ion)
            total += molarity * (int(match[1] + (match[2] or "1")) if match else 0)
        assert total == pytest.approx(0, abs=1e-9), name
