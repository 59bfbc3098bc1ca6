"""A scripted endpoint's count of tokens: four characters make one. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from corral.agents.testing.scripts import Turn


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer: ``fresh`` ones read anew, ``cached`` ones known from the turn before, ``output`` ones."""

    fresh: int
    cached: int
    output: int

    def counted(self) -> dict[str, int]:
        """As an agent reports them."""
        total = self.fresh + self.cached
        return {
            "requests": 1, "input_tokens": total, "output_tokens": self.output, "total_tokens": total + self.output,
            "cached_input_tokens": self.cached,
        }  # fmt: skip


def count(value: Any) -> int:
    """Tokens of anything."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return len(text) // 4 + 1


def usage_of(messages: Sequence[Any], turns: int, said: Turn) -> Usage:
    """What answering cost; after the first turn all but the last message comes from the cache."""
    known = sum(count(message) for message in messages[:-1]) if turns else 0
    whole = sum(count(message) for message in messages)
    calls = sum(count([call.tool, call.arguments]) for call in said.calls)
    output = count(said.text) + calls + count(said.answer or "")
    return Usage(whole - known, known, output)
