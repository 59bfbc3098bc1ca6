"""Agents: what tries to solve a task. They know routers and tools, never the pool."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from corral.agents.base import AgentRunResult, BaseAgent
from corral.agents.scripted import Lab, ScriptedAgent, ToolFailed

if TYPE_CHECKING:
    from corral.agents.claude_code import ClaudeCodeAgent
    from corral.agents.react import ReActAgent
    from corral.agents.tool_calling import ToolCallingAgent

__all__ = [
    "AgentRunResult", "BaseAgent", "ClaudeCodeAgent", "Lab", "ReActAgent", "ScriptedAgent", "ToolCallingAgent",
    "ToolFailed",
]  # fmt: skip

_LATE = {
    "ClaudeCodeAgent": "corral.agents.claude_code",
    "ReActAgent": "corral.agents.react",
    "ToolCallingAgent": "corral.agents.tool_calling",
}
"""Imported when they are first named: they bring an HTTP client along."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
