"""Notices an agent that goes in circles. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST = 3
"""Calls in the longest circle that is looked for."""


class Circles:
    """Watches the calls of one trial: the same calls with the same results, over and over."""

    def __init__(self, *, warn_after: int = 3, end_after: int = 6) -> None:
        self.warn_after = warn_after
        self.end_after = end_after
        self._steps: list[str] = []

    def saw(self, tool: str, arguments: Mapping[str, Any], result: str) -> int:
        """Note a call; how many times the circle that it closes has been gone round, 1 for no circle."""
        step = json.dumps([tool, arguments, result], sort_keys=True, default=str)
        self._steps = [*self._steps, step][-LONGEST * self.end_after :]
        return max(self._rounds(length) for length in range(1, LONGEST + 1))

    def _rounds(self, length: int) -> int:
        """How many times the last ``length`` steps stand at the end, one after the other."""
        rounds = 1
        last = self._steps[-length:]
        while self._steps[-length * (rounds + 1) : -length * rounds] == last:
            rounds += 1
        return rounds

    def remark(self, rounds: int) -> str:
        """What to tell the model, if anything."""
        if rounds < self.warn_after:
            return ""
        return f"(You have done exactly this {rounds} times, with the same result. Do something else, or answer.)"
