"""What README.md and docs/ show can be copied as it stands: Python, commands, and the README's own example, run."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral import cli, server
from corral.report import command
from tests.support.scripts import ROOT, environment, python, start

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PARSERS = {"corral.pool": cli.parser, "corral.server": server.parser, "corral.report": command.parser}


def blocks(page: Path, *languages: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def snippets() -> Iterator[Any]:
    for page in PAGES:
        for number, text in enumerate(blocks(page, "python")):
            yield pytest.param(text, id=f"{page.name}-{number}")


@pytest.mark.parametrize("text", list(snippets()))
def test_python_names_nothing_that_is_not_there(text: str) -> None:
    undefined = ["ruff", "check", "--isolated", "--quiet", "--select", "E9,F", "--output-format", "concise", "-"]
    done = subprocess.run([sys.executable, "-m", *undefined], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("corral"):
            module = importlib.import_module(str(statement.module))
            assert [name.name for name in statement.names if not hasattr(module, name.name)] == []


def commands() -> Iterator[Any]:
    for page in PAGES:
        for text in blocks(page, "", "bash"):
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("python -m corral."):
                    yield pytest.param(line, id=line.removeprefix("python -m "))


@pytest.mark.parametrize("line", list(commands()))
def test_commands_have_options_that_there_are(line: str) -> None:
    _, _, module, *arguments = shlex.split(line, comments=True)
    PARSERS[module]().parse_args(arguments)


def test_the_package_names_its_commands(tmp_path: Path) -> None:
    done = python("-m", "corral", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.findall(r"python -m (corral\.\w+)", done.stderr) == list(PARSERS)


# ---- the README's example ----


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that the README writes."""
    for text in blocks(PAGES[0], "python"):
        name = re.match(r"# (\w+\.py)\n", text)
        (tmp_path / (name[1] if name else "client.py")).write_text(text)
    return tmp_path


def test_the_chain_runs(tmp_path: Path) -> None:
    for text in blocks(ROOT / "docs" / "environments.md", "python"):
        (tmp_path / text.split()[1]).write_text(text)
    done = python("solve.py", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0 [50.0, 50.0, 100.0, 100.0]\n", "")


def test_the_example_runs(project: Path) -> None:
    done = python("run.py", folder=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1.0 1.0 Coverage(planned=12, graded=12, ")
    assert (project / "report.json").is_file()


def test_it_runs_from_the_shell(project: Path) -> None:
    (line,) = [line for line in blocks(PAGES[0], "")[-1].splitlines() if "corral.pool" in line]
    done = python(*shlex.split(line)[1:], "--quiet", folder=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("15 of 15 trials graded, average score 1.000; ")


def test_it_runs_on_a_server(project: Path) -> None:
    (line,) = [line for text in blocks(PAGES[0], "") for line in text.splitlines() if "corral.server" in line]
    with start([*shlex.split(line.replace("8000", "0"))[1:]], project) as serving:
        assert serving.stdout is not None
        told = re.search(r"at (http://\S+)", serving.stdout.readline())
        assert told
        client = (project / "client.py").read_text().replace("http://127.0.0.1:8000", told[1])
        (project / "client.py").write_text(client)
        try:
            done = subprocess.run(
                [sys.executable, "client.py"], cwd=project, env=environment(), capture_output=True, text=True,
                timeout=50, check=False,
            )  # fmt: skip
        finally:
            serving.terminate()
            serving.communicate(timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")
    assert serving.returncode == 0
