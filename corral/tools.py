"""Tools: functions that an agent may call, described by their signature and docstring.

A Tool holds the function and what its author said about it, nothing else that is costly or cannot be pickled: what
checks its arguments and the JSON schemas are made when first needed and left behind by pickle. docstring_parser, and
pydantic where it is needed, are imported at that moment too, which keeps ``import corral`` light.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, overload

from corral.arguments import REQUIRED, Argument, Arguments, arguments_of
from corral.errors import ConfigError, CorralError
from corral.jobs import Jobs, NoSuchJob, job_cancelled
from corral.recipe import rebound
from corral.schema import annotations_of, evaluate, first_paragraph, may_have_sections, problem_text, strip_text
from corral.types import Verbosity, check_verbosity

__all__ = [
    "InvalidArguments", "JOB_TOOLS", "Jobs", "NoSuchJob", "Tool", "as_tool", "cancel_job", "job_cancelled",
    "poll_job", "tool",
]  # fmt: skip

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNSET: Any = inspect.Parameter.empty


def _schema_key(verbosity: Verbosity) -> str:
    return f"schema {check_verbosity(verbosity)}"


class InvalidArguments(CorralError, ValueError):
    """An agent's call does not fit the tool's signature; says which argument and why."""

    def __init__(self, tool: str, problems: list[str]) -> None:
        self.tool = tool
        self.problems = problems
        super().__init__(f"{tool}: " + "; ".join(problems))


class MissingHidden(CorralError, LookupError):
    """The environment does not supply a hidden argument that a tool asks for."""

    def __init__(self, tool: str, argument: str, supplied: Iterable[str]) -> None:
        super().__init__(
            f"tool {tool!r} asks for the hidden argument {argument!r}, which its environment does not supply; "
            f"it supplies {', '.join(sorted(supplied))}, and what hidden_arguments() returns"
        )


class Tool:
    """One function offered to an agent. Calling it calls the function, so authors can use it in their own code."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        hidden: Iterable[str] = (),
        background: bool = False,
        namespace: Mapping[str, Any] | None = None,
    ) -> None:
        self._static = isinstance(function, staticmethod)
        function = function.__func__ if isinstance(function, staticmethod) else function
        if not callable(function):
            raise ConfigError(f"a tool must be a function, not {function!r}")
        self.function = function
        self.name: Any = name if name is not None else getattr(function, "__name__", "")
        self.hidden = frozenset([hidden] if isinstance(hidden, str) else hidden)
        self.background = background
        self._description = description
        self._owner: Any = None
        self._unbound: Tool | None = None
        self._cache: dict[str, Any] = {}
        self._check()
        self._annotations = annotations_of(function, self.hidden, namespace or {})

    def _check(self) -> None:
        where = f"tool {self.name!r}"
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"{where}: a tool's name is 1 to 64 letters, digits, '_' or '-'; give one: tool(name=...)"
            )
        if self._description is not None and not isinstance(self._description, str):
            raise ConfigError(f"{where}: description must be text, not {self._description!r}")
        if inspect.iscoroutinefunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise ConfigError(
                f"{where} is async: tools run in a thread or process of their own, so write it with `def`, and run "
                "what must be async inside it with anyio.run(...)"
            )
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: its signature cannot be read ({error}); wrap it in a function") from None
        for parameter in parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"{where}: *{parameter.name} cannot be described to an agent; name each argument "
                    "(a list or a dict for a varying number)"
                )
        unknown = sorted(self.hidden - set(parameters))
        if unknown:
            raise ConfigError(f"{where}: hidden names no argument of it: {', '.join(unknown)}")

    # Methods: reached through an instance, a tool is bound to it as a function would be.

    def check_method(self, owner: str) -> None:
        """ConfigError if this tool, in the body of the class ``owner``, takes no instance as its first argument."""
        if self._static or self._owner is not None:
            return
        first = next(iter(inspect.signature(self.function).parameters.values()), None)
        if first is None or first.kind is first.KEYWORD_ONLY or (first.name != "self" and _is_plain(first.annotation)):
            raise ConfigError(
                f"tool {self.name!r} of {owner} takes no self: give its function one as the first argument, or put "
                "@staticmethod above @tool"
            )

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        return self if instance is None or self._static or self._owner is not None else self.bind(instance)

    def bind(self, owner: Any) -> Tool:
        """This tool with ``owner`` as its first argument; shares the schema with the unbound one."""
        bound = Tool.__new__(Tool)
        # One cache for all bound copies: their schema lacks the first argument, the unbound one's does not.
        cache = self._cache.setdefault("bound", {})
        bound.__dict__.update(self.__dict__, _owner=owner, _unbound=self, _cache=cache)
        return bound

    def moved(self, old: object, new: object) -> Tool:
        """This tool for another environment: what it is bound to or closes over is ``new`` instead of ``old``."""
        if self._unbound is not None:
            unbound = self._unbound.moved(old, new)
            owner = new if self._owner is old else self._owner
            return self if unbound is self._unbound and owner is self._owner else unbound.bind(owner)
        function = rebound(self.function, old, new)
        if function is self.function:
            return self
        made = Tool.__new__(Tool)
        made.__dict__.update(self.__dict__, function=function, _cache={})
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, bound to its owner if it has one; nothing is validated or supplied."""
        return self.function(*self._first(), *args, **kwargs)

    def _first(self) -> tuple[Any, ...]:
        return () if self._owner is None else (self._owner,)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    # Pickling. By reference where the tool can be found again under its own name: the function inside could not be
    # (its name now means the tool), and a copy by value would bring copies of its module's globals along.

    def __reduce__(self) -> tuple[Any, ...]:
        if self._unbound is not None:
            return _bind, (self._unbound, self._owner)
        module = str(getattr(self.function, "__module__", ""))
        path = getattr(self.function, "__qualname__", "")
        if _importable(module) and _look_up(module, path) is self:
            return _look_up, (module, path)
        state = {key: value for key, value in self.__dict__.items() if key != "_cache"}
        return _restore, (state,)

    # What the agent sees.

    def schema(self, verbosity: Verbosity = "brief") -> dict[str, Any]:
        """The tool as an OpenAI function schema. The caller may change what it gets."""
        self.prepare_schema(verbosity)
        made: dict[str, Any] = copy.deepcopy(self._cache[_schema_key(verbosity)])
        return made

    def prepare_schema(self, verbosity: Verbosity = "brief") -> None:
        """Work the schema out ahead of time: it takes a millisecond or more, and processes that are forked keep it."""
        if _schema_key(verbosity) not in self._cache:
            self._cache[_schema_key(verbosity)] = self._make_schema(verbosity)

    def description(self, verbosity: Verbosity = "brief") -> str:
        """Its text: none, the first paragraph of the docstring, or all of it without the hidden arguments."""
        if check_verbosity(verbosity) == "minimal":
            return ""
        if self._description is not None:
            return self._description if verbosity == "full" else first_paragraph(self._description)
        text = inspect.getdoc(self.function) or ""
        parsed = self._parsed()
        if verbosity == "brief":
            return first_paragraph(text if parsed is None else parsed.description or "")
        hidden = [m for m in parsed.meta if getattr(m, "arg_name", None) in self.hidden] if parsed is not None else ()
        if not hidden:
            return text
        import docstring_parser

        shown = copy.copy(parsed)
        shown.meta = [m for m in parsed.meta if m not in hidden]
        return docstring_parser.compose(shown)

    def _parsed(self) -> Any:
        """The docstring in its parts; None if it has no sections."""
        if "docstring" not in self._cache:
            text = inspect.getdoc(self.function) or ""
            self._cache["docstring"] = _in_parts(text) if may_have_sections(text) else None
        return self._cache["docstring"]

    def _json_schema(self) -> dict[str, Any]:
        if "json schema" not in self._cache:
            self._cache["json schema"] = self._arguments().json_schema()
        made: dict[str, Any] = copy.deepcopy(self._cache["json schema"])
        return made

    def _make_schema(self, verbosity: Verbosity) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name}
        text = self.description(verbosity)
        if text:
            function["description"] = text
        parameters = self._json_schema()
        if verbosity == "minimal":
            strip_text(parameters)
        else:
            parsed = self._parsed()
            texts = {p.arg_name: p.description for p in parsed.params} if parsed is not None else {}
            for name, schema in parameters["properties"].items():
                if texts.get(name):
                    schema.setdefault("description", texts[name])
        function["parameters"] = parameters
        return {"type": "function", "function": function}

    # Validation and call.

    def validate(self, arguments: Any) -> dict[str, Any]:
        """Return the visible arguments as the function takes them, defaults filled in; raise InvalidArguments."""
        arguments = {} if arguments is None else arguments
        if type(arguments) is not dict and not isinstance(arguments, Mapping):
            raise InvalidArguments(
                self.name, [f"its arguments must be an object with named values, not {type(arguments).__name__}"]
            )
        names = self._visible_names()
        unknown = [str(key) for key in arguments if key not in names]
        if unknown:
            takes = f"it takes {', '.join(names)}" if names else "it takes none"
            raise InvalidArguments(self.name, [f"unknown argument {', '.join(map(repr, unknown))}; {takes}"])
        try:
            return self._arguments().validate(dict(arguments))
        except ValueError as error:  # pydantic's ValidationError is one, and is imported where it is needed only
            if not hasattr(error, "errors"):
                raise
            raise InvalidArguments(self.name, [problem_text(e) for e in error.errors(include_url=False)]) from None

    def run(self, arguments: Mapping[str, Any], supply: Callable[[str], Any] | None = None) -> Any:
        """Call with validated ``arguments``; ``supply(name)`` gives a hidden one or raises KeyError."""
        return self.prepare(arguments, supply)()

    def prepare(
        self,
        arguments: Mapping[str, Any],
        supply: Callable[[str], Any] | None = None,
        supplied: Iterable[str] = (),
    ) -> Callable[[], Any]:
        """Everything of ``run`` but the call itself, so that a job fails at its start where it can."""
        values = dict(arguments)
        for parameter in self._parameters() if self.hidden else ():
            if parameter.name in self.hidden:
                try:
                    if supply is None:
                        raise KeyError(parameter.name)
                    values[parameter.name] = supply(parameter.name)
                except KeyError:
                    if parameter.default is _UNSET:
                        raise MissingHidden(self.name, parameter.name, supplied) from None
        positional = [values.pop(name) for name in self._positional() if name in values]
        return partial(self.function, *self._first(), *positional, **values)

    def _parameters(self) -> list[inspect.Parameter]:
        if "parameters" not in self._cache:
            every = list(inspect.signature(self.function).parameters.values())
            self._cache["parameters"] = every[1:] if self._owner is not None else every
        return self._cache["parameters"]  # type: ignore[no-any-return]

    def _positional(self) -> tuple[str, ...]:
        if "positional" not in self._cache:
            names = (p.name for p in self._parameters() if p.kind is p.POSITIONAL_ONLY)
            self._cache["positional"] = tuple(names)
        return self._cache["positional"]  # type: ignore[no-any-return]

    def _visible_names(self) -> tuple[str, ...]:
        if "names" not in self._cache:
            self._cache["names"] = tuple(p.name for p in self._visible())
        return self._cache["names"]  # type: ignore[no-any-return]

    def _visible(self) -> list[inspect.Parameter]:
        return [p for p in self._parameters() if p.name not in self.hidden]

    def _arguments(self) -> Arguments:
        """The visible arguments."""
        if "arguments" not in self._cache:
            visible = (
                Argument(p.name, self._annotation(p.name), REQUIRED if p.default is _UNSET else p.default)
                for p in self._visible()
            )
            self._cache["arguments"] = arguments_of(self.name, visible)
        return self._cache["arguments"]  # type: ignore[no-any-return]

    def _annotation(self, name: str) -> Any:
        annotation = self._annotations.get(name, Any)
        if isinstance(annotation, str):
            try:
                return evaluate(annotation, self.function, {})
            except Exception as error:
                raise ConfigError(
                    f"tool {self.name!r}: the type {annotation!r} of {name!r} cannot be found: {error}"
                ) from error
        return annotation


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = ..., description: str | None = ..., hidden: Iterable[str] = ..., background: bool = ...
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    hidden: Iterable[str] = (),
    background: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function or a method a tool: ``@tool`` or ``@tool(name=..., hidden=("env",), background=True)``.

    ``hidden`` arguments are supplied by the environment by name and never shown: ``env``, ``state``, ``work_dir``,
    every key of the task's inputs, and what ``Environment.hidden_arguments`` returns. A ``background`` tool starts a
    job and gives the agent its id at once.
    """
    namespace = dict(sys._getframe(1).f_locals)
    make = partial(Tool, name=name, description=description, hidden=hidden, background=background, namespace=namespace)
    return make if function is None else make(function)


