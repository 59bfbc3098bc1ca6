"""Agents: what tries to solve a task. They know routers and tools, never the pool."""

from __future__ import annotations

from corral.agents.base import AgentRunResult, BaseAgent
from corral.agents.scripted import Lab, ScriptedAgent, ToolFailed

__all__ = ["AgentRunResult", "BaseAgent", "Lab", "ScriptedAgent", "ToolFailed"]
