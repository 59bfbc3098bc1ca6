"""Each agent solves a wetlab task through real HTTP, its tools on a worker pool."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corral.agents import ClaudeCodeAgent, ReActAgent, ToolCallingAgent
from corral.agents.testing import ScriptedEndpoint, following
from corral.envs.wetlab import build_envs
from corral.envs.wetlab.agents import expert
from tests.support.agent_envs import run

pytest.importorskip("phreeqc")
pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WITHOUT_CLAUDE = find_spec("claude_agent_sdk") is None or find_spec("mcp") is None


@pytest.mark.parametrize(
    "agent",
    [ToolCallingAgent, ReActAgent,
     pytest.param(ClaudeCodeAgent, marks=pytest.mark.skipif(WITHOUT_CLAUDE, reason="no corral[claude]"))],
)  # fmt: skip
async def test_a_task_is_solved_and_the_usage_is_what_the_endpoint_counted(agent: Any, tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(following(expert))
    with endpoint.serving() as url:
        result = await run(
            tmp_path,
            lambda _: agent("anthropic/m", api_base=f"{url}/v1", api_key="k", max_iterations=300),
            interface=build_envs, task_ids=["l1-cation-1"], worker_pool=1,
        )  # fmt: skip
    assert result.average_score() == 1.0
    assert {name: result.total_token_usage()[name] for name in endpoint.usage} == endpoint.usage
    assert endpoint.usage["requests"] > 50
