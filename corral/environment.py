"""Environments: what owns one task's tools, state, workspace and scorer.

Guarantee: each trial has an instance of its own, however the author wrote ``__init__``. The metaclass keeps copies of
the constructor's arguments, taken before the constructor could change them; ``new_instance`` calls the constructor
anew, so that functions defined inside ``__init__`` close over the new instance, and then repeats what was put on the
prototype from outside. Assumption: no trial ever runs on the prototype itself.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from corral.call_history import Room
from corral.data import array_bytes, to_data
from corral.errors import ConfigError, EnvStartError, ErrorRecord
from corral.lean import dataclass
from corral.recipe import Recipe, copied, equal, trial_seed
from corral.tasks import (
    InputRef,
    TaskDefinition,
    check_graph,
    check_unique,
    connected_components,
    parse_answer,
    visible_outputs,
)
from corral.tools import JOB_TOOLS, Jobs, Tool, as_tool
from corral.types import ConcurrencyMode, FreshMode, ToolCall, check_mode, shown

__all__ = ["CorralState", "Environment", "InputRef", "TaskDefinition", "build_environments"]

NOT_CONFIGURED = "not configured"
"""What ``configure_additional_apps`` says where the author did not override it."""

_CONTAINERS = (list, dict, set, bytearray)


@dataclass
class CorralState:
    """What a trial has come to. The runtime fills it in; scorers read ``submitted_answer`` and may set ``feedback``."""

    task_id: str = ""
    trial_id: str = ""
    submitted_answer: Any = None
    score: float | None = None
    feedback: Any = None
    surrendered: bool = False
    is_attempted: bool = False
    """Whether an answer was submitted."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    workspace: Path | None = None
    dependency_outputs: dict[str, Any] = field(default_factory=dict)
    """Task id -> output, of every parent."""

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, without the hidden parts of outputs; NumPy arrays become lists.

        Large ones become short descriptions, and so do values of tool calls for which there is no room
        (``corral.call_history``).
        """
        room = Room()
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["tool_calls"] = [room.fit(_described(call)) for call in self.tool_calls]
        data: dict[str, Any] = to_data(values, f"the state of task {self.task_id!r}", arrays="describe")
        data["dependency_outputs"] = visible_outputs(data["dependency_outputs"])
        return data


def _described(call: ToolCall) -> ToolCall:
    if not array_bytes(call.result):
        return call
    return replace(call, result=to_data(call.result, f"a call of {call.tool!r}", arrays="describe"))


class _EnvironmentMeta(ABCMeta):
    """Keeps what an instance was made from, and closes its construction."""

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, body, **options)
        if any(isinstance(base, _EnvironmentMeta) for base in bases):
            _check_tools_of(cls)

    if not TYPE_CHECKING:  # A type checker shall see the constructor's own signature.

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            recipe = Recipe.of(args, kwargs) if trial_seed.get() is None else None
            made = super().__call__(*args, **kwargs)
            if isinstance(made, Environment):
                made._seal(recipe)
            return made

        @property
        def __signature__(cls) -> inspect.Signature:
            # Else inspect (and help) would show the (*args, **kwargs) above for every environment.
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])


class Environment(metaclass=_EnvironmentMeta):
    """One task's environment. Override ``get_task_prompt`` and ``score``, or give it a TaskDefinition."""

    concurrency: ConcurrencyMode = "thread"
    """How its trials may run: "thread", "process" (keeps process-global state) or "serial" (one at a time)."""
    fresh: FreshMode = "auto"
    """How fresh process state is made for it on a pool."""
    version: ClassVar[str] = ""
    """Raise it when the task changes in a way that its code and data do not show, such as by a file that it reads."""

    task_id: str
    state: CorralState
    seed: int
    """This trial's seed; readable in ``__init__`` already."""
    inputs: dict[str, Any]
    """The definition's initial inputs, and those taken from its parents' outputs."""
    definition: TaskDefinition | None
    parents: tuple[str, ...]
    component: tuple[str, ...]
    """The ids of all tasks linked with this one, itself included."""
    base_work_dir: Path | None

    _added: dict[str, Tool]
    """Tools given to ``add_tool``; ``_added_inside`` names those that the constructor added."""
    _added_inside: tuple[str, ...]
    _later: dict[str, None]
    """Names that were assigned after construction; ``_gone`` those deleted then."""
    _gone: dict[str, None]
    _pristine: dict[str, Any]
    """Copies of the plain containers as the constructor left them: what differs later was changed from outside."""
    _recipe: Recipe | None
    _sealed: bool
    _jobs: Jobs | None
    _offered: dict[str, Tool] | None

    _OURS: ClassVar[frozenset[str]] = frozenset({"state", "definition", "parents", "component", "base_work_dir"})

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Give the instance what the base class promises."""
        # Here, not in __init__: authors may use all of this before they call super().__init__.
        env = super().__new__(cls)
        env.__dict__.update(
            task_id="", state=CorralState(), seed=trial_seed.get() or 0, inputs={}, definition=None, parents=(),
            component=(), base_work_dir=None, _added={}, _later={}, _gone={}, _sealed=False, _recipe=None,
            _pristine={}, _jobs=None, _offered=None, _added_inside=(),
        )  # fmt: skip
        return env

    def __init__(
        self,
        task_id: str,
        definition: TaskDefinition | None = None,
        *,
        concurrency: ConcurrencyMode | None = None,
        base_work_dir: str | Path | None = None,
    ) -> None:
        given: Any = task_id
        if not isinstance(given, str) or not given.strip():
            raise ConfigError(f"{type(self).__name__}: task_id must be text that is not empty, not {task_id!r}")
        self.task_id = task_id
        self.state.task_id = task_id
        if concurrency is not None:
            self.concurrency = check_mode(concurrency, f"{type(self).__name__}({task_id!r})")
        if base_work_dir is not None:
            self.base_work_dir = Path(base_work_dir)
        if definition is not None:
            self._define(definition)

    # For authors to override.

    def get_task_prompt(self) -> str | list[dict[str, Any]]:
        """The prompt: text, or a list of chat messages."""
        return self._definition("get_task_prompt").prompt(self.inputs)  # type: ignore[no-any-return]

    def score(self) -> float:
        """The score of ``self.state.submitted_answer``; above 0 is a success."""
        definition = self._definition("score")
        return definition.score(self.state.submitted_answer, self.state.dependency_outputs)

    def get_task_output(self) -> Mapping[str, Any]:
        """What this task leaves to those that depend on it, beside "answer" and "score"; asked after a score above 0.

        Plain data by name. Names that begin with an underscore are for environments only: agents never see them.
        """
        return {}

    def resolve_answer(self, answer: Any) -> Any:
        """The submitted answer as it is scored and handed to dependents: parsed if the definition says so."""
        wanted = self.definition is not None and self.definition.resolve_answer
        return parse_answer(answer) if wanted else answer

    def configure_additional_apps(self) -> str:
        """Start what a trial needs beside Python; called before each trial. Says what it did."""
        return NOT_CONFIGURED

    def hidden_arguments(self) -> dict[str, Any]:
        """Further values for tools' hidden arguments, by name."""
        return {}

    def close(self) -> None:
        """Release what the trial holds; called once at its end."""
        return

    # For authors to use.

    @property
    def current_work_dir(self) -> Path:
        """This trial's own directory, empty at its start."""
        if self.state.workspace is None:
            raise RuntimeError(
                f"{self.task_id!r} has a work directory only during a trial: use it in tools, in setup_fn, in "
                "configure_additional_apps or in get_task_prompt, not in __init__"
            )
        return self.state.workspace

    def add_tool(self, tool_or_function: Tool | Callable[..., Any]) -> Tool:
        """Offer one more tool; a plain function becomes one."""
        added = as_tool(tool_or_function)
        self._refuse_twice(added.name, self._added)
        self._added[added.name] = added
        self._offered = None
        if self._sealed:
            try:
                self.get_tools()
            except ConfigError:
                del self._added[added.name]
                raise
        return added

    def get_tools(self) -> dict[str, Tool]:
        """Every tool that the agent is offered, by name: methods, added ones, the definition's, those for jobs."""
        if self._offered is None:
            self._offered = self._collect()
        return self._offered

    @property
    def configures(self) -> bool:
        """Whether ``configure_additional_apps`` is the author's own."""
        own = type(self).configure_additional_apps is not Environment.configure_additional_apps
        return own or "configure_additional_apps" in self.__dict__

    # For the runtime.

    def new_instance(self, seed: int = 0) -> Self:
        """A fresh instance for one trial; EnvStartError where neither way of making one works."""
        token = trial_seed.set(seed)
        try:
            made, failed = self._rebuilt()
            return made if made is not None else self._duplicate(seed, failed)
        finally:
            trial_seed.reset(token)

    def take_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Fill in the inputs from the parents' outputs; the trial's own copies."""
        self.state.dependency_outputs = copy.deepcopy(dict(outputs))
        if self.definition is not None:
            self.inputs = self.definition.inputs(self.state.dependency_outputs)

    def let_go(self) -> None:
        """Forget the tools, which hold the environment: its trial is over."""
        self.__dict__.update(_added={}, _offered={}, _jobs=None)

    def hidden_argument(self, name: str) -> Any:
        """A hidden argument by name; KeyError where there is none."""
        own = self.hidden_arguments()
        if name in own:
            return own[name]
        if name in self.inputs:
            return self.inputs[name]
        if name == "work_dir":
            return self.current_work_dir
        return {"env": self, "state": self.state, "jobs": self._jobs}[name]

    def hidden_names(self) -> list[str]:
        """The names that ``hidden_argument`` knows, for error messages."""
        return ["env", "state", "work_dir", *self.inputs, *self.hidden_arguments()]

    def attach_jobs(self, jobs: Jobs) -> None:
        """Give the environment the trial's background jobs."""
        self._jobs = jobs

    def attach_definition(
        self,
        definition: TaskDefinition,
        *,
        base_work_dir: str | Path | None = None,
        concurrency: ConcurrencyMode | None = None,
    ) -> None:
        """Make this the environment of ``definition``, whatever its own constructor did."""
        self._define(definition)
        if base_work_dir is not None:
            self.base_work_dir = Path(base_work_dir)
        if concurrency is not None:
            self.concurrency = check_mode(concurrency, f"build_environments: task {definition.name!r}")
        self.get_tools()

    # Construction, and how it is repeated.

    def _seal(self, recipe: Recipe | None) -> None:
        name = type(self).__name__
        task_id, state = self.__dict__["task_id"], self.__dict__["state"]
        if not isinstance(task_id, str) or not task_id:
            raise ConfigError(f"{name}.__init__ must call super().__init__(task_id)")
        if not isinstance(state, CorralState):
            raise ConfigError(f"{name}: self.state is the trial's CorralState; keep yours under another name")
        self.state.task_id = self.task_id
        check_mode(self.concurrency, f"{name}({self.task_id!r})")
        if self.fresh not in get_args(FreshMode):
            raise ConfigError(f'{name}: fresh must be "auto", "fork" or "spawn", not {self.fresh!r}')
        self._recipe = recipe
        if recipe is not None:
            self._pristine = {
                key: copied(value, {})
                for key, value in self.__dict__.items()
                if type(value) in _CONTAINERS
                and not key.startswith("_")
                and key not in self._OURS
                and id(value) not in recipe.given
            }
        self._added_inside = tuple(self._added)
        self._sealed = True
        self.get_tools()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if self._sealed and not name.startswith("_"):
            self._later[name] = None
            self._gone.pop(name, None)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        if self._sealed and not name.startswith("_"):
            self._gone[name] = None
            self._later.pop(name, None)

    def _rebuilt(self) -> tuple[Self | None, ErrorRecord | None]:
        recipe = self._recipe
        if recipe is None or not recipe.replayable:
            return None, None
        args, kwargs = recipe.copies()
        try:
            made = type(self)(*args, **kwargs)
            self._repeat_on(made)
        except Exception as error:
            return None, ErrorRecord.of(error)
        return made, None

    def _repeat_on(self, made: Self) -> None:
        """Put on ``made`` what came onto this instance after its constructor."""
        memo: dict[int, Any] = {id(self): made}
        for name in self._gone:
            made.__dict__.pop(name, None)
        for name in self._changed_names():
            setattr(made, name, copied(getattr(self, name), memo))
        for name in ("definition", "parents", "component", "base_work_dir"):
            setattr(made, name, getattr(self, name))
        for name, added in self._added.items():
            if name not in self._added_inside and name not in made._added:
                made.add_tool(copied(added, memo).moved(self, made))
        made._offered = None

    def _changed_names(self) -> list[str]:
        names = [name for name in self._later if name not in self._OURS]
        for name, was in self._pristine.items():
            if name not in self._later and name in self.__dict__ and not equal(self.__dict__[name], was):
                names.append(name)
        return names

    def _duplicate(self, seed: int, failed: ErrorRecord | None) -> Self:
        """A deep copy of the prototype: the second way, where the constructor cannot be called again."""
        try:
            made = copy.deepcopy(self, {id(self._recipe): None})
        except Exception as error:
            why = f"its constructor failed the second time ({failed})" if failed else "an argument is used up"
            raise EnvStartError(
                f"no fresh {type(self).__name__} for task {self.task_id!r}: {why}, and a copy of the first one "
                f"failed too ({ErrorRecord.of(error)}). Let its __init__ be callable again with the same arguments, "
                "and open files, connections and engines per trial (in configure_additional_apps or a tool).",
                record=failed or ErrorRecord.of(error),
            ) from error
        made._added = {name: added.moved(self, made) for name, added in made._added.items()}
        made._offered = None
        if made.seed == self.seed:
            made.seed = seed
        return made

    # Tools and definition.

    def _define(self, definition: TaskDefinition) -> None:
        given: Any = definition
        if not isinstance(given, TaskDefinition):
            raise ConfigError(
                f"{type(self).__name__}({self.task_id!r}): the second argument is a TaskDefinition, not "
                f"{shown(given)}; what is the class's own, its __init__ keeps itself"
            )
        named = [t for t in definition.tools if isinstance(t, str)]
        if named:
            raise ConfigError(
                f"task {definition.name!r} names the tools {', '.join(named)}: build_environments looks names up"
            )
        self.definition = definition
        self.parents = definition.parents
        self.component = self.component or (self.task_id,)
        self.inputs = copy.deepcopy(dict(definition.initial_input))
        self._offered = None

    def _definition(self, method: str) -> TaskDefinition:
        if self.definition is None:
            raise ConfigError(
                f"task {self.task_id!r}: {type(self).__name__} has no {method}() of its own and no TaskDefinition: "
                "give it one"
            )
        return self.definition

    def _collect(self) -> dict[str, Tool]:
        tools: dict[str, Tool] = {}
        defined = self.definition.tools if self.definition is not None else ()
        for each in (*self._method_tools(), *self._added.values(), *(as_tool(t) for t in defined)):
            self._refuse_twice(each.name, tools)
            tools[each.name] = each
        if any(each.background for each in tools.values()):
            for each in JOB_TOOLS:
                self._refuse_twice(each.name, tools)
                tools[each.name] = each
        return tools

    def _method_tools(self) -> Iterator[Tool]:
        """Methods with ``@tool``, inherited ones too, in the order of their definition, bases first."""
        for name in _tools_of(type(self)):
            yield getattr(self, name)

    def _refuse_twice(self, name: str, others: Mapping[str, Any]) -> None:
        if name in others:
            raise ConfigError(f"{type(self).__name__}({self.task_id!r}) has two tools named {name!r}")


