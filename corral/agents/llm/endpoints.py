"""Where a model is: from ``PROVIDER/NAME`` to an address, a protocol and a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import urlsplit

from corral.credentials import secret
from corral.errors import ConfigError

Protocol = Literal["openai", "anthropic", "litellm"]


@dataclass(frozen=True)
class Provider:
    """A provider: its protocol, its address, and the environment variable of its key (None: it needs none)."""

    protocol: Protocol
    base: str
    key_variable: str | None


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "openrouter": Provider("openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": Provider("openai", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("openai", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": Provider("openai", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "together": Provider("openai", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "xai": Provider("openai", "https://api.x.ai/v1", "XAI_API_KEY"),
    "ollama": Provider("openai", "http://127.0.0.1:11434/v1", None),
}
"""What the client speaks itself. Others go through litellm, or are OpenAI-compatible at an ``api_base``."""


@dataclass(frozen=True)
class Endpoint:
    """Where a model is reached, and as what."""

    name: str
    """``PROVIDER/NAME``, as the user wrote it."""
    model: str
    """The name that the endpoint knows."""
    protocol: Protocol
    base: str
    """Its address without a slash at the end; empty for litellm unless one was given."""
    key: str | None = field(default=None, repr=False)
    is_official: bool = False
    """Whether it is the provider's own address."""

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine."""
        host = urlsplit(self.base).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")


def resolve(
    name: object, *, api_base: str | None = None, api_key: str | None = None, environ: Mapping[str, str] | None = None
) -> Endpoint:
    """Where the model ``PROVIDER/NAME`` is. ConfigError for an unknown provider or a missing key.

    With ``api_base`` any provider but "anthropic" is taken for OpenAI-compatible, and needs no key. ``litellm/`` before
    the name sends it through litellm.
    """
    environ = os.environ if environ is None else environ
    provider, model = _split(name)
    whole = f"{provider}/{model}"
    api_key = secret(api_key, "api_key") if api_key else None
    if provider == "litellm":
        _check_litellm(whole)
        return Endpoint(whole, model, "litellm", _base(api_base), api_key)
    known = PROVIDERS.get(provider)
    variable = known.key_variable if known else None
    key = api_key or _key_in(environ, variable)
    if api_base is not None:
        protocol: Protocol = known.protocol if known else "openai"
        return Endpoint(whole, model, protocol, _base(api_base), key)
    if known is None:
        return _by_litellm(whole, provider, api_key)
    if variable and not key:
        raise ConfigError(f"model {whole!r} needs a key: set {variable}, or give api_key=...")
    return Endpoint(whole, model, known.protocol, known.base, key, is_official=True)


def _key_in(environ: Mapping[str, str], variable: str | None) -> str | None:
    return secret(environ[variable], variable) if variable and environ.get(variable) else None


def _split(name: object) -> tuple[str, str]:
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a model must be named as PROVIDER/NAME, such as openai/NAME, not {name!r}")
    provider, slash, model = name.partition("/")
    if not (provider and slash and model):
        known = ", ".join(PROVIDERS)
        raise ConfigError(f"a model must be named as PROVIDER/NAME, not {name!r}; providers known here: {known}")
    return provider, model


def _base(api_base: Any) -> str:
    if api_base is None:
        return ""
    if not isinstance(api_base, str) or urlsplit(api_base).scheme not in ("http", "https"):
        raise ConfigError(f"api_base must be an address such as http://127.0.0.1:8080/v1, not {api_base!r}")
    return api_base.rstrip("/")


def _by_litellm(whole: str, provider: str, api_key: str | None) -> Endpoint:
    if find_spec("litellm") is None:
        raise ConfigError(
            f"provider {provider!r} of {whole!r} is not known here (known: {', '.join(PROVIDERS)}). Give its "
            "OpenAI-compatible address as api_base=..., or install litellm for it: pip install 'corral[litellm]'"
        )
    return Endpoint(whole, whole, "litellm", "", api_key)


def _check_litellm(whole: str) -> None:
    if find_spec("litellm") is None:
        raise ConfigError(f"model {whole!r} needs litellm: pip install 'corral[litellm]'")
