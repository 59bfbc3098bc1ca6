"""CHILD SIDE: environments for the tests of the environment server. ``python`` runs a test's own lines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from corral import Environment, tool
from tests.support.benches import Bench, Dice
from tests.support.chains import build_diamond

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Camera(Bench):
    """Has an image, a job in the background, and numbers that JSON does not know."""

    @tool
    def look(self) -> Any:
        """Take a picture."""
        return ["seen:", {"type": "image", "data": PIXEL, "mimeType": "image/png"}]

    @tool(background=True)
    def develop(self, seconds: float = 0.0) -> str:
        """Develop the film."""
        time.sleep(seconds)
        return "developed"

    @tool
    def measure(self) -> Any:
        """Measure what cannot be measured."""
        return {"nothing": float("nan"), "much": float("inf"), "odd": "\ud800"}

    def configure_additional_apps(self) -> str:
        return "nothing to set up"


class OwnEnding(Bench):
    """Has a tool with the name of one that ends a trial over MCP."""

    @tool
    def submit_answer(self, x: int) -> int:
        """Hand in one of several parts."""
        return x + 1


def build() -> dict[str, Environment]:
    """One task of each kind."""
    return {
        "thread": Camera("thread"),
        "process": Camera("process", "process"),
        "serial": Camera("serial", "serial"),
        "dir/with space": Bench("dir/with space"),
    }


def threads() -> dict[str, Environment]:
    return {"thread": Camera("thread"), "other": Bench("other")}


def ending() -> dict[str, Environment]:
    return {"ending": OwnEnding("ending")}


def processes() -> dict[str, Environment]:
    return {name: Camera(name, "process") for name in ("a", "b", "c", "d")}


def dice() -> dict[str, Environment]:
    return {"thread": Dice("thread"), "process": Dice("process", "process"), "serial": Dice("serial", "serial")}


def loud() -> dict[str, Environment]:
    """Prints wherever it can."""
    print("a hundred lines\n" * 100, flush=True)
    return {"loud": Loud("loud", "process")}


class Loud(Bench):
    def configure_additional_apps(self) -> str:
        print("configuring\n" * 100, flush=True)
        return "done"

    @tool
    def shout(self) -> str:
        """Print a lot."""
        print("aah\n" * 100, flush=True)
        return "shouted"


def diamond() -> dict[str, Environment]:
    return build_diamond("process")()


def broken() -> dict[str, Environment]:
    raise ImportError("there is no licence for the simulator")


class Examiner(Bench):
    """Scores slowly: until the file that the answer names exists."""

    def score(self) -> float:
        answer = self.state.submitted_answer
        Path(answer["began"]).touch()
        while not Path(answer["go"]).exists():
            time.sleep(0.01)
        return float(answer["score"])


def examiner() -> dict[str, Environment]:
    return {"exam": Examiner("exam", "process")}


def hasty() -> dict[str, Environment]:
    """In a server whose patience with silent connections is short."""
    from corral import exchange, serving

    serving.HEAD_TIME = exchange.BODY_SILENCE = 0.2
    return threads()