def check_complete(env: Environment) -> None:
    """ConfigError where nothing says what the task is, or how it is scored."""
    for method in ("get_task_prompt", "score"):
        if getattr(type(env), method) is getattr(Environment, method) and method not in env.__dict__:
            env._definition(method)


def given_to(env: Environment) -> tuple[Any, ...]:
    """What the constructor was given."""
    return (env._recipe.args, env._recipe.kwargs) if env._recipe is not None else ()


def _tools_of(cls: type) -> dict[str, Tool | staticmethod[..., Any]]:
    """The tools of a class by the names of their methods, inherited ones too."""
    # Plain look-ups: this runs in every trial process, where inspect.getattr_static would take half a millisecond.
    defined: dict[str, Any] = {}
    for each in reversed(cls.__mro__):
        defined.update(vars(each))
    return {
        name: found
        for name, found in defined.items()
        if isinstance(found.__func__ if isinstance(found, staticmethod) else found, Tool)
    }


_FREE = {"let_go"}
"""What Corral uses of the class, not of the instance."""


def _check_tools_of(cls: type) -> None:
    """ConfigError for a tool in the place of what Corral itself uses of an environment, or that takes no self."""
    for name, found in _tools_of(cls).items():
        if (
            not name.startswith("_")
            and name not in _FREE
            and (name in vars(Environment) or name in Environment.__annotations__)
        ):
            raise ConfigError(
                f"{cls.__qualname__}.{name} cannot be a tool: Corral itself uses what has this name in every "
                f"environment; give the method another one, and the tool this one: @tool(name={name!r})"
            )
        if isinstance(found, Tool):
            found.check_method(cls.__qualname__)


