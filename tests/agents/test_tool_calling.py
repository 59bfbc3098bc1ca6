from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corral.agents import ToolCallingAgent
from corral.agents.llm.backoff import Backoff
from corral.agents.testing import Call, Conversation, Fault, Faults, Script, ScriptedEndpoint, Turn, following, saying
from corral.errors import ConfigError
from tests.support.agent_envs import only_trial, weigher, weigher_at_once
from tests.support.endpoints import serving

pytestmark = pytest.mark.anyio

QUICK = Backoff(retries=2, first=0.01)


@pytest.fixture
def solve(tmp_path: Path) -> Callable[..., Any]:
    """Run the one trial against an endpoint that follows a script: its record, and the endpoint."""

    async def run(script: Script, *, provider: str = "openai", faults: Faults | None = None,
                  bench: dict[str, Any] | None = None, **options: Any) -> tuple[Any, ScriptedEndpoint]:  # fmt: skip
        endpoint = ScriptedEndpoint(script, faults=faults)

        def make(context: Any) -> ToolCallingAgent:
            return ToolCallingAgent(
                f"{provider}/m", **{"api_base": f"{url}/v1", "api_key": "k", "backoff": QUICK, **options}
            )

        with serving(endpoint) as url:
            return await only_trial(tmp_path, make, **(bench or {})), endpoint

    return run


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("policy", [weigher, weigher_at_once])
async def test_it_solves_a_task_and_reports_what_the_endpoint_counted(solve: Any, provider: str, policy: Any) -> None:
    trial, endpoint = await solve(following(policy), provider=provider)
    assert (trial.score, trial.agent_status, trial.state["submitted_answer"]) == (1.0, "success", "42")
    assert {name: trial.token_usage[name] for name in endpoint.usage} == endpoint.usage
    assert endpoint.usage["cached_input_tokens"] > 0
    assert endpoint.usage["requests"] == (4 if policy is weigher else 2)


async def test_calls_of_one_turn_run_in_their_order_and_their_results_carry_their_ids(solve: Any) -> None:
    trial, _ = await solve(following(weigher_at_once))
    assert [call["arguments"]["body"] for call in trial.state["tool_calls"]] == ["a", "b", "c"]
    turn = next(message for message in trial.messages if message.get("tool_calls"))
    results = [message for message in trial.messages if message["role"] == "tool"]
    asked = [call["id"] for call in turn["tool_calls"]]
    assert [(result["tool_call_id"], result["content"]) for result in results[:3]] == list(
        zip(asked, ["11", "7", "24"], strict=True)
    )


async def test_the_transcript_is_kept(solve: Any) -> None:
    trial, _ = await solve(following(weigher), system_prompt="Be quick.")
    assert [message["role"] for message in trial.messages[:4]] == ["system", "user", "assistant", "tool"]
    assert trial.messages[0]["content"].startswith("Be quick.")


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_failed_calls_go_back_to_the_model(solve: Any, provider: str) -> None:
    """A tool that raises, one that does not exist, and arguments that are no JSON: the trial goes on."""
    calls = (Call("weigh", {"body": "x"}), Call("fly"), Call("weigh", raw='{"body": '))
    trial, endpoint = await solve(saying(Turn(calls=calls), "42"), provider=provider)
    contents = [message["content"] for message in trial.messages if message["role"] == "tool"]
    assert contents[0] == "Error: KeyError: 'x'"
    assert "fly" in contents[1]
    assert "JSON" in contents[2]
    assert trial.score == 1.0
    assert [served.status for served in endpoint.served] == [200, 200]


async def test_an_answer_among_other_calls_ends_the_trial(solve: Any) -> None:
    turn = Turn(calls=(Call("submit_answer", {"answer": "42"}), Call("weigh", {"body": "a"})))
    trial, _ = await solve(saying(turn))
    assert trial.score == 1.0
    assert trial.state["tool_calls"] == []
    assert trial.messages[-1]["content"] == "not called: the answer was given before"


async def test_an_answer_that_is_data_is_handed_in_as_json(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("submit_answer", {"answer": {"burns": [1]}}),))))
    assert trial.state["submitted_answer"] == '{"burns": [1]}'


async def test_a_submission_without_an_answer_is_asked_for_again(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("submit_answer"),)), "42"))
    assert trial.score == 1.0


async def test_text_that_is_marked_as_the_answer_is_the_answer(solve: Any) -> None:
    trial, endpoint = await solve(saying(Turn("I think so.\nAnswer: 42")))
    assert (trial.score, endpoint.usage["requests"]) == (1.0, 1)


async def test_plain_text_is_asked_about_once_and_then_taken(solve: Any) -> None:
    trial, endpoint = await solve(saying(Turn("42")))
    assert (trial.score, endpoint.usage["requests"]) == (1.0, 2)
    assert "call submit_answer" in trial.messages[3]["content"]


