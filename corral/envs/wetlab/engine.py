"""The chemistry engine: one function from a vessel to the same vessel at equilibrium, computed by PHREEQC.

Purpose: `Engine` is the only place that talks to the ``phreeqc`` package. A solution is its totals (mol of every
element except H and O); the pH follows from charge balance, so mixing two solutions is adding their totals.

Guarantees:

- Results depend on the input alone, never on history or schedule. A used IPhreeqc instance answers up to 1.5e-6
  (relative) differently from a fresh one, so the bench makes a fresh `Engine` for **every tool call** (about 6 ms, most
  of it reading the database). Per episode would be cheaper, but then a vessel exported to another task would behave
  unlike the same vessel kept on the bench.
- Nonsense (nan, negative, huge amounts, unknown names) is refused with a ValueError before the solver sees it: PHREEQC
  itself reports no error for it.
- What the solver would leave behind on a failure (``error.inp`` in the current directory) is never written: a run's
  current directory is one that no longer exists.

Assumptions, all process-global and the reason for ``concurrency = "process"``: a run holds the GIL from start to end
and nothing interrupts it; ``LC_NUMERIC`` must be "C" (under a comma locale PHREEQC reads 1.5 as 1 and says nothing);
the current directory is switched around a run; one instance must not be used by two threads.
"""

from __future__ import annotations

import contextlib
import locale
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from phreeqc import Phreeqc

DATA = Path(__file__).parent / "data"

STARTS = (7.0, 2.0, 12.0, 4.0, 10.0, 0.5)
"""Where the search for the pH starts: from 7, and where that does not converge, from the next one."""

TOLERANCE = 1e-8
"""Of convergence. 1e-10 fails on traces."""

LEAST = 1e-12
"""Moles below which an element or solid is dropped: no reagent shows it, and such traces cost convergence."""

MOST = 1e4
"""Moles of one element, or kilograms of water, beyond which an amount is taken for a mistake."""

GASES = ("CO2(g)", "H2S(g)", "NH3(g)")

INERT: dict[str, dict[str, float]] = {"MnO2": {"Mn": 1.0}}
"""Solids outside the database, made by a declared rule of the bench: they take no part in equilibria."""

_REDOX = {"Hg": ("Hg(0)", "Hg(1)", "Hg(2)")}


class NoEquilibrium(ValueError):
    """The solver found no equilibrium, from any starting pH.

    ``detail`` is PHREEQC's own reason. It may name elements, so it is not in the text that an agent sees.
    """

    def __init__(self, detail: str):
        super().__init__("this mixture could not be brought to equilibrium")
        self.detail = detail


@dataclass(frozen=True)
class Database:
    """What the engine needs to know of ``wetlab.dat``: its text, its elements, and what each solid is made of."""

    text: str
    elements: frozenset[str]
    phases: Mapping[str, Mapping[str, float]]


@dataclass
class Equilibrium:
    """The outcome of one run."""

    totals: dict[str, float]
    solids: dict[str, float]
    gases: dict[str, float]
    ph: float
    water_kg: float
    species: dict[str, float] = field(default_factory=dict)
    """Molalities of the species that were asked for."""


@cache
def database() -> Database:
    """Read ``wetlab.dat`` once per process."""
    text = (DATA / "wetlab.dat").read_text("utf-8")
    body = [line.split("#")[0].rstrip() for line in text.splitlines()]
    masters = body[body.index("SOLUTION_MASTER_SPECIES") + 1 : body.index("SOLUTION_SPECIES")]
    elements = frozenset(line.split()[0] for line in masters) - {"E", "H", "O", "Alkalinity", "H(1)", "H(0)"}
    elements -= {"O(-2)", "O(0)"}
    lines = [line for line in body[body.index("PHASES") + 1 : body.index("END")] if line.strip()]
    phases = {
        lines[i].strip(): formula(lines[i + 1].split("=")[0].split(" + ")[0].strip()) for i in range(0, len(lines), 3)
    }
    return Database(text, elements, phases)


