"""ScriptedAgent: policies, their lab, what they leave in the transcript."""

from __future__ import annotations

import time
from typing import Any

import pytest

from corral import LocalRouter
from corral.agents import AgentRunResult, ScriptedAgent, ToolFailed
from corral.errors import ConfigError
from corral.routers import AsyncLocalRouter
from corral.threads import call_blocking
from tests.support.benches import benches

pytestmark = pytest.mark.anyio


def double_twice(lab: Any, prompt: str) -> Any:
    assert "python" in lab.tools
    assert prompt == "task a"
    first = lab.call("python", code="result = 2")
    return lab.call("python", code=f"result = {first} * 2")


async def double_twice_later(lab: Any, prompt: str) -> Any:
    first = await lab.call("python", code="result = 2")
    return await lab.call("python", code=f"result = {first} * 2")


async def follow(policy: Any, **options: Any) -> tuple[ScriptedAgent, AgentRunResult]:
    agent = ScriptedAgent(policy, **options)
    with LocalRouter(benches(a="thread")) as router:
        if agent.runs_on_loop:

            async def run() -> AgentRunResult:
                service = router._service
                return await agent.arun_agent(AsyncLocalRouter(service), "a")

            result = await call_blocking(router._loop.call, run)
        else:
            result = await call_blocking(agent.run_agent, router, "a")
    return agent, result


@pytest.mark.parametrize("policy", [double_twice, double_twice_later])
async def test_a_policy_s_answer_and_transcript(policy: Any) -> None:
    agent, result = await follow(policy)
    assert (result.answer, result.status) == (4, "success")
    assert agent.model == f"scripted/{policy.__name__}"
    assert result.messages == [
        {"role": "user", "content": "task a"},
        {"role": "assistant", "tool": "python", "arguments": {"code": "result = 2"}},
        {"role": "tool", "tool": "python", "result": 2},
        {"role": "assistant", "tool": "python", "arguments": {"code": "result = 2 * 2"}},
        {"role": "tool", "tool": "python", "result": 4},
        {"role": "assistant", "content": 4},
    ]


@pytest.mark.parametrize("policy", [double_twice, double_twice_later])
async def test_thinking_takes_its_time_at_each_step(policy: Any) -> None:
    began = time.monotonic()
    await follow(policy, think_time=0.1)
    assert time.monotonic() - began >= 0.3


async def test_a_call_that_failed() -> None:
    def policy(lab: Any, prompt: str) -> Any:
        with pytest.raises(ToolFailed, match="ZeroDivisionError: division by zero") as failure:
            lab.call("python", code="1 / 0")
        return failure.value.tool

    _, result = await follow(policy)
    assert result.answer == "python"
    assert result.messages[2] == {"role": "tool", "tool": "python", "error": "ZeroDivisionError: division by zero"}


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("nothing",), {}, "policy must be a function"),
        ((print,), {"think_time": -1}, "think_time must be a number of seconds from 0 on"),
        ((print,), {"think_time": float("nan")}, "think_time"),
        ((print,), {"think_time": True}, "think_time"),
    ],
)
def test_refused(arguments: tuple[Any, ...], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ScriptedAgent(*arguments, **options)
