"""An agent that follows a policy function: for benchmarks without a model, baselines and tests."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from corral.agents.base import BaseAgent
from corral.call_history import Room
from corral.errors import ConfigError
from corral.types import ToolCall, ToolResponse


class ToolFailed(Exception):
    """A tool call failed; the text is the environment's."""

    def __init__(self, tool: str, error: str) -> None:
        super().__init__(error)
        self.tool = tool


class Lab:
    """What a policy has in hand: the names of the tools, and ``call``."""

    def __init__(self, interface: Any, task_id: str, tools: list[str], think_time: float, log: list[Any]) -> None:
        self.tools = tools
        self._interface = interface
        self._task_id = task_id
        self._think_time = think_time
        self._log = log
        self._room = Room()

    def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool and return what it gives. ToolFailed if the call failed."""
        if self._think_time:
            time.sleep(self._think_time)
        return self._taken(tool, arguments, self._interface.execute_tool(self._task_id, tool, arguments))

    def _taken(self, tool: str, arguments: dict[str, Any], response: ToolResponse) -> Any:
        error = None if response.success else response.error or "the call failed"
        shown = self._room.fit(ToolCall(tool, arguments, response.success, response.result, error))
        self._log.append({"role": "assistant", "tool": tool, "arguments": shown.arguments})
        if error is not None:
            self._log.append({"role": "tool", "tool": tool, "error": shown.error})
            raise ToolFailed(tool, error)
        self._log.append({"role": "tool", "tool": tool, "result": shown.result})
        return response.result


class AsyncLab(Lab):
    """The same for an asynchronous policy."""

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool and return what it gives. ToolFailed if the call failed."""
        if self._think_time:
            await anyio.sleep(self._think_time)
        return self._taken(tool, arguments, await self._interface.execute_tool(self._task_id, tool, arguments))


def check_think_time(value: object) -> float:
    """Return ``value`` if it is a number of seconds from 0 on; raise ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"think_time must be a number of seconds from 0 on, not {value!r}")
    return float(value)


Policy = Callable[[Any, Any], Any] | Callable[[Any, Any], Awaitable[Any]]


class ScriptedAgent(BaseAgent):
    """Follows ``policy(lab, prompt)``, a plain or async function that calls tools by ``lab.call`` and gives the answer.

    ``think_time`` seconds are waited before each step, as a model would take them.
    """

    def __init__(self, policy: Policy, *, model: str | None = None, think_time: float = 0.0, **options: Any) -> None:
        if not callable(policy):
            raise ConfigError(f"policy must be a function of (lab, prompt), not {policy!r}")
        super().__init__(model or f"scripted/{getattr(policy, '__name__', 'policy')}", **options)
        self.policy = policy
        self.think_time = check_think_time(think_time)

    @property
    def runs_on_loop(self) -> bool:
        """Whether the policy is an async function."""
        return inspect.iscoroutinefunction(self.policy)

    def run(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        """Follow a plain policy."""
        prompt = interface.get_task_prompt(task_id)
        tools = _names(interface.get_available_tools_for_task(task_id))
        self.messages.append({"role": "user", "content": prompt})
        answer = self.policy(Lab(interface, task_id, tools, self.think_time, self.messages), prompt)
        return self._answered(answer, time.sleep)

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        """Follow an async policy."""
        prompt = await interface.get_task_prompt(task_id)
        tools = _names(await interface.get_available_tools_for_task(task_id))
        self.messages.append({"role": "user", "content": prompt})
        answer = await self.policy(AsyncLab(interface, task_id, tools, self.think_time, self.messages), prompt)
        if self.think_time:
            await anyio.sleep(self.think_time)
        return self._answered(answer, lambda _: None)

    def _answered(self, answer: Any, think: Callable[[float], None]) -> Any:
        if self.think_time:
            think(self.think_time)
        self.messages.append({"role": "assistant", "content": answer})
        return answer


def _names(tools: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in tools["tools"]]
