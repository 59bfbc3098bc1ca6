"""SWMM's input files as text: reading rows of a section, and changing one value. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"


def network(name: str) -> str:
    """The input file of that name in ``data/``."""
    return (DATA / f"{name}.inp").read_text("utf-8")


def rows(text: str, section: str) -> list[list[str]]:
    """The fields of every row in a section: ``[["C1", "J1", "J2", "120"], ...]``."""
    return [line.split() for _, line in _lines(text, section)]


def edited(text: str, section: str, name: str, column: int, value: float) -> str:
    """``text`` with another value in one column of the row that begins with ``name``; KeyError if there is none."""
    lines = text.split("\n")
    for number, line in _lines(text, section):
        fields = line.split()
        if fields[0] == name:
            fields[column] = repr(value)
            lines[number] = "  ".join(fields)
            return "\n".join(lines)
    raise KeyError(f"no {name!r} in [{section}]")


def _lines(text: str, section: str) -> Iterator[tuple[int, str]]:
    inside = False
    for number, line in enumerate(text.split("\n")):
        if line.startswith("["):
            inside = line.strip() == f"[{section}]"
        elif inside and line.strip() and not line.startswith(";"):
            yield number, line
