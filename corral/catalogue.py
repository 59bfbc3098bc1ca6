"""A set of environments: built, checked, and described for those who must not load it."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from corral.environment import Environment, check_complete, given_to
from corral.errors import ConfigError, EnvStartError, ErrorRecord, ScoringError, TrialError
from corral.forks import OnlyHere
from corral.tools import Tool
from corral.types import TaskInfo, shown

if TYPE_CHECKING:
    from corral.fingerprint import Code


def describe(environments: Any) -> dict[str, TaskInfo]:
    """What the supervisor needs to know of each task; ConfigError where this is no mapping of environments."""
    from corral.fingerprint import Code  # only the one worker that describes the environments needs it

    tasks = _checked(environments)
    code = Code({type(env).__module__.partition(".")[0] for env in tasks.values()})
    return {
        task_id: TaskInfo(task_id, env.concurrency, tuple(env.parents), env.configures, env.fresh, _digest(env, code))
        for task_id, env in tasks.items()
    }


def warm_up(environments: Mapping[str, Environment]) -> None:
    """Work out what agents are told of every tool, once for all trial processes that are forked later."""
    for env in environments.values():
        for each in env.get_tools().values():
            each.prepare_schema()


def _is_list(environments: Any) -> bool:
    return isinstance(environments, list | tuple) and all(isinstance(each, Environment) for each in environments)


def _checked(environments: Any) -> Mapping[str, Environment]:
    if not isinstance(environments, Mapping):
        hint = "; for a list of them, {each.task_id: each for each in environments}" if _is_list(environments) else ""
        raise ConfigError(f"environments must be a mapping of task id to Environment, not {shown(environments)}{hint}")
    for task_id, env in environments.items():
        if not isinstance(task_id, str) or not isinstance(env, Environment):
            what = f"the class {env.__name__}: call it" if isinstance(env, type) else f"a {type(env).__name__}"
            raise ConfigError(f"environments must map text ids to Environments; {shown(task_id)} is mapped to {what}")
        if env.task_id != task_id:
            raise ConfigError(f"the environment under {task_id!r} has the task id {env.task_id!r}")
        check_complete(env)
        tools: Any = env.get_tools()
        if not isinstance(tools, Mapping) or not all(isinstance(each, Tool) for each in tools.values()):
            raise ConfigError(f"get_tools of task {task_id!r} must give tools by their names, not {shown(tools)}")
    return environments


def load(build: Callable[[], Any]) -> dict[str, Environment]:
    """Call a builder and check what it made. ConfigError for what is no set of tasks, EnvStartError if it fails."""
    name = f"{getattr(build, '__module__', '?')}.{getattr(build, '__qualname__', repr(build))}"
    try:
        with failing_as(EnvStartError, f"the builder {name}"):
            environments = _checked(build())
    except EnvStartError as error:
        if isinstance(error.__cause__, ConfigError):  # such as a cycle: it says itself what is wrong
            raise error.__cause__ from None
        if error.record is None:
            raise
        raise EnvStartError.because(f"the builder {name}", error.record) from error.__cause__
    return dict(environments)


def _digest(env: Environment, code: Code) -> str:
    import hashlib

    from corral.fingerprint import data_of

    cls = type(env)
    definition = env.definition
    functions = [definition.scoring_fn, definition.prompt_fn, definition.setup_fn] if definition else []
    tools = env.get_tools().values()
    facts = {
        # A script is __main__ in the supervisor and __mp_main__ in a spawned worker.
        "class": f"{cls.__module__}.{cls.__qualname__}".replace("__mp_main__.", "__main__."),
        "version": str(env.version),
        "tools": [tool.schema("full") for tool in tools],
        "code": code.of([cls, *tools, *filter(None, functions)]),
        "data": [data_of(definition), data_of(given_to(env))],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def is_a_stop(error: BaseException) -> bool:
    """Whether it stops the whole run: a Ctrl-C. Of an environment's own making is all that is raised where none comes.

    That is in any thread but the first, and in trial processes, which ignore it.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@contextmanager
def failing_as(error_class: type[EnvStartError] | type[ScoringError], what: str) -> Iterator[None]:
    """Turn whatever the environment's code raises into one error of the trial. A stop of the whole run passes."""
    try:
        with OnlyHere():
            yield
    except TrialError:
        raise
    except BaseException as error:
        if is_a_stop(error):
            raise
        record = ErrorRecord.of(error)
        raise error_class(f"{what} failed: {record}", record=record) from error
