"""What cannot be used is refused at each door of the library, in a sentence that names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral import Environment, build_environments, create_benchmark_server, run_server
from corral.agents import BaseAgent
from corral.errors import ConfigError
from tests.support.benches import Bench, bench, benches, sole


class Junk(Bench):
    """Gives something else than tools."""

    def __init__(self, given: Any) -> None:
        self.given = given
        super().__init__("a")

    def get_tools(self) -> Any:
        return self.given


ENVS = {"a": Bench("a")}
ODD: Any = 3
WORD: Any = "a"
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: build_environments(ODD), "build_environments takes a list of TaskDefinitions, not 3"),
    (lambda: build_environments(WORD), "build_environments takes a list of TaskDefinitions, not 'a'"),
    (lambda: BaseAgent(hooks=ODD), "hooks must map names to functions, not 3"),
    (lambda: BaseAgent(hooks={"before_task": ODD}), "hooks must map names to functions, not {"),
    (lambda: run_server(ENVS, host=ODD), "host must be a name or an address, not 3"),
    (lambda: run_server(ENVS, uds="a\0b"), "uds must be a path, not 'a\\x00b'"),
    (lambda: create_benchmark_server(ENVS, allowed_hosts=ODD), "allowed_hosts must be a list of names, not 3"),
    (lambda: create_benchmark_server(ENVS, allowed_hosts=WORD), "allowed_hosts must be a list of names, not 'a'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says[:40] for _, says in REFUSED])
def test_it_is_refused(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match="^" + re.escape(says)):
        call()


@pytest.mark.parametrize("given", [3, None, ["python"], {"python": 3}])
def test_tools_that_are_none(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="get_tools of task 'a' must give tools by their names, not "):
        bench(lambda: {"a": Junk(given)}, lambda lab, prompt: 1, tmp_path)


@pytest.mark.parametrize("path", [3, None, "a\0b"])
def test_paths_of_reports(path: Any, tmp_path: Path) -> None:
    result = bench(benches(a="thread"), lambda lab, prompt: 1, tmp_path)
    with pytest.raises(ConfigError, match="the path of a report must be a path, not "):
        result.generate_report(path)


def test_a_way_to_read_answers_that_raises_is_the_scorer_s_fault(tmp_path: Path) -> None:
    class Strict(Bench):
        def resolve_answer(self, answer: Any) -> Any:
            raise KeyboardInterrupt

    def build() -> dict[str, Environment]:
        return {"a": Strict("a")}

    trial = sole(bench(build, lambda lab, prompt: 1, tmp_path))
    assert (trial.failure, trial.error_message) == (
        "scoring", "resolve_answer of task 'a' failed: KeyboardInterrupt",
    )  # fmt: skip
