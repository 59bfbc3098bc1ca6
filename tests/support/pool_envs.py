"""CHILD SIDE: environments for the tests of the pool, and builders that misbehave.

``Lab`` has one tool, ``python``, which runs a test's own lines in the trial process: what happens there stands in the
test itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from corral.environment import Environment
from corral.tasks import TaskDefinition
from corral.tools import tool

stained: list[str] = []
"""A module global, as a simulation library would have one."""

LOADED_IN = os.getpid()
"""The process that imported this module."""


class Lab(Environment):
    """Runs anything."""

    concurrency = "process"

    def get_task_prompt(self) -> str:
        return f"task {self.task_id}"

    @tool
    def python(self, code: str) -> Any:
        """Run lines of Python; gives what they leave in ``result``."""
        scope: dict[str, Any] = {"env": self, "stained": stained}
        exec(code, scope)
        return scope.get("result")

    def score(self) -> float:
        return 1.0


class ForkedLab(Lab):
    """Insists on a fork."""

    fresh = "fork"


class SpawnedLab(Lab):
    """Insists on a new interpreter."""

    fresh = "spawn"


def build() -> dict[str, Environment]:
    return {task_id: Lab(task_id) for task_id in "ab"}


def fail(env: Environment) -> NoReturn:
    """A set-up that cannot be done."""
    raise ValueError("no such reagent")


def build_one_that_cannot_be_set_up() -> dict[str, Environment]:
    definition = TaskDefinition("fails", "Fail.", [], lambda answer: 1.0, "anything", setup_fn=fail)
    return {**build(), "fails": Lab("fails", definition)}


def build_where_forks_run_first() -> dict[str, Environment]:
    """As on a busy machine: the worker comes to run again when its fork has done all that it does."""
    os.register_at_fork(after_in_parent=lambda: time.sleep(0.5))
    return build()


def build_mixed() -> dict[str, Environment]:
    return {"auto": Lab("auto"), "fork": ForkedLab("fork"), "spawn": SpawnedLab("spawn")}


def build_raising() -> NoReturn:
    raise ImportError("no module named chemistry")


def build_hanging() -> NoReturn:
    """Hangs in a place with a name to be found in the text of the error."""
    hang_in_the_licence_check()


def hang_in_the_licence_check() -> NoReturn:
    while True:
        time.sleep(60)


def build_dying() -> NoReturn:
    print("the simulator says goodbye", flush=True)
    os._exit(9)


def build_exiting() -> NoReturn:
    raise SystemExit("no licence")


def build_nothing() -> Any:
    return None


def build_list() -> Any:
    return [Lab("a")]


def build_with_thread() -> Mapping[str, Environment]:
    """A library that starts a thread when it is loaded: a fork would not be sound."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return build()


def build_with_open_file() -> Mapping[str, Environment]:
    """A library that keeps a file open; the file is never closed on purpose."""
    global _kept
    _kept = Path(os.environ["CORRAL_TEST_FILE"]).open("w")  # noqa: SIM115 - that is the point
    return build()


_kept: Any = None
