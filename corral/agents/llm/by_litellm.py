"""Models by way of litellm: every other provider, and prices.

litellm is imported late, with its price table taken from the package (else the import waits for a download), and with
its own retries off: they pass over ``Retry-After`` and stack on ours. Its calls run in a thread, so trio has them too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from corral.agents.llm import openai
from corral.agents.llm.client import ChatClient
from corral.agents.llm.messages import MalformedReply, Message, Reply, public
from corral.credentials import without_login
from corral.threads import call_blocking


def litellm() -> Any:
    """The package, imported as it should be."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm as package

    package.suppress_debug_info = True
    package.telemetry = False
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return package


class LiteLLMClient(ChatClient):
    """A ChatClient whose requests litellm makes."""

    async def _ask(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tries: int) -> Reply:
        endpoint = self.endpoint
        order: dict[str, Any] = {
            "model": endpoint.model, "messages": [public(message) for message in messages],
            "timeout": self._timeout, "max_retries": 0, "num_retries": 0, "drop_params": True,
            "api_base": endpoint.base or None, "api_key": endpoint.key, "extra_headers": self._headers or None,
            "tools": [dict(tool) for tool in tools] or None, **self._options,
        }  # fmt: skip
        order = {name: value for name, value in order.items() if value is not None}
        try:
            answer = await call_blocking(partial(_complete, order))
        except Exception as error:
            raise self._explained(error, tries) from error
        try:
            return openai.reply(answer)
        except MalformedReply as error:
            raise self._silent(self._place, str(error), tries) from None

    @property
    def _place(self) -> str:
        return without_login(self.endpoint.base) or "litellm"

    def _explained(self, error: Exception, tries: int) -> Exception:
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            return self._silent(self._place, f"{type(error).__name__}: {error}", tries)
        headers = _headers_of(error)
        return self._judged(status, headers, str(error), tries)


def _complete(order: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = litellm().completion(**order).model_dump()
    return answer


def _headers_of(error: Exception) -> dict[str, str]:
    for holder in (error, getattr(error, "response", None)):
        for name in ("litellm_response_headers", "headers"):
            if headers := getattr(holder, name, None):
                return {str(key).lower(): str(value) for key, value in dict(headers).items()}
    return {}


def cost(model: str, usage: Mapping[str, Any]) -> float:
    """What ``usage`` of a model costs in US dollars, by litellm's table; 0 for a model that is not in it."""
    try:
        parts = litellm().cost_per_token(
            model=model,
            prompt_tokens=usage.get("input_tokens", 0),
            completion_tokens=usage.get("output_tokens", 0),
            cache_read_input_tokens=usage.get("cached_input_tokens", 0),
            cache_creation_input_tokens=usage.get("cache_write_tokens", 0),
        )
    except Exception:
        return 0.0
    return float(sum(parts))
