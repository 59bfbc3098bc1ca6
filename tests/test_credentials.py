"""Keys and tokens are taken as files leave them, and shown nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corral import CorralRouter, Environment, create_benchmark_server
from corral.agents import ClaudeCodeAgent, ToolCallingAgent
from corral.agents.llm.endpoints import resolve
from corral.credentials import header_value, secret, without_login
from corral.errors import ConfigError
from tests.support.agent_envs import only_trial
from tests.support.raw_http import free_port

HIDDEN = "sk-live-SECRET"


@pytest.mark.parametrize("around", [f"{HIDDEN}\n", f"{HIDDEN}\r\n", f"  {HIDDEN}\t"])
def test_white_space_around_a_key_is_no_part_of_it(around: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert secret(around, "key") == HIDDEN
    assert resolve("openai/m", api_key=around).key == HIDDEN
    assert resolve("openai/m", environ={"OPENAI_API_KEY": around}).key == HIDDEN
    monkeypatch.setenv("CORRAL_TOKEN", around)
    assert CorralRouter("http://127.0.0.1:1").link.token == HIDDEN


@pytest.mark.parametrize("bad", [f"{HIDDEN}\nx", f"{HIDDEN}\x00", f"{HIDDEN}\u00e9", f"\u201c{HIDDEN}\u201d"])
def test_what_no_header_carries_is_refused_at_once_and_not_shown(bad: str) -> None:
    for use in (
        lambda: ToolCallingAgent("openai/m", api_key=bad),
        lambda: ToolCallingAgent("local/m", api_base="http://127.0.0.1:1", headers={"x-key": bad}),
        lambda: ClaudeCodeAgent(api_key=bad, program="/bin/true"),
        lambda: CorralRouter("http://127.0.0.1:1", token=bad),
        lambda: create_benchmark_server({"t": Environment("t")}, token=bad),
    ):
        with pytest.raises(ConfigError, match="printable ASCII") as refused:
            use()
        assert HIDDEN not in str(refused.value)


def test_it_is_said_which_one_it_is() -> None:
    with pytest.raises(ConfigError, match=r"^OPENAI_API_KEY must be text of printable"):
        resolve("openai/m", environ={"OPENAI_API_KEY": "a\nb"})
    with pytest.raises(ConfigError, match=r"^the header 'x-key' must be text"):
        ToolCallingAgent("local/m", api_base="http://127.0.0.1:1", headers={"x-key": "a\nb"})
    with pytest.raises(ConfigError, match=r"^token must not be empty"):
        CorralRouter("http://127.0.0.1:1", token=" ")
    assert header_value("", "an empty header") == ""


@pytest.mark.parametrize(("url", "shown"), [
    ("http://me:pw@host:80/v1?key=k#f", "http://host:80/v1"), ("https://host/v1", "https://host/v1"), ("", ""),
])  # fmt: skip
def test_an_address_is_shown_without_who_logs_in(url: str, shown: str) -> None:
    assert without_login(url) == shown


@pytest.mark.anyio
async def test_a_password_in_an_address_reaches_no_record(tmp_path: Path) -> None:
    def make(context: Any) -> ToolCallingAgent:
        return ToolCallingAgent("local/m", api_base=f"http://me:{HIDDEN}@127.0.0.1:{free_port()}/v1", backoff=0)

    trial = await only_trial(tmp_path, make)
    assert "gave no answer" in str(trial.error_message)
    kept = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert kept
    assert [file for file in kept if HIDDEN.encode() in file.read_bytes()] == []
