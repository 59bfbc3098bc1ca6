"""What a task's results depend on tells it from another one, and nothing else does."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corral.fingerprint import Code, data_of
from tests.support.scripts import python

ENVS = """
import numpy as np
from corral import Environment, TaskDefinition, build_environments, tool
from solver import integrate
import solver.tables as tables

LIMIT = 3.0  # of the second task

def clip(x):
    return min(x, LIMIT)

class Lab(Environment):
    def __init__(self, task_id, definition=None, rtol=1e-6):
        super().__init__(task_id, definition)
        self.rtol = rtol

    @tool
    def run(self, x: float) -> float:
        "Run it."
        return integrate(x, self.rtol)

class Other(Environment):
    def get_task_prompt(self): return "other"
    def score(self): return clip(1.0)

def check(answer, target):
    return float(abs(float(answer) - target) < tables.TOLERANCE)

def unused():
    return 1

def build_envs():
    task = TaskDefinition("lab", "Find it.", [], check, "a number", scoring_inputs={"target": 13.0},
                          initial_input={"x": np.array([1.0, 2.0])})
    return {**build_environments([task], env_cls=lambda task_id: Lab(task_id, rtol=1e-3)), "other": Other("other")}
"""
SOLVER = """
from .steps import rk4
from . import tables

def integrate(x, rtol):
    return rk4(x) * rtol
"""
STEPS = """
import sys
if sys.version_info >= (3, 11):
    WEIGHT = 1 / 6
else:
    WEIGHT = 0.2

def rk4(x):
    return x * WEIGHT
"""
TABLES = """
TOLERANCE = 0.1
SPARE = 5
"""
SHOW = """
import json
from envs import build_envs
from corral.catalogue import describe
print(json.dumps({task: info.digest for task, info in describe(build_envs()).items()}))
"""
FILES = {"envs.py": ENVS, "solver/__init__.py": SOLVER, "solver/steps.py": STEPS, "solver/tables.py": TABLES}


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """The tasks' digests after one text in one file became another."""

    def of(file: str = "envs.py", old: str = "", new: str = "") -> dict[str, str]:
        folder: Path = tmp_path_factory.mktemp("user")
        (folder / "solver").mkdir()
        for name, text in FILES.items():
            assert name != file or old in text
            (folder / name).write_text(text.replace(old, new) if name == file and old else text)
        (folder / "show.py").write_text(SHOW)
        done = python("show.py", folder=folder)
        assert done.returncode == 0, done.stderr
        told: dict[str, str] = json.loads(done.stdout)
        return told

    return of


@pytest.fixture(scope="module")
def before(digests: Callable[..., dict[str, str]]) -> dict[str, str]:
    return digests()


@pytest.mark.parametrize(("file", "old", "new", "changed"), [
    ("envs.py", "13.0", "14.0", "lab"),
    ("envs.py", "np.array([1.0", "np.array([1.5", "lab"),
    ("envs.py", "rtol=1e-3", "rtol=1e-9", "lab"),
    ("envs.py", "return integrate(", "return 2 * integrate(", "lab"),
    ("envs.py", "return float(abs", "return 0.5 * float(abs", "lab"),
    ("envs.py", "min(x, LIMIT)", "max(x, LIMIT)", "other"),
    ("envs.py", "LIMIT = 3.0", "LIMIT = 4.0", "other"),
    ("solver/__init__.py", "* rtol", "+ rtol", "lab"),
    ("solver/steps.py", "x * WEIGHT", "x + WEIGHT", "lab"),
    ("solver/steps.py", "1 / 6", "1 / 7", "lab"),
    ("solver/tables.py", "TOLERANCE = 0.1", "TOLERANCE = 0.2", "lab"),
    ("envs.py", "# of the second task", "# and something else", None),
    ("envs.py", "    return 1\n", "    return 2\n", None),
    ("solver/tables.py", "SPARE = 5", "SPARE = 6", None),
])  # fmt: skip
def test_what_a_task_depends_on(
    digests: Callable[..., dict[str, str]], before: dict[str, str], file: str, old: str, new: str, changed: str | None
) -> None:
    after = digests(file, old, new)
    assert [task for task in before if after[task] != before[task]] == ([changed] if changed else [])


@pytest.mark.parametrize(("module", "packages", "has"), [
    ("anyio.abc", [], False), ("anyio.abc", ["anyio"], True), ("json", [], False), ("sys", [], False),
    ("corral.environment", ["corral"], False), ("corral.envs.wetlab.bench", [], True), (__name__, [], True),
])  # fmt: skip
def test_whose_code_a_module_is(module: str, packages: list[str], has: bool) -> None:
    assert Code(packages).has(module) == has


def test_many_tasks_read_their_module_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = ast.parse

    def counted(text: str) -> ast.Module:
        read.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", counted)
    code = Code()
    assert code.of([test_equal_data]) == code.of([test_equal_data])
    assert code.of([Thing]) != code.of([test_equal_data])
    assert len(read) == 1


class Thing:
    """No data."""


@pytest.mark.parametrize(("one", "same"), [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"x", "y"}, {"y", "x"}), ([1, 2], (1, 2)),
    ("/tmp/a", "/var/b"), (Path("a"), Path("b")), (Thing(), Thing()), (np.arange(3), np.arange(3)),
])  # fmt: skip
def test_equal_data(one: Any, same: Any) -> None:
    assert data_of(one) == data_of(same)


@pytest.mark.parametrize(("one", "other"), [
    (1, 1.0), ("1", 1), ([1, [2]], [1, 2]), ({"a": None}, {}), (np.arange(3), np.arange(3.0)), (True, 1),
    (np.zeros((2, 3)), np.zeros((3, 2))), (float("nan"), None), (Thing(), None),
])  # fmt: skip
def test_data_that_differs(one: Any, other: Any) -> None:
    assert data_of(one) != data_of(other)


def test_data_that_contains_itself_comes_to_an_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert data_of(loop).startswith("[[")
