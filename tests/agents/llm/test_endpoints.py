from __future__ import annotations

from typing import Any

import pytest

from corral.agents.llm import endpoints
from corral.agents.llm.endpoints import resolve
from corral.errors import ConfigError


def test_a_known_provider_takes_its_key_from_its_variable() -> None:
    endpoint = resolve("openai/gpt-x", environ={"OPENAI_API_KEY": "secret"})
    assert (endpoint.model, endpoint.base, endpoint.key) == ("gpt-x", "https://api.openai.com/v1", "secret")
    assert endpoint.is_official
    assert "secret" not in repr(endpoint)


def test_a_missing_key_is_a_clear_refusal() -> None:
    with pytest.raises(ConfigError, match=r"'anthropic/m' needs a key: set ANTHROPIC_API_KEY, or give api_key"):
        resolve("anthropic/m", environ={})


def test_a_name_may_hold_slashes() -> None:
    assert resolve("openrouter/vendor/model", api_key="k").model == "vendor/model"


@pytest.mark.parametrize("name", ["gpt-4o", "", "openai/", "/x", None, 3])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(ConfigError, match="PROVIDER/NAME"):
        resolve(name)


def test_an_address_of_ones_own_needs_no_key_and_no_known_provider() -> None:
    endpoint = resolve("mine/llama", api_base="http://127.0.0.1:8080/v1/", environ={})
    assert (endpoint.protocol, endpoint.base, endpoint.key) == ("openai", "http://127.0.0.1:8080/v1", None)
    assert endpoint.is_loopback
    assert not endpoint.is_official


def test_anthropic_elsewhere_speaks_anthropic() -> None:
    assert resolve("anthropic/m", api_base="http://gateway.test", environ={}).protocol == "anthropic"


@pytest.mark.parametrize("base", ["127.0.0.1:80", "ftp://x", 5])
def test_an_address_that_is_none(base: Any) -> None:
    with pytest.raises(ConfigError, match="api_base must be an address"):
        resolve("openai/m", api_base=base)


def test_an_unknown_provider_names_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'bedrock'.*api_base.*pip install 'corral\[litellm\]'"):
        resolve("bedrock/m")
    with pytest.raises(ConfigError, match=r"litellm/openai/m.*corral\[litellm\]"):
        resolve("litellm/openai/m")


def test_an_unknown_provider_goes_to_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "find_spec", lambda name: object())
    assert resolve("bedrock/m").protocol == "litellm"
    assert resolve("bedrock/m").model == "bedrock/m"
    assert resolve("litellm/openai/m").model == "openai/m"
