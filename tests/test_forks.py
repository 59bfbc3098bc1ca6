"""User code that forks and lets the child come back: the trial goes on in one process, and the child ends."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from corral import CorralRunner, Environment, tool
from corral.agents import ScriptedAgent


class Forking(Environment):
    """Its tools fork, as an author does who takes the script for the whole program."""

    concurrency = "process"

    def get_task_prompt(self) -> str:
        return "p"

    @tool
    def leave_a_helper(self, how: str, pause: float) -> int:
        """Fork a helper that ends in some way, by itself."""
        self._child = os.fork()
        if self._child == 0:
            time.sleep(pause)
            if how == "raises":
                raise RuntimeError("the helper failed")
            if how == "exits":
                sys.exit(7)
        return self._child

    @tool
    def wait_for_it(self) -> int:
        """How the helper ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])

    @tool
    def read(self, x: int) -> int:
        """Read a number, slowly."""
        time.sleep(0.05)
        return x

    def score(self) -> float:
        if os.fork() == 0:
            return -1.0
        os.wait()
        return float(self.state.submitted_answer == [1, 2, 3])


def build() -> dict[str, Environment]:
    return {"f": Forking("f")}


@pytest.mark.parametrize("pool", [1, None], ids=["pool", "in-process"])
@pytest.mark.parametrize("pause", [0.0, 0.08], ids=["first", "later"])
@pytest.mark.parametrize(("how", "status"), [("returns", 0), ("raises", 1), ("exits", 7)])
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_the_child_answers_nothing_and_ends_as_in_a_script(
    tmp_path: Path, pool: int | None, pause: float, how: str, status: int
) -> None:
    seen: list[Any] = []

    def work(lab: Any, prompt: str) -> Any:
        seen.append(lab.call("leave_a_helper", how=how, pause=pause))
        given = [lab.call("read", x=number) for number in (1, 2, 3)]
        seen.append(lab.call("wait_for_it"))
        return given

    runner = CorralRunner(build, agent_factory=lambda context: ScriptedAgent(work), checkpoint_dir=tmp_path)
    (trial,) = runner.bench(worker_pool=pool, progress=False).trials
    assert (trial.score, trial.failure, trial.warnings) == (1.0, None, ())
    child, ended = seen
    assert child > 0
    assert ended == status
