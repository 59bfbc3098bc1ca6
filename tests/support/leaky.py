"""CHILD SIDE: an environment that leaves things behind, and the state that it leaves them in."""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

import numpy as np

from corral import Environment, tool


class Engine:
    """As a simulation library would have one."""

    def __init__(self) -> None:
        self.units = "mol"


table: dict[str, int] = {"one": 1}
engine = Engine()
dice = random.Random(0)
numbers = np.random.default_rng(0)
kept: list[Any] = []


class Leaky(Environment):
    concurrency = "process"
    cache: dict[str, int] = {}  # noqa: RUF012 - that is the point

    def get_task_prompt(self) -> str:
        return self.task_id

    @tool
    def leave(self, what: str) -> None:
        """Leave something behind."""
        match what:
            case "entry":
                table["two"] = 2
            case "same size":
                table["one"] = 7
            case "attribute":
                engine.units = "g"
            case "class":
                self.cache["x"] = 1
            case "dice":
                dice.random()
            case "numbers":
                numbers.random()
            case "variable":
                os.environ["CORRAL_TEST_LEFT"] = "x"
            case "directory":
                os.chdir("/")
            case "handler":
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
            case "thread":
                threading.Thread(target=threading.Event().wait, name="leaky helper", daemon=True).start()
            case "descriptor":
                os.open(os.devnull, os.O_RDONLY)
            case "drawn":
                random.random()
                np.random.rand()

    @tool
    def draw(self) -> list[float]:
        """What the global generators give first."""
        return [random.random(), float(np.random.rand())]

    @tool
    def look(self) -> list[Any]:
        """What a trial finds."""
        return [os.environ.get("CORRAL_TEST_LEFT"), os.getcwd() == str(self.current_work_dir), sorted(table)]

    def score(self) -> float:
        return 1.0


def build() -> dict[str, Environment]:
    return {"a": Leaky("a")}
