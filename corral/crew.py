"""Where the agents of a run come from: one shared agent, or a factory that makes one for each attempt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from corral.errors import AgentError, ConfigError, ErrorRecord
from corral.threads import call_blocking
from corral.types import TrialContext, TrialKey, shown

AgentFactory = Callable[[TrialContext], Any]


class Crew:
    """Gives each attempt its agent."""

    def __init__(self, agent: Any, factory: AgentFactory | None, *, enable_surrender: bool) -> None:
        if agent is None and factory is None:
            raise ConfigError("give an agent (agent=...) or a function that makes one (agent_factory=...)")
        if factory is not None and not callable(factory):
            raise ConfigError(f"agent_factory must be a function of a TrialContext, not {shown(factory)}")
        if factory is None:
            _check_shared(agent)
        else:
            check_fits(factory, f"agent_factory {shown(factory)}", "context")
        self._agent = agent
        self._factory = factory
        self._is_async = inspect.iscoroutinefunction(factory)
        self._enable_surrender = enable_surrender
        self._waiting: dict[TrialKey, Any] = {}

    @property
    def is_shared(self) -> bool:
        """Whether all trials would use one agent object."""
        return self._factory is None

    @property
    def label(self) -> str | None:
        """The model's name, where it is known without making an agent."""
        return model_of(self._agent if self._agent is not None else self._factory)

    async def prepare(self, context: TrialContext) -> str | None:
        """Make the first attempt's agent of a trial ahead of time; its model's name, if it has one.

        Raises AgentError if the factory does; ``hire`` then calls it again, where the trial can tell of it. A
        ConfigError of the factory, which every trial would meet, is raised as it is.
        """
        key = TrialKey(context.task_id, context.trial_index)
        if key not in self._waiting:
            try:
                self._waiting[key] = await self._make(context)
            except AgentError as error:
                if isinstance(error.__cause__, ConfigError):
                    raise error.__cause__ from None
                raise
        return model_of(self._waiting[key])

    async def hire(self, context: TrialContext) -> Any:
        """The agent for one attempt. AgentError if the factory raises."""
        waiting = self._waiting.pop(TrialKey(context.task_id, context.trial_index), None)
        return waiting if waiting is not None else await self._make(context)

    async def _make(self, context: TrialContext) -> Any:
        if self._factory is None:
            agent = self._agent
        else:
            try:
                if self._is_async:
                    agent = await self._factory(context)
                else:
                    agent = await call_blocking(_call, self._factory, context)
            except AgentError:
                raise
            except (Exception, SystemExit) as error:
                raise _failed(error) from error
        if not _is_agent(agent):
            raise AgentError(
                f"the agent factory gave {shown(agent)}, which is no agent: it has neither run_agent nor arun_agent"
            )
        if hasattr(agent, "enable_surrender"):
            agent.enable_surrender = self._enable_surrender
        return agent


def check_fits(factory: Callable[..., Any], what: str, *given: str, **named: str) -> None:
    """ConfigError, naming ``what``, for a factory that cannot be called with so many arguments and these named ones.

    Where that is known: it is not called, and of a wrapper it is the wrapper that counts.
    """
    try:
        signature = inspect.signature(factory, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*given, **named)
    except TypeError as error:
        call = ", ".join([*given, *(f"{name}={value}" for name, value in named.items())])
        raise ConfigError(f"{what} is called with ({call}), and does not take that: {error}") from None


def _call(factory: AgentFactory, context: TrialContext) -> Any:
    """In a thread, which no Ctrl-C reaches: whatever is raised there, the factory has raised."""
    try:
        return factory(context)
    except BaseException as error:
        raise _failed(error) from error


def _failed(error: BaseException) -> AgentError:
    record = ErrorRecord.of(error)
    return AgentError(f"the agent factory failed: {record}", record=record)


def _is_agent(agent: Any) -> bool:
    return not isinstance(agent, type) and (hasattr(agent, "run_agent") or hasattr(agent, "arun_agent"))


def _check_shared(agent: Any) -> None:
    if isinstance(agent, type):
        raise ConfigError(f"agent must be an object, not the class {agent.__qualname__}: call it first")
    if not _is_agent(agent):
        raise ConfigError(
            f"agent must have run_agent or arun_agent, as a BaseAgent has, and {shown(agent)} has neither"
        )


def model_of(agent: Any) -> str | None:
    """The name of an agent's model, if it has one."""
    model = getattr(agent, "model", None)
    return model if isinstance(model, str) else None


def runs_on_loop(agent: Any) -> bool:
    """Whether an agent wants the event loop and an asynchronous router."""
    own_word = getattr(agent, "runs_on_loop", None)
    return own_word if isinstance(own_word, bool) else not hasattr(agent, "run_agent")
