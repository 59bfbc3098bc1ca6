"""The agent's contract: override ``run`` (in a thread) or ``arun`` (on the event loop); one is enough."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from corral.errors import ConfigError
from corral.types import check_count, shown

Hook = Callable[..., object]

HOOKS = ("before_task", "after_task", "before_iteration", "after_iteration")


@dataclass(frozen=True)
class AgentRunResult:
    """How an agent's run ended.

    ``status`` "success" is submitted and "surrender" surrenders. "max_iterations", "timeout" and "no_answer" say that
    the agent found no answer within its budget: graded with 0. Any other says that the agent could not work.
    """

    answer: Any = None
    status: str = "success"
    error_message: str | None = None
    token_usage: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)


class Surrender(Exception):
    """Raised by ``BaseAgent.surrender``: ends the agent's run."""


class OutOfIterations(Exception):
    """Raised by ``BaseAgent.next_iteration`` when the budget is spent."""


class BaseAgent:
    """Base class of agents.

    ``hooks`` maps "before_task", "after_task", "before_iteration", "after_iteration" to functions that are called with
    the agent and keyword facts. ``llm_options`` are kept for subclasses that call a model.
    """

    enable_surrender: bool = False
    """Set by the runner: whether this benchmark offers the agent to give up."""
    default_model: ClassVar[str | None] = None

    def __init__(
        self,
        model: str | None = None,
        *,
        max_iterations: int = 25,
        temperature: float | None = 0.0,
        system_prompt: str | None = None,
        hooks: Mapping[str, Hook] | None = None,
        **llm_options: Any,
    ) -> None:
        self.model = _check_model(model) or self.default_model or type(self).__name__
        self.max_iterations = check_count(max_iterations, "max_iterations")
        self.temperature = temperature
        self.system_prompt = system_prompt
        given: Any = hooks or {}
        if not isinstance(given, Mapping) or not all(map(callable, given.values())):
            raise ConfigError(f"hooks must map names to functions, not {shown(hooks)}")
        self.hooks: dict[str, Hook] = dict(given)
        if unknown := set(self.hooks) - set(HOOKS):
            raise ConfigError(f"unknown hooks {sorted(unknown)}; known: {', '.join(HOOKS)}")
        check_options(type(self), llm_options)
        self.llm_options = llm_options
        self.iterations = 0
        self.token_usage: dict[str, Any] = {}
        self.messages: list[Any] = []

    # ---- to override ----

    def run(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        """Solve the task through ``interface``, a synchronous router bound to the trial; return the answer."""
        raise NotImplementedError(f"{type(self).__name__} must override run or arun")

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> Any:
        """The same on the event loop, through an asynchronous router."""
        raise NotImplementedError(f"{type(self).__name__} must override run or arun")

    # ---- for subclasses ----

    def surrender(self, reason: str = "") -> NoReturn:
        """Give the task up: score 0."""
        raise Surrender(reason)

    def next_iteration(self, **facts: Any) -> int:
        """Count one more step; ends the run when ``max_iterations`` are spent."""
        if self.iterations:
            self._tell("after_iteration", iteration=self.iterations, **facts)
        if self.iterations >= self.max_iterations:
            raise OutOfIterations
        self.iterations += 1
        self._tell("before_iteration", iteration=self.iterations, **facts)
        return self.iterations

    def count_tokens(self, usage: Mapping[str, Any]) -> None:
        """Add a call's token usage to the trial's."""
        for name, value in usage.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.token_usage[name] = self.token_usage.get(name, 0) + value

    def _tell(self, hook: str, **facts: Any) -> None:
        if function := self.hooks.get(hook):
            function(self, **facts)

    # ---- called by the runner ----

    @property
    def runs_on_loop(self) -> bool:
        """Whether ``arun`` is what this agent overrides."""
        return type(self).arun is not BaseAgent.arun

    def run_agent(self, interface: Any, task_id: str, **kwargs: Any) -> AgentRunResult:
        """Run to the end, in a thread. What the agent raises is raised; surrender and budget are results."""
        self._begin()
        self._tell("before_task", task_id=task_id)
        try:
            result = self._finished(self.run(interface, task_id, **kwargs))
        except (Surrender, OutOfIterations) as end:
            result = self._ended(end)
        self._tell("after_task", task_id=task_id, result=result)
        return result

    async def arun_agent(self, interface: Any, task_id: str, **kwargs: Any) -> AgentRunResult:
        """Run to the end, on the event loop."""
        self._begin()
        self._tell("before_task", task_id=task_id)
        try:
            result = self._finished(await self.arun(interface, task_id, **kwargs))
        except (Surrender, OutOfIterations) as end:
            result = self._ended(end)
        self._tell("after_task", task_id=task_id, result=result)
        return result

    def _begin(self) -> None:
        """Start anew: nothing of an earlier trial shows in this one's budget, transcript and tokens."""
        self.iterations = 0
        self.token_usage, self.messages = {}, []

    def _finished(self, answer: Any) -> AgentRunResult:
        if isinstance(answer, AgentRunResult):
            return answer
        return AgentRunResult(answer, token_usage=dict(self.token_usage), messages=list(self.messages))

    def _ended(self, end: Exception) -> AgentRunResult:
        usage, messages = dict(self.token_usage), list(self.messages)
        if isinstance(end, Surrender):
            return AgentRunResult(None, "surrender", str(end) or None, usage, messages)
        reason = f"no answer within {self.max_iterations} iterations"
        return AgentRunResult(None, "max_iterations", reason, usage, messages)


NEAR = 0.86
"""How much alike two names are (by difflib) that are taken for one: below are ``max_turns`` and ``max_tokens``."""


def check_options(agent: type, given: Mapping[str, Any]) -> None:
    """ConfigError for an option, passed on to a model, that is all but one of the agent's own: it was meant for that.

    Its own are those of Corral's classes. What a user's class calls its arguments says nothing of what a model takes,
    and may be passed on as it is; neither does ``model``: endpoints know ``models``.
    """
    own = _options(agent, ours=True) - {"model"} if given else frozenset()
    users = _options(agent, ours=False) if given else frozenset()
    for name in given:
        if name in users:
            continue
        if near := get_close_matches(name, own, 1, NEAR):
            raise ConfigError(f"{agent.__name__} has no option {name!r}: did you mean {near[0]!r}?")


def _options(agent: type, *, ours: bool) -> frozenset[str]:
    classes = [cls for cls in agent.__mro__ if "__init__" in vars(cls) and _is_ours(cls) is ours and cls is not object]
    parameters = [each for cls in classes for each in inspect.signature(vars(cls)["__init__"]).parameters.values()]
    return frozenset(each.name for each in parameters if each.kind is not each.VAR_KEYWORD) - {"self"}


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "corral"


def _check_model(model: object) -> str | None:
    if model is not None and not isinstance(model, str):
        raise ConfigError(
            f"an agent's model must be text, not {model!r:.200}; an agent_factory is a function of a TrialContext that "
            "returns an agent, such as lambda context: MyAgent()"
        )
    return model
