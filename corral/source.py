"""Where environments come from: a mapping, or a function that builds one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError
from corral.types import shown

if TYPE_CHECKING:
    from corral.environment import Environment

Environments = Mapping[str, "Environment"]
EnvironmentsOrBuilder = Environments | Callable[[], Environments]


class EnvironmentSource:
    """A mapping ``{task_id: Environment}``, or a zero-argument function that returns one.

    ``build`` is what workers are sent; ``here`` builds in this process, once, when something in-process needs it: so
    a benchmark whose tasks are all process-class never loads their libraries in the supervisor.
    """

    def __init__(self, environments: EnvironmentsOrBuilder) -> None:
        self.build = as_builder(environments)
        self.is_builder = not isinstance(environments, Mapping)
        self._given = environments
        self._here: dict[str, Environment] | None = None
        self._building = threading.Lock()

    def here(self) -> dict[str, Environment]:
        """The environments, in this process. EnvStartError if the builder raises, ConfigError if no mapping."""
        with self._building:  # many trials may ask at once
            if self._here is None:
                from corral.runtime import load  # here, so that a supervisor without in-process tasks stays light

                self._here = load(self.build)
            return self._here

    def fingerprint(self) -> str:
        """What identifies the source from run to run: its module and name. Each task's code has a digest of its own."""
        return describe_builder(self.build) if self.is_builder else "mapping"


def describe_builder(build: Callable[..., Any]) -> str:
    """``module:name`` of a builder, for messages and fingerprints."""
    if isinstance(label := getattr(build, "label", None), str):
        return label
    name = getattr(build, "__qualname__", None) or type(build).__qualname__
    return f"{getattr(build, '__module__', None) or type(build).__module__}:{name}"


def as_builder(environments: EnvironmentsOrBuilder) -> Callable[[], Mapping[str, Any]]:
    """A function that gives the environments; ConfigError for anything else."""
    if isinstance(environments, Mapping):
        given = dict(environments)
        return lambda: given
    if callable(environments):
        return environments
    raise ConfigError(
        "environments must be a mapping {task_id: Environment} or a function without arguments that returns one, "
        f"not {shown(environments)}"
    )