_PLAIN = re.compile(r"(str|int|float|bool|list|dict|tuple|set|Literal)\b")


def _is_plain(annotation: Any) -> bool:
    """Whether an argument's type is one of data: then it is no instance that a method is called on."""
    return bool(_PLAIN.match(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")))


def as_tool(value: Any) -> Tool:
    """``value`` if it is a Tool, else the tool of a plain function."""
    return value if isinstance(value, Tool) else Tool(value)


def _in_parts(docstring: str) -> Any:
    import docstring_parser

    try:
        return docstring_parser.parse(docstring)
    except docstring_parser.ParseError:
        return docstring_parser.Docstring()


def _bind(unbound: Tool, owner: Any) -> Tool:
    return unbound.bind(owner)


def _restore(state: dict[str, Any]) -> Tool:
    made = Tool.__new__(Tool)
    made.__dict__.update(state, _cache={})
    return made


def _look_up(module: str, path: str) -> Any:
    value: Any = importlib.import_module(module)
    for part in path.split("."):
        value = inspect.getattr_static(value, part, None)
    return value


def _importable(module: str) -> bool:
    """Whether another process finds the module under its name, and cloudpickle was not told to send its contents."""
    if module == "__main__" or module not in sys.modules:
        return False
    cloudpickle = sys.modules.get("cloudpickle")
    registered = cloudpickle.list_registry_pickle_by_value() if cloudpickle is not None else ()
    return not any(module == name or module.startswith(f"{name}.") for name in registered)


@tool(hidden=("jobs",))
def poll_job(job_id: str, jobs: Jobs, wait_s: float = 0.0) -> dict[str, Any]:
    """Say where a background job stands, with its result once it is done.

    Args:
        job_id: The id that the tool gave when it started the job.
        wait_s: Wait up to so many seconds for the job's end.
    """
    return jobs.poll(job_id, min(wait_s, 60.0))


@tool(hidden=("jobs",))
def cancel_job(job_id: str, jobs: Jobs) -> dict[str, Any]:
    """Cancel a background job that has not ended.

    Args:
        job_id: The id that the tool gave when it started the job.
    """
    return jobs.cancel(job_id)


JOB_TOOLS = (poll_job, cancel_job)
"""What an environment with a background tool offers besides."""