def formula(text: str) -> dict[str, float]:
    """Count the elements of a formula, hydrates included; without H, O and charge: ``MgNhH4PO4:6H2O``."""
    counts: dict[str, float] = {}
    for part in text.split(":"):
        lead = re.match(r"\d+(?=[A-Z(])", part)
        _count(part[lead.end() :] if lead else part, float(lead.group()) if lead else 1.0, counts)
    return {element: n for element, n in counts.items() if element not in ("H", "O")}


def _count(text: str, times: float, counts: dict[str, float]) -> None:
    group = re.compile(r"\(([^()]*)\)(\d*)|([A-Z][a-z]*)(\d*)|[+-]\d*")
    for match in group.finditer(text):
        if match[1] is not None:
            _count(match[1], times * float(match[2] or 1), counts)
        elif match[3]:
            counts[match[3]] = counts.get(match[3], 0.0) + times * float(match[4] or 1)


def check_amount(value: object, what: str, *, least: float = 0.0, most: float = MOST) -> float:
    """Return ``value`` as a float if it is a number in range; raise ValueError naming ``what`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{what} must be a number, not {value!r}")
    number = float(value) if abs(value) <= most else math.inf
    if not math.isfinite(number) or number < least:
        raise ValueError(f"{what} must be between {least:g} and {most:g}, not {value!r}")
    return number


def check_count(value: object, what: str, most: int) -> int:
    """Return ``value`` if it is a whole number from 1 to ``most``; raise ValueError naming ``what`` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 1 to {most}, not {value!r}")
    return value


def base(element: str) -> str:
    """The element without its redox state: ``Hg(1)`` is ``Hg``."""
    return element.split("(")[0]


class Engine:
    """One IPhreeqc instance with the wetlab database. Make a fresh one per tool call; never share it."""

    def __init__(self) -> None:
        locale.setlocale(locale.LC_NUMERIC, "C")
        self._solver = Phreeqc()
        self._solver.SetErrorFileOn(False)
        if self._solver.LoadDatabaseString(database().text):
            raise RuntimeError(f"wetlab.dat does not load: {self._solver.GetErrorString().strip()}")

    def equilibrate(
        self,
        totals: Mapping[str, float],
        solids: Mapping[str, float],
        water_kg: float,
        *,
        gases: Mapping[str, tuple[float, float]] | None = None,
        species: Sequence[str] = (),
    ) -> Equilibrium:
        """Bring a mixture to equilibrium with every solid that can form from it.

        Args:
            totals: Dissolved moles by element, Hg by redox state (``Hg(0)``, ``Hg(1)``, ``Hg(2)``).
            solids: Moles by phase.
            water_kg: Water.
            gases: By gas, the log10 of its pressure (atm) in the gas above, and the moles at hand.
            species: Names of dissolved species whose molality is wanted.
        """
        totals, solids, water_kg = check_mixture(totals, solids, water_kg)
        inert = {name: n for name, n in solids.items() if name in INERT}
        active = {name: n for name, n in solids.items() if name not in INERT}
        gases = gases or {}
        from_gases = [e for gas in gases for e in database().phases[gas]]
        candidates = possible_solids([*totals, *from_gases], active)
        tails = _phases_block(candidates, active, gases) + _output_block(totals, active, candidates, gases, species)
        row = self._converge(lambda ph: _solution_block(totals, water_kg, ph) + tails)
        found = {name: row[name] for name in candidates if row[name] > LEAST}
        kg = row["mass_H2O"]
        left = {e: row[e] * kg for e in _elements(totals, active, gases) if row[e] * kg > LEAST}
        return Equilibrium(
            totals=left,
            solids=dict(sorted((found | inert).items())),
            gases={name: row[name] for name in gases},
            ph=row["pH"],
            water_kg=water_kg,
            species={name: row[f"m_{name}"] for name in species},
        )

    def run(self, text: str) -> list[dict[str, Any]]:
        """Run raw PHREEQC input; return the rows of its selected output. Raises NoEquilibrium on any error."""
        with _nowhere():
            errors = self._solver.RunString(text)
        if errors:
            lines = [line for line in self._solver.GetErrorString().splitlines() if line.strip()]
            raise NoEquilibrium(lines[0].removeprefix("ERROR:").strip()[:120] if lines else "no reason given")
        names = [
            str(self._solver.GetSelectedOutputValue(0, c)) for c in range(self._solver.GetSelectedOutputColumnCount())
        ]
        return [
            {name.removesuffix("(mol/kgw)"): self._solver.GetSelectedOutputValue(r, c) for c, name in enumerate(names)}
            for r in range(1, self._solver.GetSelectedOutputRowCount())
        ]

    def _converge(self, text: Callable[[float], str]) -> dict[str, Any]:
        for start in STARTS[:-1]:
            with contextlib.suppress(NoEquilibrium):
                return self.run(text(start))[-1]
        return self.run(text(STARTS[-1]))[-1]


