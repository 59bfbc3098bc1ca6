"""The real Claude Code program against the scripted endpoint, over real MCP. Runs where ``corral[claude]`` is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral import AsyncCorralRouter
from corral.agents import ClaudeCodeAgent
from corral.agents.claude_program import find_program
from corral.agents.loopback import serving
from corral.agents.testing import Call, Conversation, Fault, Faults, Script, ScriptedEndpoint, Turn, following, saying
from corral.errors import ConfigError
from corral.scratch import prefix_of, scratch_folder
from tests.support.agent_envs import only_trial, weigher, weigher_at_once
from tests.support.raw_http import free_port
from tests.support.serving import serving as server

installed = pytest.mark.skipif(
    find_spec("claude_agent_sdk") is None or find_spec("mcp") is None, reason="corral[claude] is not installed"
)
pytestmark = [pytest.mark.anyio, pytest.mark.slow, installed]


@pytest.fixture
def solve(tmp_path: Path) -> Callable[..., Any]:
    """Run the one trial against an endpoint that follows a script: its record, and the endpoint."""

    async def run(script: Script, *, faults: Faults | None = None, bench: dict[str, Any] | None = None,
                  **options: Any) -> tuple[Any, ScriptedEndpoint]:  # fmt: skip
        endpoint = ScriptedEndpoint(script, faults=faults, key="k")

        def make(context: Any) -> ClaudeCodeAgent:
            return ClaudeCodeAgent(
                "anthropic/m", **{"api_base": url, "api_key": "k", "retries": 1, "timeout": 20, **options}
            )

        with endpoint.serving() as url:
            return await only_trial(tmp_path, make, **(bench or {})), endpoint

    return run


@pytest.mark.parametrize("policy", [weigher, weigher_at_once])
async def test_it_solves_a_task_and_reports_what_the_endpoint_counted(solve: Any, policy: Any) -> None:
    trial, endpoint = await solve(following(policy))
    assert (trial.score, trial.agent_status, trial.state["submitted_answer"]) == (1.0, "success", "42")
    assert {name: trial.token_usage[name] for name in endpoint.usage} == endpoint.usage
    assert [call["tool"] for call in trial.state["tool_calls"]] == ["weigh"] * 3
    assert [message["content"] for message in trial.messages if message["role"] == "tool"] == ["11", "7", "24"]


async def test_it_has_the_trials_tools_alone_and_nothing_of_the_surroundings(
    solve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ANTHROPIC_MODEL", "another")
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    trial, endpoint = await solve(saying("42"), system_prompt="Be quick.")
    (served,) = endpoint.served
    assert trial.score == 1.0
    assert served.conversation.tools == ("mcp__corral__story", "mcp__corral__weigh")
    assert served.conversation.model == "m"
    assert "Be quick." in served.conversation.system


async def test_a_tool_that_raises_is_told_to_the_model(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("weigh", {"body": "x"}),)), "42"))
    assert trial.score == 1.0
    assert next(message for message in trial.messages if message["role"] == "tool")["content"] == "KeyError: 'x'"


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault(status=500), "infrastructure", "HTTP 500"),
        (Fault(status=429), "infrastructure", "HTTP 429"),
        (Fault(status=402), "infrastructure", "HTTP 402"),
        (Fault(status=400), "agent", "HTTP 400"),
        (Fault("cut"), "infrastructure", "no answer"),
        (Fault("garbage"), "infrastructure", "no answer"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else None,
)
async def test_a_failing_endpoint_is_recorded_as_what_it_is(solve: Any, fault: Fault, kind: str, words: str) -> None:
    trial, _ = await solve(saying("42"), faults=Faults(always=fault))
    assert (trial.failure, trial.graded, words in trial.error_message) == (kind, False, True)


async def test_a_failure_in_the_middle_keeps_what_was_said(solve: Any) -> None:
    trial, endpoint = await solve(following(weigher), faults=Faults(at={2: Fault(status=402)}))
    assert (trial.failure, trial.token_usage["requests"]) == ("infrastructure", 2)
    assert {name: trial.token_usage[name] for name in endpoint.usage} == endpoint.usage
    assert sum(message["role"] == "tool" for message in trial.messages) == 2


async def test_a_wrong_key_and_a_closed_port(solve: Any) -> None:
    trial, _ = await solve(saying("42"), api_key="wrong")
    assert (trial.failure, "HTTP 401" in trial.error_message) == ("infrastructure", True)
    trial, _ = await solve(saying("42"), api_base=f"http://127.0.0.1:{free_port()}", bench={"session_id": "closed"})
    assert (trial.failure, "no answer" in trial.error_message) == ("infrastructure", True)


async def test_an_endpoint_that_hangs_is_bounded_by_the_programs_own_limit(solve: Any) -> None:
    trial, _ = await solve(saying("42"), faults=Faults(always=Fault("hang")), timeout=1, retries=0)
    assert (trial.failure, "timed out" in trial.error_message) == ("infrastructure", True)


async def test_a_trial_limit_ends_the_program_at_once(solve: Any) -> None:
    trial, _ = await solve(saying("42"), faults=Faults(always=Fault("hang")), bench={"trial_timeout": 2.0})
    assert (trial.failure, trial.duration < 5) == ("trial_timeout", True)
    assert not _programs()


async def test_the_budget_of_iterations(solve: Any) -> None:
    def endless(conversation: Conversation) -> Turn:
        return Turn(calls=(Call("story", {"length": conversation.turns}),))

    trial, endpoint = await solve(endless, max_iterations=3)
    assert (trial.agent_status, trial.graded, trial.token_usage["requests"]) == ("max_iterations", True, 3)
    assert endpoint.usage["requests"] == 3


async def test_surrender(solve: Any) -> None:
    trial, _ = await solve(saying("I SURRENDER"), bench={"enable_surrender": True})
    assert (trial.surrendered, trial.score) == (True, 0.0)


class Elsewhere:
    """A router of a trial whose tools are at an address that somebody else serves."""

    def __init__(self, mcp_url: str) -> None:
        self.mcp_url = mcp_url

    async def get_task_prompt(self, task_id: str) -> str:
        return "Weigh a, b and c."


async def test_an_mcp_address_that_does_not_answer_is_the_infrastructures(tmp_path: Path) -> None:
    from corral.errors import InfrastructureError

    with ScriptedEndpoint(saying("42")).serving() as url:
        agent = ClaudeCodeAgent("anthropic/m", api_base=url, api_key="k")
        with pytest.raises(InfrastructureError, match="its MCP connection is 'failed'"):
            await agent.arun_agent(Elsewhere(f"http://127.0.0.1:{free_port()}/mcp"), "t")


async def test_an_mcp_address_that_somebody_else_serves() -> None:
    from corral.agents.mcp_endpoint import tool_app
    from corral.types import ToolResponse

    async def call(name: str, arguments: dict[str, Any]) -> ToolResponse:
        return ToolResponse(True, {"a": 11, "b": 7, "c": 24}[arguments["body"]])

    parameters = {"type": "object", "properties": {"body": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weigh", "parameters": parameters}}]
    endpoint = ScriptedEndpoint(following(weigher))
    with endpoint.serving() as url, serving(tool_app(tools, call, "/mcp")) as tools_url:
        agent = ClaudeCodeAgent("anthropic/m", api_base=url, api_key="k")
        result = await agent.arun_agent(Elsewhere(f"{tools_url}/mcp"), "t")
    assert (result.status, result.answer) == ("success", "42")


async def test_the_tools_of_a_trial_on_an_environment_server(tmp_path: Path) -> None:
    """The trial lives in another process; the program reaches its tools at the server's own MCP address."""

    def policy(lab: Any, prompt: str) -> str:  # a structured result is an object, as MCP wants it
        return str(sum(lab.call("weigh", body=body)["result"] for body in "abc"))

    token = "a-token-of-the-server"
    endpoint = ScriptedEndpoint(following(policy))
    environment = {**os.environ, "CORRAL_TOKEN": token}
    with endpoint.serving() as url, server("tests.support.agent_envs:build", env=environment) as served:
        async with AsyncCorralRouter(served.url, token=token) as router:
            trial = await only_trial(
                tmp_path, lambda _: ClaudeCodeAgent("anthropic/m", api_base=url, api_key="k"), interface=router
            )
    assert (trial.score, trial.error_message) == (1.0, None)
    assert [call["tool"] for call in trial.state["tool_calls"]] == ["weigh"] * 3