def build_environments(
    tasks: Iterable[TaskDefinition],
    *,
    base_work_dir: str | Path | None = None,
    env_cls: Callable[..., Environment] = Environment,
    available_tools: Mapping[str, Any] | Iterable[Any] | None = None,
    concurrency: ConcurrencyMode | None = None,
) -> dict[str, Environment]:
    """Make one environment per task; refuse duplicate and unknown ids, cycles and unknown tool names.

    ``env_cls`` is called with the task's id (and with ``definition=`` if it takes that). With ``base_work_dir`` the
    trials' directories are made there and kept.
    """
    listed: Any = tasks
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise ConfigError(f"build_environments takes a list of TaskDefinitions, not {shown(tasks)}")
    given: list[Any] = list(listed)
    for task in given:
        if not isinstance(task, TaskDefinition):
            raise ConfigError(f"build_environments takes TaskDefinitions, not {task!r:.80}")
    check_unique(task.name for task in given)
    parents = {task.name: task.parents for task in given}
    check_graph(parents)
    known = _named_tools(available_tools)
    environments = {}
    for task in given:
        definition = replace(task, tools=[_look_up(t, known, task.name) for t in task.tools])
        env = _construct(env_cls, definition)
        env.attach_definition(definition, base_work_dir=base_work_dir, concurrency=concurrency)
        environments[task.name] = env
    for group in connected_components(parents):
        for task_id in group:
            environments[task_id].component = group
    return environments


