"""Who may import whom (docs: design, "Who may import whom"), read from the sources. The rules are the tables here.

A name ending in ``.*`` means a package and all in it. Modules that do not exist are passed over.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "corral"

LAYERS: list[set[str]] = [
    {"errors", "lean", "shell"},
    {"types"},
    {
        "arguments", "blame", "bodies", "call_history", "calls", "counters", "credentials", "data", "door", "forks",
        "guard", "guests", "guide", "header", "installed", "jobs", "leash", "listening", "loop", "once", "plain",
        "process_state", "protocol", "recipe", "record_shapes", "records", "schema", "scratch", "shapes", "tasks",
        "threads", "tools", "turns", "unwrap", "waiting",
    },
    {"environment"},
    {"catalogue", "fingerprint", "runtime", "source"},
    {"envs.*", "episode", "journal", "plan", "planner", "pool.*"},
    {
        "collector", "crew", "hosts", "lingering", "open_trial", "report.*", "routers", "scheduler", "service",
        "settings",
    },
    {"agents.*", "app", "client", "endpoints", "exchange", "front", "mcp_bridge", "openapi", "remote", "serving"},
    {"attempt", "attempt_log", "connection", "envs.wetlab.agents", "report.regrade", "runner", "session"},
    {"__main__", "cli", "named", "server", "pool.__main__", "report.__main__", "report.command"},
]  # fmt: skip
"""From the bottom up. A module imports from its own layer and those below; within a layer there are no cycles."""

PURE = {
    "call_history", "credentials", "data", "episode", "errors", "planner", "pool.hello", "pool.lifecycle",
    "pool.messages", "pool.wire", "record_shapes", "records", "report.comparison", "report.differences",
    "report.figures", "report.intervals", "report.metrics", "report.timeline", "report.transcript", "tasks", "types",
}  # fmt: skip
"""Modules without a clock, files, processes or an event loop: time is an argument, tests need no sleep."""

IMPURE = {
    "anyio", "asyncio", "filelock", "glob", "httpx", "io", "multiprocessing", "os", "psutil", "sched", "select",
    "selectors", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "trio",
}  # fmt: skip
"""What pure modules do not import."""

WORKER_SIDE = {"pool.guards", "pool.host", "pool.leaving", "pool.link", "pool.nursery_main", "pool.printed",
               "pool.holdings", "pool.rehearsal", "pool.spare", "pool.traces", "pool.trial_process"}  # fmt: skip
WORKER_MAY = {
    "arguments", "call_history", "catalogue", "data", "environment", "errors", "fingerprint", "forks", "guide",
    "installed", "jobs", "lean", "pool.glance", "pool.hello", "pool.inherited", "pool.logs", "pool.main_script",
    "pool.messages", "pool.wire", "process_state", "recipe", "runtime", "schema", "shapes", "source", "tasks",
    "threads", "tools", "types", "waiting",
}  # fmt: skip
"""What the worker side may import beside itself: so a worker stays small and knows nothing of the run."""

WORKER_NEVER = {
    "httpx", "fastapi", "starlette", "uvicorn", "rich", "trio", "corral.agents", "corral.collector", "corral.journal",
    "corral.pool.supervisor", "corral.pool.trial_handle", "corral.pool.worker", "corral.routers",
    "corral.runner", "corral.scheduler",
    "corral.app", "corral.remote", "corral.service", "corral.serving", "mcp", "prometheus_client",
}  # fmt: skip
"""What is never loaded in a worker, directly or by way of others."""

BRIDGE = "pool.entry"
"""The one module that both sides know: it names the worker's main function to the supervisor, and imports it late."""

ONLY = {
    "envs.*": {"envs.*", "environment", "tools", "tasks", "types", "data", "errors"},
    "agents.*": {
        "agents.*", "call_history", "credentials", "data", "errors", "leash", "plain", "routers", "scratch", "threads",
        "tools", "types",
    },
    "envs.wetlab.agents": {"envs.*", "agents.*", "types", "errors"},
}  # fmt: skip
"""Packages that may import nothing of Corral but this. The closest entry counts: an environment's scripted expert is
an agent."""

HEAVY = {"pydantic", "httpx", "anyio", "rich", "numpy", "asyncio", "psutil", "cloudpickle"}
"""What ``import corral`` does not load."""


@dataclass(frozen=True)
class Import:
    """One import statement's target. ``late``: only in a function; ``typing``: only for a type checker."""

    target: str
    line: int
    late: bool = False
    typing: bool = False


