"""Claude Code as an agent: the real program, with the trial's tools over MCP and nothing else.

Guarantees
    * Its only tools are the trial's: built-in ones are off, no settings, plugins or servers of the user are read.
    * Each trial has a HOME and a working directory of its own, which are gone afterwards; no variable of Claude Code or
      of Anthropic's clients gets through from the surroundings.
    * A run that ends because of its endpoint or of the MCP connection is an error of the infrastructure, however
      cheerfully the program reports it.
Needs ``corral[claude]``: the wheel of claude-agent-sdk carries the program. Works on asyncio and trio.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any

from corral.agents.answers import answer_in
from corral.agents.base import AgentRunResult, BaseAgent, Hook
from corral.agents.claude_program import Run, find_program, running
from corral.agents.claude_transcript import Event, turn_of, usage_in, written
from corral.agents.llm.errors import EndpointError, RequestRefused
from corral.agents.llm.messages import prompt_messages, text_of
from corral.agents.mcp_endpoint import serving_tools
from corral.credentials import secret
from corral.errors import ConfigError, InfrastructureError
from corral.scratch import named_folder
from corral.types import check_count, check_seconds

SERVER = "corral"
"""The name of the trial's MCP server; the model sees its tools as ``mcp__corral__NAME``."""

ROLE = """\
Solve the task with the tools. Look at each result before you decide on the next step. When you have the answer, end \
with a line `Answer: ...` that holds the answer alone, in the format that the task asks for."""
_SURRENDER = "To give the task up without an answer, end with the line `Answer: I SURRENDER`."
_SURRENDERED = "i surrender"

_REFUSED = frozenset({400, 404, 413, 422})


