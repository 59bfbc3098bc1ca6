"""What the agents that drive a language model themselves have in common: options, the conversation, tool calls.

The model's own failures (bad output, circles, no answer) are the agent's result; those of its endpoint are raised as
what they are (``corral.agents.llm.errors``), and the trial is tried again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from corral.agents.base import AgentRunResult, BaseAgent, Hook, check_options
from corral.agents.circles import Circles
from corral.agents.llm.backoff import Backoff
from corral.agents.llm.client import TIMEOUT, ChatClient
from corral.agents.llm.endpoints import resolve
from corral.agents.llm.errors import ContextExceeded
from corral.agents.llm.messages import Message, Reply, prompt_messages
from corral.agents.llm.throttle import throttle_of
from corral.credentials import header_value
from corral.data import to_data
from corral.errors import ConfigError
from corral.types import ToolResponse, check_count, check_seconds

MAX_ITERATIONS = 50
"""Turns of the model in one trial, where the user names no number."""

RESULT_LIMIT = 20_000
"""Characters of a tool's result that a model is shown."""

POLLING = frozenset({"poll_job"})
"""Tools that are rightly called again and again."""

SURRENDER = "surrender"
ROOM = "[left out to make room]"


class GaveUp(Exception):
    """The agent ends its trial without an answer, by its own doing."""


