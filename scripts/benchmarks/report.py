"""What the benchmarks have to say: tables, targets, the machine; on the terminal, and as JSON for other programs."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

PACKAGES = ("corral", "anyio", "trio", "uvloop", "loky", "pebble", "trio-parallel", "numpy")

Row = Mapping[str, Any]
Columns = Mapping[str, str]
"""What a table shows: the key of a row's value, which is the heading too, and its unit (see ``shown``)."""


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if abs(value) * scale < 999.5:
            return f"{value * scale:.3g} {unit}"
    return f"{value:.3g} s" if abs(value) < 1000 else f"{value:.0f} s"


def size(value: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, scale in (("B", 1.0), ("kB", 1e3)):
        if abs(value) < 999.5 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e6:.1f} MB"


def shown(value: Any, unit: str) -> str:
    """A value as people read it. Units: s (seconds), B (bytes), x (a ratio), % (of a fraction), n (a number)."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, str):
        return value
    match unit:
        case "s":
            return seconds(value)
        case "B":
            return size(value)
        case "x":
            return f"{value:.2f} x"
        case "%":
            return f"{value * 100:.1f} %"
        case _:
            return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def progress(what: str) -> None:
    """Say on the terminal what is being measured: it may take minutes."""
    print(f"... {what}", file=sys.stderr, flush=True)


@dataclass
class Table:
    """Rows of what was measured. A row without a value for a column shows a dash there."""

    title: str
    columns: dict[str, str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    def show(self, console: Console) -> None:
        """Print it."""
        console.print(self.title, style="bold", highlight=False)  # not the table's: that breaks lines at its width
        table = RichTable(box=box.SIMPLE_HEAD)
        for name, unit in self.columns.items():
            table.add_column(name, justify="left" if unit == "text" else "right", no_wrap=unit != "text")
        for row in self.rows:
            table.add_row(*(shown(row.get(name), unit) for name, unit in self.columns.items()))
        console.print(table)
        if self.note:
            console.print(f"  {self.note}\n", style="dim", highlight=False)


@dataclass
class Target:
    """What a figure should be at most."""

    text: str
    limit: float
    measured: float | None
    unit: str

    @property
    def met(self) -> bool | None:
        """Whether it was met; None when it was not measured."""
        return None if self.measured is None else self.measured <= self.limit


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "versions": versions,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class Report:
    """What one benchmark measured."""

    def __init__(self, command: str, options: Mapping[str, Any]) -> None:
        self.command = command
        self.options = {name: value for name, value in options.items() if isinstance(value, str | int | float | list)}
        self.machine = machine()
        self.tables: list[Table] = []
        self.targets: list[Target] = []
        self._began = time.perf_counter()

    def table(self, title: str, columns: Columns, rows: Sequence[Row], note: str = "") -> None:
        """Add a table."""
        self.tables.append(Table(title, dict(columns), [dict(row) for row in rows], note))

    def target(self, text: str, measured: float | None, limit: float, unit: str = "x") -> None:
        """Add what a figure should be at most. ``measured`` is None when a part of it could not be measured."""
        self.targets.append(Target(text, limit, measured, unit))

    def show(self, console: Console) -> None:
        """Print it all."""
        where = self.machine
        console.print(
            f"{where['processor']}, {where['processors']} processors, {size(where['memory'])}, {where['system']}, "
            f"Python {where['python']}, load {where['load']} at the start",
            highlight=False,
        )
        console.print(", ".join(f"{name} {version}" for name, version in where["versions"].items()), highlight=False)
        console.print()
        for table in self.tables:
            table.show(console)
        if self.targets:
            self._show_targets(console)

    def _show_targets(self, console: Console) -> None:
        console.print("Targets", style="bold")
        table = RichTable(box=box.SIMPLE_HEAD)
        table.add_column("at most")
        table.add_column("limit", justify="right", no_wrap=True)
        table.add_column("measured", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        for target in self.targets:
            word = {True: "[green]met", False: "[red]not met", None: "not measured"}[target.met]
            table.add_row(target.text, shown(target.limit, target.unit), shown(target.measured, target.unit), word)
        console.print(table)

    def data(self) -> dict[str, Any]:
        """All of it as data: times in seconds, sizes in bytes, shares as fractions."""
        return {
            "command": self.command,
            "options": self.options,
            "machine": self.machine,
            "seconds": round(time.perf_counter() - self._began, 3),
            "tables": [asdict(table) for table in self.tables],
            "targets": [asdict(target) | {"met": target.met} for target in self.targets],
        }

    def write(self, path: Path) -> None:
        """Write ``data()`` to a file."""
        path.write_text(json.dumps(self.data(), indent=1, allow_nan=True) + "\n")