class ClaudeCodeAgent(BaseAgent):
    """Runs Claude Code on each trial.

    ``model`` is ``anthropic/NAME``, or None for the program's own choice. ``api_base`` and ``api_key``: another
    endpoint that speaks Anthropic's protocol, and its key (default: ANTHROPIC_API_KEY). ``timeout`` (seconds) and
    ``retries`` bound its requests; ``program`` is another Claude Code than the one that came with ``corral[claude]``.
    Further options become its flags: ``effort="high"`` is ``--effort high``.
    """

    default_model = "claude-code"

    def __init__(
        self,
        model: str | None = None,
        *,
        max_iterations: int = 200,
        system_prompt: str | None = None,
        hooks: Mapping[str, Hook] | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 6,
        program: str | os.PathLike[str] | None = None,
        **flags: Any,
    ) -> None:
        super().__init__(model, max_iterations=max_iterations, system_prompt=system_prompt, hooks=hooks, **flags)
        self._program = find_program(program)
        self._model = model.removeprefix("anthropic/") if model else None
        self._base = api_base.rstrip("/").removesuffix("/v1") if api_base else None
        key = api_key or os.environ.get("ANTHROPIC_API_KEY") or None
        self._key = secret(key, "api_key" if api_key else "ANTHROPIC_API_KEY") if key else None
        if self._key is None:
            raise ConfigError("Claude Code needs a key: set ANTHROPIC_API_KEY, or give api_key=...")
        self._timeout = check_seconds(timeout, "timeout") or 600.0
        self._retries = check_count(retries, "retries", least=0)

    async def arun(self, interface: Any, task_id: str, **kwargs: Any) -> AgentRunResult:
        """Run the program until it gives its result."""
        prompt = "\n\n".join(text_of(m["content"]) for m in prompt_messages(await interface.get_task_prompt(task_id)))
        self.messages.append({"role": "user", "content": prompt})
        url = getattr(interface, "mcp_url", None)
        async with nullcontext(url) if url else serving_tools(interface, task_id) as address:
            # Named as Corral's scratch folders are: what a killed run leaves, keys included, the next one removes.
            with named_folder() as folder:
                home, work = Path(folder), Path(folder, "work")
                work.mkdir()
                command = self._command(home, str(address), getattr(interface, "mcp_headers", None))
                async with running(command, prompt, cwd=work, environment=self._environment(home)) as run:
                    return await self._follow(run)

    async def _follow(self, run: Run) -> AgentRunResult:
        turns: set[str] = set()
        async with aclosing(run.events()) as events:
            async for event in events:
                if event.get("type") == "system" and event.get("subtype") == "init":
                    _check_mcp(event)
                if event.get("type") == "result":
                    return self._concluded(event, len(turns))
                self.messages += written(event)
                turn = turn_of(event)
                if turn is not None and turn not in turns:
                    turns.add(turn)
                    self._count_turn()
        raise InfrastructureError("Claude Code ended without a result", output=run.printed)

    def _count_turn(self) -> None:
        """For the hooks; the program bounds the number of turns itself, and gives its usage only at its own end."""
        if self.iterations < self.max_iterations:
            self.next_iteration()

    def _concluded(self, result: Event, requests: int) -> AgentRunResult:
        """What the program's last word amounts to. Its ``subtype`` is "success" even if its endpoint was down."""
        self.count_tokens(usage_in(result, requests))
        usage, messages = dict(self.token_usage), list(self.messages)
        kind, text = str(result.get("subtype")), str(result.get("result") or "")
        if kind == "error_max_turns":
            reason = f"no answer within {self.max_iterations} iterations"
            return AgentRunResult(None, "max_iterations", reason, usage, messages)
        if kind == "error_max_budget_usd":
            return AgentRunResult(None, "no_answer", "its budget is spent", usage, messages)
        if result.get("is_error") or kind != "success":
            raise self._failure(result.get("api_error_status"), text or "; ".join(result.get("errors") or [kind]))
        answer = answer_in(text)
        if self.enable_surrender and answer.lower().strip(" .!") == _SURRENDERED:
            return AgentRunResult(None, "surrender", None, usage, messages)
        return AgentRunResult(answer, "success", None, usage, messages)

    def _failure(self, status: int | None, reason: str) -> Exception:
        if status in _REFUSED:
            return RequestRefused.answered(self.model, status, reason)
        if status is not None:
            return EndpointError.answered(self.model, status, reason, 1)
        return EndpointError.silent(self.model, self._base or "its default address", reason, 1)

    def _command(self, home: Path, mcp_url: str, headers: Mapping[str, str] | None) -> list[str]:
        server = {"type": "http", "url": mcp_url, "headers": dict(headers or {})}
        servers = home / "mcp.json"  # a file: others can read a command line, and the address is a secret
        servers.write_text(json.dumps({"mcpServers": {SERVER: server}}), "utf-8")
        role = "\n\n".join(filter(None, [self.system_prompt, ROLE, _SURRENDER if self.enable_surrender else ""]))
        flags: dict[str, Any] = {
            "output-format": "stream-json", "tools": "", "allowedTools": f"mcp__{SERVER}", "mcp-config": servers,
            "setting-sources": "", "permission-mode": "dontAsk", "max-turns": self.max_iterations,
            "system-prompt": role, "model": self._model,
            **{name.replace("_", "-"): value for name, value in self.llm_options.items()},
        }  # fmt: skip
        switches = ["print", "verbose", "bare", "strict-mcp-config", "no-session-persistence"]
        given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
        return [self._program, *(f"--{name}" for name in switches), *given]

    def _environment(self, home: Path) -> dict[str, str]:
        """The surroundings' variables without those that would steer the program, and its own."""
        own = {
            "HOME": str(home), "XDG_CONFIG_HOME": str(home / ".config"), "XDG_CACHE_HOME": str(home / ".cache"),
            "XDG_DATA_HOME": str(home / ".local/share"), "CLAUDE_CONFIG_DIR": str(home / ".claude"),
            "ANTHROPIC_API_KEY": str(self._key), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_RETRIES": str(self._retries), "API_TIMEOUT_MS": str(int(self._timeout * 1000)),
        }  # fmt: skip
        base = {"ANTHROPIC_BASE_URL": self._base} if self._base else {}
        others = {name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CLAUDE"))}
        return {**others, **own, **base}


def _check_mcp(init: Event) -> None:
    """The program goes on without tools if its MCP server cannot be reached, and only this event shows it."""
    states = {server["name"]: server["status"] for server in init.get("mcp_servers", ())}
    if states.get(SERVER) != "connected":
        state = states.get(SERVER, "missing")
        raise InfrastructureError(f"Claude Code could not reach the trial's tools: its MCP connection is {state!r}")
