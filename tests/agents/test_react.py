from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.agents import ReActAgent
from corral.agents.testing import Fault, Faults, Script, ScriptedEndpoint, Turn, following, saying
from tests.support.agent_envs import only_trial, weigher
from tests.support.endpoints import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def solve(tmp_path: Path) -> Callable[..., Any]:
    """Run the one trial against an endpoint that follows a script: its record, and the endpoint."""

    async def run(script: Script, *, provider: str = "openai", faults: Faults | None = None,
                  bench: dict[str, Any] | None = None, **options: Any) -> tuple[Any, ScriptedEndpoint]:  # fmt: skip
        endpoint = ScriptedEndpoint(script, faults=faults)

        def make(context: Any) -> ReActAgent:
            return ReActAgent(f"{provider}/m", api_base=f"{url}/v1", api_key="k", **options)

        with serving(endpoint) as url:
            return await only_trial(tmp_path, make, **(bench or {})), endpoint

    return run


def _replies(trial: Any) -> list[str]:
    """What the model was told, after the prompt."""
    return [message["content"] for message in trial.messages[2:] if message["role"] == "user"]


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_it_solves_a_task_and_reports_what_the_endpoint_counted(solve: Any, provider: str) -> None:
    trial, endpoint = await solve(following(weigher), provider=provider)
    assert (trial.score, trial.agent_status) == (1.0, "success")
    assert {name: trial.token_usage[name] for name in endpoint.usage} == endpoint.usage
    assert endpoint.usage["requests"] == 4
    assert _replies(trial) == ["Observation: 11", "Observation: 7", "Observation: 24"]


async def test_the_tools_stand_in_the_prompt_and_not_in_the_request(solve: Any) -> None:
    trial, endpoint = await solve(following(weigher))
    assert "weigh: Weigh a body: its mass in grams." in trial.messages[0]["content"]
    assert "tools" not in endpoint.served[0].body


async def test_output_that_cannot_be_read_is_sent_back_with_what_is_wrong(solve: Any) -> None:
    bad = [Turn("I shall weigh a."), Turn("Action: weigh\nAction Input: the first one, please")]
    trial, _ = await solve(saying(*bad, Turn('Action: weigh\nAction Input: {"body": "a"}'), Turn("Answer: 42")))
    first, second, third = _replies(trial)
    assert first.startswith("Observation: Error: there is neither an Action nor an Answer")
    assert "Action Input: its arguments as a JSON object" in first
    assert second.startswith("Observation: Error: the Action Input is no JSON object: the first one, please")
    assert third == "Observation: 11"
    assert trial.score == 1.0


async def test_an_answer_that_was_cut_off_is_asked_for_again(solve: Any) -> None:
    trial, _ = await solve(saying(Turn("Thought: x\nAnswer: 4", was_cut=True), Turn("Answer: 42")))
    assert "Observation: Error: your reply was cut off at its token limit" in _replies(trial)[0]
    assert (trial.state["submitted_answer"], trial.score) == ("42", 1.0)


async def test_an_unknown_tool_is_named_with_the_nearest_one(solve: Any) -> None:
    trial, _ = await solve(saying(Turn("Action: wiegh\nAction Input: {}"), Turn("Action: sing"), Turn("Answer: 42")))
    near, far = _replies(trial)
    assert "there is no tool 'wiegh'; did you mean weigh?" in near
    assert "there is no tool 'sing'; the tools are weigh, story" in far


async def test_five_unreadable_replies_in_a_row_end_the_trial(solve: Any) -> None:
    trial, endpoint = await solve(saying(Turn("hm")))
    assert (trial.agent_status, trial.graded, trial.score) == ("no_answer", True, 0.0)
    assert endpoint.usage["requests"] == 5
    assert "5 replies in a row" in str(trial.error_message)


async def test_an_invented_observation_is_not_believed(solve: Any) -> None:
    invented = 'Thought: t\nAction: weigh\nAction Input: {"body": "a"}\nObservation: 99\nAnswer: 99'
    trial, _ = await solve(saying(Turn(invented), Turn("Answer: 42")))
    assert _replies(trial) == ["Observation: 11"]
    assert trial.state["submitted_answer"] == "42"


@pytest.mark.parametrize(
    "text", ['Action: submit_answer\nAction Input: {"answer": "42"}', "Action: Finish\nAction Input: {'x': 42}"]
)
async def test_an_answer_that_is_written_as_an_action_is_an_answer(solve: Any, text: str) -> None:
    trial, _ = await solve(saying(Turn(text)))
    assert trial.score == 1.0


async def test_surrender_is_an_action_where_the_benchmark_allows_it(solve: Any) -> None:
    script = saying(Turn("Thought: too hard\nAction: surrender"))
    trial, _ = await solve(script, bench={"enable_surrender": True})
    assert (trial.surrendered, trial.score) == (True, 0.0)
    trial, _ = await solve(script, max_iterations=2, bench={"session_id": "without"})
    assert (trial.surrendered, trial.agent_status) == (False, "max_iterations")


async def test_circles_end_the_trial(solve: Any) -> None:
    trial, _ = await solve(saying(Turn('Action: weigh\nAction Input: {"body": "a"}')))
    assert (trial.agent_status, len(trial.state["tool_calls"])) == ("no_answer", 6)


async def test_old_observations_make_room_where_the_context_is_full(solve: Any) -> None:
    long = Turn('Action: story\nAction Input: {"length": 400}')
    full = Fault(status=400, message="prompt is too long")
    trial, _ = await solve(saying(long, long, Turn("Answer: 42")), faults=Faults(at={2: full}))
    first, second = _replies(trial)
    assert trial.score == 1.0
    assert (first, second.startswith("Observation: once")) == ("[left out to make room]", True)