def _named_tools(available: Mapping[str, Any] | Iterable[Any] | None) -> dict[str, Tool]:
    if isinstance(available, Mapping):
        return {str(name): as_tool(each) for name, each in available.items()}
    return {each.name: each for each in map(as_tool, available or ())}


def _look_up(tool: Any, known: Mapping[str, Tool], task_id: str) -> Any:
    if not isinstance(tool, str):
        return tool
    if tool not in known:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"task {task_id!r}: there is no tool {tool!r} in available_tools; there are {there}")
    return known[tool]


def _construct(env_cls: Callable[..., Environment], definition: TaskDefinition) -> Environment:
    name = getattr(env_cls, "__name__", repr(env_cls))
    try:
        parameters = inspect.signature(env_cls).parameters
    except (TypeError, ValueError):
        parameters = inspect.signature(lambda task_id: None).parameters
    kwargs: dict[str, Any] = {"definition": definition} if "definition" in parameters else {}
    task_id = parameters.get("task_id")
    args: tuple[Any, ...] = (definition.name,)
    if task_id is not None and task_id.kind is task_id.KEYWORD_ONLY:
        args, kwargs["task_id"] = (), definition.name
    try:
        inspect.signature(env_cls).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"build_environments calls {name}({definition.name!r}), which does not fit its constructor: {error}"
        ) from None
    env = env_cls(*args, **kwargs)
    if not isinstance(env, Environment):
        raise ConfigError(f"{name} made a {type(env).__name__}, which is no Environment")
    if env.task_id != definition.name:
        raise ConfigError(f"{name} gave task {definition.name!r} the id {env.task_id!r}")
    return env