RUN = """
import anyio, sys
from corral import AsyncCorralRouter
from corral.agents import ClaudeCodeAgent
from corral.agents.testing import Fault, Faults, ScriptedEndpoint, saying
from tests.agents.test_claude_code import Elsewhere
from tests.support.agent_envs import build
from corral import CorralRunner
if __name__ == "__main__":
    with ScriptedEndpoint(saying("42"), faults=Faults(always=Fault("hang"))).serving() as url:
        make = lambda context: ClaudeCodeAgent("anthropic/m", api_base=url, api_key="k")
        CorralRunner(build, agent_factory=make, checkpoint_dir=sys.argv[1]).bench(progress=False)
"""


def _programs() -> list[psutil.Process]:
    program = find_program()
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if program in command and os.environ["CORRAL_TEST_RUN"] == _mark(process):
            found.append(process)
    return found


def _mark(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("CORRAL_TEST_RUN")
    except psutil.Error:
        return None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_program_ends_with_a_run_that_is_killed(
    anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    left = tmp_path / "left"  # where no other run of these tests clears away what it finds
    left.mkdir()
    monkeypatch.setenv("TMPDIR", str(left))
    monkeypatch.setattr(tempfile, "tempdir", str(left))
    (tmp_path / "run.py").write_text(RUN)
    run = subprocess.Popen(
        [sys.executable, str(tmp_path / "run.py"), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(root)}
    )
    while not (programs := _programs()):
        assert run.poll() is None
    run.kill()
    run.wait()
    _, alive = psutil.wait_procs(programs, timeout=5)
    assert not alive
    assert list(left.glob(f"{prefix_of(run.pid)}*"))  # nobody was there to remove them, and the next one does
    with scratch_folder():
        assert not list(left.glob(f"{prefix_of(run.pid)}*"))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="needs a key: set ANTHROPIC_API_KEY"):
        ClaudeCodeAgent()
    with pytest.raises(ConfigError, match="no Claude Code at '/nowhere'"):
        ClaudeCodeAgent(api_key="k", program="/nowhere")
    assert ClaudeCodeAgent(api_key="k").model == "claude-code"
