"""How a scripted endpoint fails, on order. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["status", "hang", "cut", "garbage"]


@dataclass(frozen=True)
class Fault:
    """One failure: an HTTP ``status``, no answer at all ("hang"), one that breaks off ("cut"), or no JSON ("garbage").

    ``retry_after`` seconds go with a status.
    """

    kind: Kind = "status"
    status: int = 500
    retry_after: float | None = None
    message: str = "injected by the scripted endpoint"
    code: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with it."""
        return {} if self.retry_after is None else {"retry-after": f"{self.retry_after:g}"}


@dataclass
class Faults:
    """Which requests fail: those named by number, from 0, and a share ``rate`` of the others, drawn from ``seed``."""

    at: Mapping[int, Fault] = field(default_factory=dict)
    rate: float = 0.0
    kinds: Sequence[Fault] = (Fault(),)
    seed: int = 0
    always: Fault | None = None
    """What all other requests get."""

    def of(self, number: int) -> Fault | None:
        """What becomes of a request; None to answer it."""
        if number in self.at:
            return self.at[number]
        chance = random.Random(f"{self.seed}/{number}")
        if chance.random() < self.rate:
            return chance.choice(self.kinds)
        return self.always
