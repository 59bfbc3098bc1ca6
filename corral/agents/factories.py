"""Factories of agents on a model, for ``python -m corral.pool --agent corral.agents.factories:react --model ...``."""

from __future__ import annotations

from typing import Any

from corral.agents.claude_code import ClaudeCodeAgent
from corral.agents.react import ReActAgent
from corral.agents.tool_calling import ToolCallingAgent


def tool_calling(context: object, model: str, **options: Any) -> ToolCallingAgent:
    """An agent on the model's native tool calls."""
    return ToolCallingAgent(model, **options)


def react(context: object, model: str, **options: Any) -> ReActAgent:
    """An agent that thinks and acts in text."""
    return ReActAgent(model, **options)


def claude_code(context: object, model: str | None = None, **options: Any) -> ClaudeCodeAgent:
    """Claude Code."""
    return ClaudeCodeAgent(model, **options)
