"""Objects named on a command line as MODULE:NAME."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.errors import ConfigError, ErrorRecord


def load_named(text: str, option: str) -> Any:
    """The object that ``MODULE:NAME`` names; ConfigError naming ``option`` if there is none."""
    module_name, name = _split(text, option)
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise ConfigError(f"{option}: there is no module {error.name!r} (from {text!r})") from None
        raise _not_imported(option, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _not_imported(option, module_name, error) from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{option}: module {module_name!r} has no {name!r}")
        value = getattr(value, part)
    return value


def _not_imported(option: str, module_name: str, error: BaseException) -> ConfigError:
    return ConfigError(f"{option}: importing {module_name!r} failed: {ErrorRecord.of(error).with_place}")


def _split(text: str, option: str) -> tuple[str, str]:
    module_name, colon, name = text.partition(":")
    if not (colon and all(part.isidentifier() for part in f"{module_name}.{name}".split("."))):
        raise ConfigError(f"{option} must be MODULE:NAME, such as my_package.environments:build_envs, not {text!r}")
    if module_name.endswith(".py"):
        raise ConfigError(f"{option} names a module without '.py': {module_name.removesuffix('.py')}:{name}")
    return module_name, name


@dataclass(frozen=True)
class NamedBuilder:
    """A builder that is imported where it is called: in the workers, not in the supervisor."""

    label: str
    """``MODULE:NAME``"""

    def __post_init__(self) -> None:
        module_name, _ = _split(self.label, "--envs")
        try:
            found = importlib.util.find_spec(module_name) is not None
        except ImportError:
            found = False
        if not found:
            raise ConfigError(f"--envs: there is no module {module_name!r} (from {self.label!r})")

    def __call__(self) -> Mapping[str, Any]:
        """Import the builder and call it."""
        builder = load_named(self.label, "--envs")
        if not callable(builder):
            raise ConfigError(f"--envs: {self.label} is no function, but {builder!r}")
        return builder()  # type: ignore[no-any-return]