def check_mixture(
    totals: Mapping[str, float], solids: Mapping[str, float], water_kg: float
) -> tuple[dict[str, float], dict[str, float], float]:
    """Validate names and amounts; drop traces; sort, so that equal mixtures give equal input."""
    known = database()
    for name in totals:
        if name not in known.elements:
            raise ValueError(f"unknown element {name!r}")
    for name in solids:
        if (name not in known.phases and name not in INERT) or name in GASES:
            raise ValueError(f"unknown solid {name!r}")
    water = check_amount(water_kg, "water_kg", least=1e-6)
    clean = {e: check_amount(n, f"moles of {e}") for e, n in sorted(totals.items())}
    rest = {s: check_amount(n, f"moles of {s}") for s, n in sorted(solids.items())}
    return {e: n for e, n in clean.items() if n > LEAST}, {s: n for s, n in rest.items() if n > LEAST}, water


def possible_solids(totals: Iterable[str], solids: Iterable[str]) -> list[str]:
    """The phases whose elements are all there."""
    phases = database().phases
    there = {base(e) for e in totals} | {base(e) for s in solids for e in phases[s]}
    return [name for name, made_of in phases.items() if name not in GASES and {base(e) for e in made_of} <= there]


def _elements(totals: Iterable[str], solids: Iterable[str], gases: Iterable[str]) -> list[str]:
    phases = database().phases
    bases = {base(e) for e in totals} | {base(e) for s in (*solids, *gases) for e in phases[s]}
    return sorted(state for e in bases for state in _REDOX.get(e, (e,)))


def _solution_block(totals: Mapping[str, float], water_kg: float, ph: float) -> str:
    amounts = "".join(f" {e} {n / water_kg!r}\n" for e, n in totals.items())
    return (
        f"KNOBS\n -convergence_tolerance {TOLERANCE}\n -iterations 300\n"
        f"SOLUTION 1\n -units mol/kgw\n -water {water_kg!r}\n pH {ph} charge\n pe 4\n{amounts}"
    )


def _phases_block(
    candidates: Sequence[str], solids: Mapping[str, float], gases: Mapping[str, tuple[float, float]]
) -> str:
    rows = [f" {name} 0 {solids.get(name, 0.0)!r}\n" for name in candidates]
    rows += [f" {name} {log_p!r} {moles!r}\n" for name, (log_p, moles) in gases.items()]
    return "EQUILIBRIUM_PHASES 1\n" + "".join(rows) if rows else ""


def _output_block(
    totals: Iterable[str],
    solids: Iterable[str],
    candidates: Sequence[str],
    gases: Mapping[str, tuple[float, float]],
    species: Sequence[str],
) -> str:
    lines = ["SELECTED_OUTPUT 1", " -reset false", " -pH true", " -water true"]
    for option, names in (
        ("-totals", _elements(totals, solids, gases)),
        ("-equilibrium_phases", [*candidates, *gases]),
        ("-molalities", species),
    ):
        if names:
            lines.append(f" {option} {' '.join(names)}")
    return "\n".join([*lines, "END", ""])


def _removed_folder() -> int:
    """The descriptor of a folder that is gone: one made and removed for each run would cost a tenth of its time."""
    there = tempfile.mkdtemp(prefix="wetlab-")
    descriptor = os.open(there, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(there)
    return descriptor


_NOWHERE = _removed_folder()


@contextlib.contextmanager
def _nowhere() -> Iterator[None]:
    """A current directory in which nothing can be written: the solver drops ``error.inp`` there when it fails."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.fchdir(_NOWHERE)
        try:
            yield
        finally:
            os.fchdir(before)
    finally:
        os.close(before)
