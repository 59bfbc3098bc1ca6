"""An agent that thinks and acts in text (ReAct): for any model, native tool calls or not."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from corral.agents import react_format
from corral.agents.llm.messages import Message, Reply
from corral.agents.model_agent import SURRENDER, GaveUp, ModelAgent
from corral.agents.react_format import FORMAT, Step, describe

PATIENCE = 5
"""Replies in a row that cannot be read before the trial ends without an answer."""

_SURRENDER = f"\n\nTo give the task up without an answer, use the action {SURRENDER}."
_OBSERVATION = "Observation: "
_INSTEAD_OF_ANSWER = frozenset({"answer", "final_answer", "final answer", "submit_answer", "finish"})
"""Names under which models call the answer as if it were a tool."""


class ReActAgent(ModelAgent):
    """Asks for a thought and an action, runs it, gives back the observation, until there is an answer.

    The tools are described in the prompt. A reply that cannot be read is sent back with what is wrong with it.
    Options: see ModelAgent.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._tools: list[str] = []
        self._unread = 0

    async def _open(self, interface: Any, task_id: str) -> None:
        tools = (await interface.get_available_tools_for_task(task_id))["tools"]
        self._tools = [tool["function"]["name"] for tool in tools]
        self._unread = 0
        surrender = _SURRENDER if self.enable_surrender else ""
        role = f"Solve the task with these tools.\n\n{describe(tools)}\n\n{FORMAT}{surrender}"
        self.messages += [self._system(role), *await self._task_messages(interface, task_id)]

    def _is_result(self, message: Message) -> bool:
        content = message["content"]
        return message["role"] == "user" and isinstance(content, str) and content.startswith(_OBSERVATION)

    async def _act(self, reply: Reply, interface: Any, task_id: str) -> Any:
        step = react_format.read(reply.text, was_cut=reply.was_cut)
        answer = step.answer if step.answer is not None else self._answer_as_action(step)
        if answer is not None:
            return answer
        if step.action == SURRENDER and self.enable_surrender and SURRENDER not in self._tools:
            self.surrender(str(step.arguments.get("reason", step.thought)))
        problem = step.problem or self._unknown(str(step.action))
        if problem:
            self._observe(self._corrected(problem))
        else:
            self._unread = 0
            text, _ = await self._call_tool(interface, task_id, str(step.action), step.arguments)
            self._observe(text)
        return None

    def _answer_as_action(self, step: Step) -> str | None:
        if step.action is None or step.action.lower() not in _INSTEAD_OF_ANSWER or step.action in self._tools:
            return None
        values = list(step.arguments.values())
        return str(values[0]) if len(values) == 1 else None

    def _unknown(self, action: str) -> str | None:
        if action in self._tools:
            return None
        near = get_close_matches(action, self._tools, 1)
        hint = f"did you mean {near[0]}?" if near else "the tools are " + ", ".join(self._tools)
        return f"there is no tool {action!r}; {hint}"

    def _corrected(self, problem: str) -> str:
        self._unread += 1
        if self._unread >= PATIENCE:
            raise GaveUp(f"{PATIENCE} replies in a row could not be used; the last one: {problem}")
        return f"Error: {problem}.\n\n{FORMAT}"

    def _observe(self, text: str) -> None:
        self.messages.append({"role": "user", "content": _OBSERVATION + text})
