"""The files that a session can be written to, by their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.errors import ConfigError
from corral.report import files
from corral.report.html import write_html
from corral.report.inspect_log import write_inspect
from corral.report.junit import write_junit
from corral.report.rows import parquet_writer, write_lines, write_parquet
from corral.report.timeline import chrome_trace
from corral.types import check_path

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

PathLike = str | os.PathLike[str]


def write_json(result: BenchmarkResult, path: PathLike) -> Path:
    """Write the report."""
    return result.write_json(path)


def write_trace(result: BenchmarkResult, path: PathLike) -> Path:
    """Write the timeline for Perfetto and Chrome's trace viewer."""
    trace = chrome_trace(result.trials, name=result.run_name or result.session_id, pool=result.pool)
    return files.write(path, files.dump(trace, indent=None))


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    suffix: str
    write: Callable[[BenchmarkResult, PathLike], Path]
    what: str


FORMATS = {
    "html": Format(".html", write_html, "a page with everything, for a browser"),
    "json": Format(".json", write_json, "the report (docs/report.md)"),
    "jsonl": Format(".jsonl", write_lines, "a flat row for each trial"),
    "parquet": Format(".parquet", write_parquet, "the same as columns; needs corral[parquet]"),
    "inspect": Format(".eval", write_inspect, "a log of Inspect AI, for `inspect view`"),
    "trace": Format(".trace.json", write_trace, "the timeline, for ui.perfetto.dev"),
    "junit": Format(".xml", write_junit, "JUnit XML, for CI systems"),
}
"""By the name of each. A file's ending says which it is."""


def export(result: BenchmarkResult, path: PathLike, kind: str | None = None) -> Path:
    """Write ``result`` to ``path`` as ``kind`` (see ``FORMATS``), or as what the path's ending says; the path."""
    path = check_path(path, "the path of a report")
    return FORMATS[kind_of(path) if kind is None else _known(kind)].write(result, path)


def report_kind(path: PathLike) -> str:
    """The format that a path's ending says; ``json`` for one without an ending, such as a device or a pipe."""
    return kind_of(path) if Path(check_path(path, "the path of a report")).suffix else "json"


def check_report(path: PathLike) -> None:
    """ConfigError if a report could not be written to ``path`` for what its name is, or for a package that is missing.

    So a run is refused before it starts, and not when it has ended.
    """
    if report_kind(path) == "parquet":
        parquet_writer()


def kind_of(path: PathLike) -> str:
    """The format that a path's ending says."""
    name = Path(path).name
    found = [kind for kind, form in FORMATS.items() if name.lower().endswith(form.suffix)]
    if not found:
        endings = ", ".join(form.suffix for form in FORMATS.values())
        raise ConfigError(f"{name!r} does not say its format: name the format, or end it in {endings}")
    return max(found, key=lambda kind: len(FORMATS[kind].suffix))


def _known(kind: str) -> str:
    if kind not in FORMATS:
        raise ConfigError(f"there is no format {kind!r}; there are {', '.join(FORMATS)}")
    return kind
