"""When to ask an endpoint again, and when to give up. Pure: time and chance are arguments.

Guarantees
    * What the endpoint asks for (``Retry-After``) is waited out in full; asking for more than our patience is a no.
    * A request that was refused (400, 401, 402, 403, 404, 413, 422) is never repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from corral.errors import ConfigError
from corral.types import check_count, check_seconds

AGAIN = frozenset({408, 409, 425, 429})
"""HTTP statuses below 500 after which the same request may succeed."""

ITS_OWN = frozenset({401, 402, 403, *AGAIN})
"""HTTP statuses below 500 that are the endpoint's own matter (its keys, quotas and health), not the request's."""

_SPENT = ("insufficient_quota", "billing_hard_limit", "billing_not_active")
"""Codes in a 429 that mean an empty account, which no waiting fills."""


@dataclass(frozen=True)
class Backoff:
    """Further tries after a failure. The wait doubles from ``first`` seconds up to ``longest``, with jitter."""

    retries: int = 6
    first: float = 1.0
    longest: float = 60.0
    patience: float = 300.0
    """The longest ``Retry-After``, in seconds, that is waited for."""

    def __post_init__(self) -> None:
        check_count(self.retries, "retries of a Backoff", least=0)
        for name in ("first", "longest", "patience"):
            if check_seconds(getattr(self, name), f"{name} of a Backoff") is None:
                raise ConfigError(f"{name} of a Backoff must be a number of seconds, not None")

    def wait(self, failures: int, asked: float | None, chance: float) -> float | None:
        """Seconds to wait after the ``failures``-th failure, from 1; None to give up.

        ``asked``: the endpoint's own word; ``chance`` between 0 and 1 spreads the clients that failed together.
        """
        if failures > self.retries or (asked is not None and asked > self.patience):
            return None
        own = min(self.longest, self.first * 2.0 ** (failures - 1))
        if asked is not None:
            return asked + chance * min(own, 1.0)
        return own * (0.5 + chance / 2)

    def further(self, failures: int, cost: int = 1) -> int:
        """How many more tries there are after ``failures``, if each counts as ``cost`` of them when it fails."""
        return 0 if failures > self.retries else 1 + (self.retries - failures) // cost


def may_repeat(status: int, headers: Mapping[str, str], body: str) -> bool:
    """Whether a request that failed with ``status`` may succeed later."""
    if headers.get("x-should-retry") in ("true", "false"):  # sent by OpenAI and Anthropic
        return headers["x-should-retry"] == "true" and status not in (400, 401, 402, 403, 404, 413, 422)
    if status == 429 and any(code in body for code in _SPENT):
        return False
    return status in AGAIN or status >= 500


def asked_for(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that the endpoint asks to wait: ``retry-after-ms``, or ``Retry-After`` in seconds or as a date."""
    if (seconds := _number(headers.get("retry-after-ms"), 1000)) is not None:
        return seconds
    text = headers.get("retry-after")
    if (seconds := _number(text, 1)) is not None:
        return seconds
    try:
        return max(0.0, (parsedate_to_datetime(text or "") - now).total_seconds())
    except (TypeError, ValueError):
        return None


def _number(text: str | None, unit: float) -> float | None:
    try:
        value = float(text or "") / unit
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