async def test_without_the_submit_tool_plain_text_is_the_answer(solve: Any) -> None:
    trial, endpoint = await solve(saying(Turn("42")), submit_tool=False)
    assert (trial.score, endpoint.usage["requests"]) == (1.0, 1)
    assert endpoint.served[0].conversation is not None
    assert "submit_answer" not in endpoint.served[0].conversation.tools


async def test_a_model_that_says_nothing_is_graded_with_0(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("submit_answer", {"answer": ""}),))))
    assert (trial.graded, trial.failure, trial.score, trial.state["submitted_answer"]) == (True, None, 0.0, "")


async def test_surrender_is_offered_where_the_benchmark_allows_it(solve: Any) -> None:
    script = saying(Turn(calls=(Call("surrender", {"reason": "too hard"}),)))
    trial, endpoint = await solve(script, bench={"enable_surrender": True})
    assert (trial.surrendered, trial.agent_status, trial.score) == (True, "surrender", 0.0)
    trial, endpoint = await solve(script, max_iterations=1, bench={"session_id": "without"})
    assert not trial.surrendered
    assert "surrender" not in endpoint.served[0].conversation.tools


async def test_the_budget_of_iterations(solve: Any) -> None:
    def endless(conversation: Conversation) -> Turn:
        return Turn(calls=(Call("story", {"length": conversation.turns}),))

    trial, endpoint = await solve(endless, max_iterations=4)
    assert (trial.agent_status, trial.graded, endpoint.usage["requests"]) == ("max_iterations", True, 4)


async def test_going_in_circles_is_told_and_then_ends_the_trial(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("weigh", {"body": "a"}),))))
    contents = [message["content"] for message in trial.messages if message["role"] == "tool"]
    assert contents[1] == "11"
    assert "exactly this 3 times" in contents[2]
    assert (trial.agent_status, trial.graded, len(trial.state["tool_calls"])) == ("no_answer", True, 6)
    assert "circles: weigh" in str(trial.error_message)


async def test_old_results_make_room_where_the_context_is_full(solve: Any) -> None:
    long = Turn(calls=(Call("story", {"length": 400}),))
    full = Fault(status=400, message="maximum context length is 8192 tokens")
    trial, endpoint = await solve(saying(long, long, "42"), faults=Faults(at={2: full}))
    assert trial.score == 1.0
    contents = [message["content"] for message in trial.messages if message["role"] == "tool"]
    assert contents[0] == "[left out to make room]"
    assert contents[1].startswith("once")
    assert [served.status for served in endpoint.served] == [200, 200, 400, 200]


async def test_a_context_that_cannot_be_made_to_fit_is_the_agents_own_end(solve: Any) -> None:
    full = Fault(status=400, message="maximum context length is 8 tokens")
    trial, _ = await solve(saying("42"), faults=Faults(always=full))
    assert (trial.agent_status, trial.graded, trial.failure) == ("no_answer", True, None)


async def test_a_long_result_is_shown_by_its_ends(solve: Any) -> None:
    trial, _ = await solve(saying(Turn(calls=(Call("story", {"length": 400}),)), "42"), result_limit=100)
    shown = next(message["content"] for message in trial.messages if message["role"] == "tool")
    assert "[... 1900 characters left out ...]" in shown
    assert len(shown) < 150


async def test_hooks_hear_of_every_iteration(solve: Any) -> None:
    heard: list[str] = []
    names = ("before_task", "before_iteration", "after_iteration", "after_task")
    hooks = {name: (lambda agent, name=name, **facts: heard.append(name)) for name in names}
    await solve(following(weigher_at_once), hooks=hooks)
    assert heard == ["before_task", "before_iteration", "after_iteration", "before_iteration", "after_task"]


async def test_prices_of_ones_own(solve: Any) -> None:
    trial, endpoint = await solve(following(weigher), prices={"input": 2.0, "output": 10.0, "cached_input": 0.5})
    usage = endpoint.usage
    fresh = usage["input_tokens"] - usage["cached_input_tokens"]
    cost = (2.0 * fresh + 0.5 * usage["cached_input_tokens"] + 10.0 * usage["output_tokens"]) / 1e6
    assert trial.token_usage["cost_usd"] == pytest.approx(cost)


@pytest.mark.parametrize(
    "options",
    [{"prices": {"input": 1}}, {"timeout": 0}, {"backoff": -1}, {"max_iterations": 0}, {"result_limit": 0},
     {"api_base": "nowhere"}, {"hooks": {"sometime": print}}],
)  # fmt: skip
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ToolCallingAgent("openai/m", api_key="k", **options)