class ModelAgent(BaseAgent):
    """Base of agents on a language model. Give a model ``PROVIDER/NAME``, such as "openai/NAME" or "anthropic/NAME".

    Options of the endpoint: ``api_base`` (an OpenAI-compatible address, or Anthropic's protocol elsewhere),
    ``api_key``, ``timeout`` (seconds per request), ``backoff`` (a Backoff, or a number of retries), ``headers``,
    ``adaptive`` (fewer requests at once after a 429, for all trials of the run), ``prices`` (True to have litellm's
    table give ``cost_usd``, or ``{"input": ..., "output": ..., "cached_input": ...}`` in dollars per million tokens).
    Options of the model go into each request: ``temperature`` (None: the provider's own), ``max_tokens``, any other.
    """

    def __init__(
        self,
        model: str,
        *,
        max_iterations: int = MAX_ITERATIONS,
        temperature: float | None = None,
        system_prompt: str | None = None,
        hooks: Mapping[str, Hook] | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        timeout: float = TIMEOUT,
        backoff: Backoff | int | None = None,
        headers: Mapping[str, str] | None = None,
        adaptive: bool = False,
        prices: bool | Mapping[str, float] = False,
        result_limit: int = RESULT_LIMIT,
        **llm_options: Any,
    ) -> None:
        super().__init__(
            model, max_iterations=max_iterations, temperature=temperature, system_prompt=system_prompt, hooks=hooks
        )
        check_options(type(self), llm_options)
        self.endpoint = resolve(model, api_base=api_base, api_key=api_key)
        self.llm_options = {"temperature": temperature, **llm_options}
        self.timeout = check_seconds(timeout, "timeout") or TIMEOUT
        self.backoff = Backoff(retries=backoff) if isinstance(backoff, int) else backoff or Backoff()
        self.headers = {name: header_value(value, f"the header {name!r}") for name, value in (headers or {}).items()}
        self.adaptive = adaptive
        self.prices = _check_prices(prices)
        self.result_limit = check_count(result_limit, "result_limit")
        self._circles = Circles()

    # ---- the course of a trial ----

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        """Ask the model, act, and again, until it answers."""
        self._circles = Circles()
        async with self._client() as client:
            await self._open(interface, task_id)
            try:
                while True:
                    self.next_iteration()
                    reply = await self._next_turn(client)
                    answer = await self._act(reply, interface, task_id)
                    if answer is not None:
                        return answer
            except GaveUp as end:
                return AgentRunResult(None, "no_answer", str(end), dict(self.token_usage), list(self.messages))

    async def _open(self, interface: Any, task_id: str) -> None:
        """Begin the conversation."""
        raise NotImplementedError

    async def _act(self, reply: Reply, interface: Any, task_id: str) -> Any:
        """Do what the model wants; its answer when it has given one, else None."""
        raise NotImplementedError

    def _offered(self) -> Sequence[Mapping[str, Any]]:
        """The tools as the endpoint is told of them."""
        return ()

    # ---- the model ----

    def _client(self) -> ChatClient:
        kind = ChatClient
        if self.endpoint.protocol == "litellm":
            from corral.agents.llm.by_litellm import LiteLLMClient as kind  # noqa: N813
        return kind(
            self.endpoint,
            options=self.llm_options,
            timeout=self.timeout,
            patience=self.backoff,
            headers=self.headers,
            throttle=throttle_of(self.model) if self.adaptive else None,
        )

    async def _next_turn(self, client: ChatClient) -> Reply:
        """The model's next turn, its usage counted. Where the conversation got too long, old results make room."""
        while True:
            try:
                reply = await client.complete(self.messages, self._offered())
                break
            except ContextExceeded as error:
                if not self._make_room():
                    raise GaveUp("the conversation no longer fits the model's context") from error
        self.count_tokens({**reply.usage, **self._cost(reply.usage)})
        self.messages.append(reply.message)
        return reply

    def _make_room(self) -> bool:
        """Leave out the older half of the tools' results that are still there; False if there are none."""
        long = [m for m in self.messages if self._is_result(m) and m["content"] != ROOM and len(m["content"]) > 200]
        for message in long[: max(1, len(long) // 2)]:
            message["content"] = ROOM
        return bool(long)

    def _is_result(self, message: Message) -> bool:
        return bool(message["role"] == "tool")

    def _cost(self, usage: Mapping[str, Any]) -> dict[str, float]:
        if not self.prices:
            return {}
        if self.prices is True:
            from corral.agents.llm.by_litellm import cost

            return {"cost_usd": cost(self.model, usage)}
        cached = usage.get("cached_input_tokens", 0)
        amounts = {
            "input": usage.get("input_tokens", 0) - cached, "cached_input": cached,
            "output": usage.get("output_tokens", 0),
        }  # fmt: skip
        prices = {"cached_input": self.prices["input"], **self.prices}
        return {"cost_usd": sum(prices[name] * amount for name, amount in amounts.items()) / 1e6}

    # ---- tools ----

    async def _call_tool(self, interface: Any, task_id: str, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """Call a tool; what the model is to read of it, and whether the call succeeded."""
        response: ToolResponse = await interface.execute_tool(task_id, name, arguments)
        text = self._readable(response.result) if response.success else f"Error: {response.error or 'the call failed'}"
        rounds = 1 if name in POLLING else self._circles.saw(name, arguments, text)
        if rounds >= self._circles.end_after:
            raise GaveUp(f"the agent went in circles: {name} again, {rounds} times with the same result")
        remark = self._circles.remark(rounds)
        return (f"{text}\n{remark}" if remark else text), response.success

    def _readable(self, result: Any) -> str:
        data = to_data(result, "a tool", arrays="list")
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        if len(text) <= self.result_limit:
            return text
        half = self.result_limit // 2
        return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"

    async def _task_messages(self, interface: Any, task_id: str) -> list[Message]:
        return prompt_messages(await interface.get_task_prompt(task_id))

    def _system(self, own: str) -> Message:
        """The system message: the user's, if there is one, and what the agent itself must say."""
        return {"role": "system", "content": "\n\n".join(filter(None, [self.system_prompt, own]))}


def _check_prices(prices: Any) -> bool | dict[str, float]:
    if isinstance(prices, bool):
        return prices
    if not isinstance(prices, Mapping) or not {"input", "output"} <= set(prices) <= {"input", "output", "cached_input"}:
        raise ConfigError(f"prices must be True, or dollars per million tokens of input and output, not {prices!r}")
    return {name: float(price) for name, price in prices.items()}
