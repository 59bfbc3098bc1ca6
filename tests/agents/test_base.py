"""The agent's contract: what a run gives, for agents in threads and on the loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral.agents import AgentRunResult, BaseAgent, ClaudeCodeAgent, ReActAgent, ScriptedAgent, ToolCallingAgent
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


MAKERS: dict[str, Any] = {
    "base": BaseAgent,
    "scripted": lambda **options: ScriptedAgent(lambda lab, prompt: 1, **options),
    "react": lambda **options: ReActAgent("openai/m", api_key="k", **options),
    "tool calling": lambda **options: ToolCallingAgent("openai/m", api_key="k", **options),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("name", "meant"), [("max_iteration", "max_iterations"), ("temprature", "temperature"), ("hook", "hooks")]
)
def test_an_option_with_a_slip_of_the_pen_is_refused(kind: str, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"Agent has no option '{name}': did you mean '{meant}'\\?"):
        MAKERS[kind](**{name: 3})


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [("tool calling", "time_out", "timeout"), ("tool calling", "submit_tools", "submit_tool"),
     ("react", "apibase", "api_base"), ("react", "header", "headers"), ("scripted", "think_times", "think_time")],
)  # fmt: skip
def test_so_is_one_of_the_agents_own_options(kind: str, name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"has no option '{name}': did you mean '{meant}'"):
        MAKERS[kind](**{name: 3})


def test_options_of_the_model_are_passed_on() -> None:
    """Those that providers know, and those of a user's class, whose own arguments say nothing of them."""
    known = (
        "max_tokens", "max_completion_tokens", "max_retries", "top_p", "tools", "tool_choice", "thinking", "models",
        "extra_headers", "request_timeout", "api_version", "template", "system", "flag", "option", "llm_option",
    )  # fmt: skip
    for kind, make in MAKERS.items():
        given = make(**dict.fromkeys(known, 1)).llm_options
        assert set(known) <= set(given), kind

    class Own(ToolCallingAgent):
        def __init__(self, tool: str, **options: Any) -> None:
            super().__init__("openai/m", api_key="k", tools=[tool], **options)

    assert Own("x", max_tokens=7).llm_options == {"temperature": None, "tools": ["x"], "max_tokens": 7}
    with pytest.raises(ConfigError, match="Own has no option 'max_iteration'"):
        Own("x", max_iteration=7)


def test_what_a_user_s_class_takes_itself_it_may_pass_on() -> None:
    class Mine(BaseAgent):
        def __init__(self, model: str | None = None, hook: str | None = None, **options: Any) -> None:
            super().__init__(model, hook=hook, **options)

    assert Mine("m", hook="x").llm_options == {"hook": "x"}
    with pytest.raises(ConfigError, match="Mine has no option 'temprature': did you mean 'temperature'"):
        Mine("m", temprature=1)


def test_flags_of_claude_code_are_passed_on(tmp_path: Path) -> None:
    program = tmp_path / "claude"
    program.touch(mode=0o700)
    flags: dict[str, Any] = {
        "effort": "high",
        "append_system_prompt": "x",
        "system_prompt_file": "x",
        "max_budget_usd": 1,
    }
    assert ClaudeCodeAgent(api_key="k", program=program, **flags).llm_options == flags
    with pytest.raises(ConfigError, match="ClaudeCodeAgent has no option 'programs': did you mean 'program'"):
        ClaudeCodeAgent(api_key="k", program=program, programs=2)
