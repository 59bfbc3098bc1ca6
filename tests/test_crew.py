"""Where agents come from."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import pytest

from corral.agents import BaseAgent, ScriptedAgent
from corral.crew import Crew, model_of, runs_on_loop
from corral.errors import AgentError, ConfigError
from corral.types import TrialContext

pytestmark = pytest.mark.anyio

CONTEXT = TrialContext("a", 0, "session", "run", 5)
OTHER = TrialContext("a", 1, "session", "run", 6)


def crew(factory: Any, **options: Any) -> Crew:
    return Crew(None, factory, enable_surrender=False, **options)


def scripted(model: str = "m") -> ScriptedAgent:
    return ScriptedAgent(lambda lab, prompt: 1, model=model)


async def test_an_agent_that_was_prepared_is_hired_once() -> None:
    made: list[ScriptedAgent] = []

    def hire(context: TrialContext) -> ScriptedAgent:
        made.append(scripted())
        return made[-1]

    team = crew(hire)
    assert await team.prepare(CONTEXT) == "m"
    assert await team.prepare(CONTEXT) == "m"
    assert len(made) == 1
    assert await team.hire(CONTEXT) is made[0]
    assert await team.hire(CONTEXT) is made[1]
    assert await team.hire(OTHER) is made[2]


async def test_factories_may_be_coroutines() -> None:
    async def hire(context: TrialContext) -> ScriptedAgent:
        return scripted(context.task_id)

    assert (await crew(hire).hire(CONTEXT)).model == "a"


async def test_a_factory_that_fails_is_asked_again() -> None:
    calls: list[int] = []

    def hire(context: TrialContext) -> ScriptedAgent:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no key")
        return scripted()

    team = crew(hire)
    with pytest.raises(AgentError, match="the agent factory failed: OSError: no key"):
        await team.prepare(CONTEXT)
    assert (await team.hire(CONTEXT)).model == "m"


async def test_a_factory_that_is_set_up_wrongly_stops_the_run_and_not_each_trial() -> None:
    team = crew(lambda context: BaseAgent(max_iterations=0))
    with pytest.raises(ConfigError, match="max_iterations must be"):
        await team.prepare(CONTEXT)
    with pytest.raises(AgentError, match="max_iterations must be"):
        await team.hire(CONTEXT)


@pytest.mark.parametrize("given", [None, "gpt", ScriptedAgent, object()])
async def test_what_a_factory_gives_must_be_an_agent(given: Any) -> None:
    with pytest.raises(AgentError, match="which is no agent"):
        await crew(lambda context: given).hire(CONTEXT)


def _none() -> ScriptedAgent:
    return scripted()


def _two(context: TrialContext, model: str) -> ScriptedAgent:
    return scripted(model)


def _named(*, context: TrialContext) -> ScriptedAgent:
    return scripted()


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (_none, "too many positional arguments"),
        (_two, "missing a required argument: 'model'"),
        (_named, "too many positional arguments"),
        (partial(_two, CONTEXT, "m"), "too many positional arguments"),
    ],
)
def test_a_factory_that_does_not_take_a_context_is_refused_before_anything_starts(factory: Any, why: str) -> None:
    with pytest.raises(
        ConfigError, match=r"agent_factory <?.+ is called with \(context\), and does not take that: "
    ) as no:
        crew(factory)
    assert str(no.value).endswith(why)


async def test_how_a_factory_takes_its_context_is_its_own_matter() -> None:
    """Also where its signature is that of another function, or cannot be read."""

    @wraps(_two)
    def wrapped(context: TrialContext, *rest: Any) -> ScriptedAgent:
        return _two(context, "m")

    class Maker:
        def __call__(self, context: TrialContext, model: str = "m") -> ScriptedAgent:
            return scripted(model)

    for factory in (wrapped, Maker(), partial(_two, model="m"), lambda *_: scripted("m")):
        assert (await crew(factory).hire(CONTEXT)).model == "m"
    assert crew(max).label is None  # a builtin without a signature


async def test_surrender_is_offered_as_the_benchmark_says() -> None:
    for enabled in (False, True):
        team = Crew(None, lambda context: BaseAgent(), enable_surrender=enabled)
        assert (await team.hire(CONTEXT)).enable_surrender is enabled


def test_labels() -> None:
    assert Crew(scripted("one"), None, enable_surrender=False).label == "one"
    assert Crew(scripted("one"), lambda c: scripted("two"), enable_surrender=False).label == "one"
    assert crew(lambda c: scripted("two")).label is None
    assert model_of(object()) is None


def test_factories_that_are_none() -> None:
    with pytest.raises(ConfigError, match="agent_factory must be a function of a TrialContext, not 7"):
        crew(7)


def test_where_agents_run() -> None:
    class Own:
        def run_agent(self, interface: Any, task_id: str) -> None: ...

        async def arun_agent(self, interface: Any, task_id: str) -> None: ...

    class OnLoop:
        async def arun_agent(self, interface: Any, task_id: str) -> None: ...

    class Base(BaseAgent):
        async def arun(self, interface: Any, task_id: str, **_: Any) -> Any: ...

    async def policy(lab: Any, prompt: str) -> Any: ...

    assert [runs_on_loop(agent) for agent in (Own(), OnLoop(), Base(), BaseAgent(), ScriptedAgent(policy))] == [
        False, True, True, False, True,
    ]  # fmt: skip
