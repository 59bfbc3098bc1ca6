"""The agent's contract: what a run gives, for agents in threads and on the loop."""

from __future__ import annotations

from typing import Any

import pytest

from corral.agents import AgentRunResult, BaseAgent
from corral.errors import ConfigError

pytestmark = pytest.mark.anyio

KINDS = pytest.mark.parametrize("on_loop", [False, True], ids=["run", "arun"])


def agent(body: Any, on_loop: bool, **options: Any) -> BaseAgent:
    class Sync(BaseAgent):
        def run(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
            return body(self, interface, task_id)

    class Async(BaseAgent):
        async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
            return body(self, interface, task_id)

    return (Async if on_loop else Sync)(**options)


async def finish(made: BaseAgent) -> AgentRunResult:
    if made.runs_on_loop:
        return await made.arun_agent("interface", "a")
    return made.run_agent("interface", "a")


@KINDS
async def test_an_answer(on_loop: bool) -> None:
    def body(self: BaseAgent, interface: Any, task_id: str) -> Any:
        self.count_tokens({"input": 2, "cached": True, "model": "x"})
        self.count_tokens({"input": 3, "cost": 0.5})
        self.messages.append("hello")
        return f"{interface} {task_id}"

    result = await finish(agent(body, on_loop))
    assert result == AgentRunResult("interface a", "success", token_usage={"input": 5, "cost": 0.5}, messages=["hello"])


@KINDS
async def test_an_own_result_is_passed_on(on_loop: bool) -> None:
    own = AgentRunResult("x", "timeout", "slow")
    assert await finish(agent(lambda *_: own, on_loop)) is own


@KINDS
async def test_surrender_and_the_budget_are_results_with_what_was_spent(on_loop: bool) -> None:
    def give_up(self: BaseAgent, interface: Any, task_id: str) -> Any:
        self.count_tokens({"input": 2})
        self.surrender("too hard")

    def run_on(self: BaseAgent, interface: Any, task_id: str) -> Any:
        while True:
            self.messages.append(self.next_iteration())

    assert await finish(agent(give_up, on_loop)) == AgentRunResult(None, "surrender", "too hard", {"input": 2}, [])
    result = await finish(agent(run_on, on_loop, max_iterations=3))
    assert result == AgentRunResult(None, "max_iterations", "no answer within 3 iterations", {}, [1, 2, 3])


@KINDS
async def test_what_it_raises_is_raised(on_loop: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        await finish(agent(lambda *_: 1 / 0, on_loop))


@KINDS
async def test_a_second_run_knows_nothing_of_the_first(on_loop: bool) -> None:
    def body(self: BaseAgent, interface: Any, task_id: str) -> Any:
        self.next_iteration()
        self.next_iteration()
        self.count_tokens({"input": 1})
        self.messages.append("x")
        return 1

    made = agent(body, on_loop, max_iterations=2)
    first, second = await finish(made), await finish(made)
    assert first == second
    assert (first.status, first.messages) == ("success", ["x"])


@KINDS
async def test_hooks_hear_of_everything_in_order(on_loop: bool) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def body(self: BaseAgent, interface: Any, task_id: str) -> Any:
        self.next_iteration(tool="x")
        self.next_iteration()
        return 1

    names = ("before_task", "before_iteration", "after_iteration", "after_task")
    hooks: Any = {name: lambda _, _name=name, **facts: told.append((_name, facts)) for name in names}
    made = agent(body, on_loop, hooks=hooks)
    result = await finish(made)
    assert told == [
        ("before_task", {"task_id": "a"}),
        ("before_iteration", {"iteration": 1, "tool": "x"}),
        ("after_iteration", {"iteration": 1}),
        ("before_iteration", {"iteration": 2}),
        ("after_task", {"task_id": "a", "result": result}),
    ]


def test_an_agent_that_overrides_nothing() -> None:
    with pytest.raises(NotImplementedError, match="BaseAgent must override run or arun"):
        BaseAgent().run_agent(None, "a")


def test_options() -> None:
    made = BaseAgent("m", temperature=0.5, system_prompt="be brief", top_p=0.9)
    assert (made.model, made.temperature, made.system_prompt, made.llm_options) == (
        "m",
        0.5,
        "be brief",
        {"top_p": 0.9},
    )
    assert BaseAgent().model == "BaseAgent"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_iterations": 0}, "max_iterations must be"),
        ({"hooks": {"on_error": print}}, r"unknown hooks \['on_error'\]; known: before_task"),
        ({"model": 7}, "model must be text, not 7"),
    ],
)
def test_options_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BaseAgent(**options)