@cache
def modules() -> dict[str, Path]:
    """Every module by its name inside corral; a package's ``__init__`` by the package's name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> tuple[Import, ...]:
    return tuple(_walk(module, ast.parse(modules()[module].read_text("utf-8")), late=False, typing=False))


def _walk(module: str, node: ast.AST, *, late: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, late, typing)
        elif isinstance(child, ast.ImportFrom):
            for target in _from_targets(module, child):
                yield Import(target, child.lineno, late, typing)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _walk(module, ast.Module(child.body, []), late=late, typing=True)
            yield from _walk(module, ast.Module(child.orelse, []), late=late, typing=typing)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(module, child, late=late or inside, typing=typing)


def _from_targets(module: str, node: ast.ImportFrom) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        package = modules()[module].name == "__init__.py"
        parts = ["corral", *filter(None, module.split("."))]
        parts = parts[: len(parts) - node.level + package]
        base = ".".join([*parts, *filter(None, [node.module])])
    for alias in node.names:
        whole = f"{base}.{alias.name}"
        # "from corral.pool import wire" imports a module, "from corral.errors import ConfigError" a name.
        yield whole if _ours(whole) in modules() else base


def _ours(target: str) -> str | None:
    """The name inside corral; None for other packages. The facade is ``""``."""
    if target == "corral":
        return ""
    return target.removeprefix("corral.") if target.startswith("corral.") else None


def _matches(module: str, names: set[str]) -> bool:
    return module in names or any(name.endswith(".*") and (module + ".").startswith(name[:-1]) for name in names)


def _layer(module: str) -> int | None:
    exact = [number for number, names in enumerate(LAYERS) if module in names]
    return next(iter(exact or [number for number, names in enumerate(LAYERS) if _matches(module, names)]), None)


def _at(module: str, found: Import) -> str:
    return f"corral/{modules()[module].relative_to(ROOT)}:{found.line} imports {found.target}"


def _inner() -> list[tuple[str, Import, str]]:
    """Every import of one part of corral by another. The facade, which only names others, is left out."""
    return [
        (module, found, inner)
        for module in modules()
        if module
        for found in imports(module)
        if (inner := _ours(found.target)) is not None
    ]


def test_every_module_has_its_layer() -> None:
    homeless = [module for module in modules() if module and _layer(module) is None]
    assert not homeless, f"give them a place in LAYERS, in {Path(__file__).name}: {homeless}"


def test_imports_go_down_only() -> None:
    upward = []
    for module, found, inner in _inner():
        mine, theirs = _layer(module), _layer(inner)
        if mine is not None and theirs is not None and theirs > mine:
            upward.append(_at(module, found))
    assert not upward, "\n".join(upward)


def test_nothing_inside_imports_the_facade() -> None:
    assert not [_at(module, found) for module, found, inner in _inner() if inner == ""]


def test_there_are_no_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for module, found, inner in _inner():
        if not found.late and not found.typing and inner != module:
            graph[module].add(inner)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle


def test_pure_modules_are_pure() -> None:
    impure = [
        _at(module, found)
        for module in PURE & modules().keys()
        for found in imports(module)
        if not found.typing and found.target.partition(".")[0] in IMPURE
    ]
    assert not impure, "\n".join(impure)


def test_the_worker_side_imports_what_it_may() -> None:
    strange = [
        _at(module, found)
        for module, found, inner in _inner()
        if module in WORKER_SIDE and not found.typing and inner not in WORKER_SIDE | WORKER_MAY | {"pool"}
    ]
    assert not strange, "\n".join(strange)


def test_no_one_else_imports_the_worker_side() -> None:
    strange = [
        _at(module, found)
        for module, found, inner in _inner()
        if inner in WORKER_SIDE and module not in WORKER_SIDE and not (module == BRIDGE and found.late)
    ]
    assert not strange, "\n".join(strange)


def _rule(module: str) -> str | None:
    return module if module in ONLY else next((rule for rule in ONLY if _matches(module, {rule})), None)


@pytest.mark.parametrize("package", ONLY)
def test_a_package_imports_only_what_it_knows(package: str) -> None:
    strange = [
        _at(module, found)
        for module, found, inner in _inner()
        if _rule(module) == package and not _matches(inner, ONLY[package])
    ]
    assert not strange, "\n".join(strange)


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT.parent)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_corral_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import corral")


def test_importing_the_pool_loads_nothing_heavy() -> None:
    assert not HEAVY & loaded_by("import corral.pool")


def test_a_worker_loads_nothing_of_the_supervisor() -> None:
    sides = [module for module in sorted(WORKER_SIDE) if module in modules()]
    if not sides:
        pytest.skip("there is no worker yet")
    loaded = loaded_by("\n".join(f"import corral.{module}" for module in sides))
    assert not WORKER_NEVER & loaded
