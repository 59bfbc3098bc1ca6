"""An agent on a model's native tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from corral.agents.answers import answer_in, marked_answer
from corral.agents.llm.messages import Reply, ToolRequest, tool_message
from corral.agents.model_agent import SURRENDER, ModelAgent

SUBMIT = "submit_answer"

_ROLE = """\
Solve the task with the tools. Look at each result before you decide on the next step. When you have the answer, call \
submit_answer with it, in the format that the task asks for: that ends the task."""
_ROLE_PLAIN = """\
Solve the task with the tools. Look at each result before you decide on the next step. When you have the answer, reply \
with it alone, in the format that the task asks for, and without a tool call: that ends the task."""
_GO_ON = "If that was your answer, call submit_answer with it alone; if not, go on with the tools."
_CUT = "Your reply was cut off at its token limit. Go on, in fewer words."
_EMPTY = "Your reply was empty. Go on with the tools, or give your answer."

_SUBMIT_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SUBMIT,
        "description": "Hand in the final answer. This ends the task.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer alone, in the format asked for."}},
            "required": ["answer"],
        },
    },
}
_SURRENDER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SURRENDER,
        "description": "Give the task up without an answer. This ends the task.",
        "parameters": {"type": "object", "properties": {"reason": {"type": "string"}}},
    },
}


class ToolCallingAgent(ModelAgent):
    """Gives the model the environment's tools as its own, and runs what it calls: several of one turn in their order.

    The model ends by calling ``submit_answer``, which is added to the tools; with ``submit_tool=False``, or where the
    environment has a tool of that name, by a reply without a call. Other options: see ModelAgent.
    """

    def __init__(self, model: str, *, submit_tool: bool = True, **options: Any) -> None:
        super().__init__(model, **options)
        self.submit_tool = submit_tool
        self._tools: list[Mapping[str, Any]] = []
        self._own: set[str] = set()
        self._idle = 0

    async def _open(self, interface: Any, task_id: str) -> None:
        tools = (await interface.get_available_tools_for_task(task_id))["tools"]
        taken = {tool["function"]["name"] for tool in tools}
        own = [tool for wanted, tool in ((self.submit_tool, _SUBMIT_TOOL), (self.enable_surrender, _SURRENDER_TOOL))
               if wanted and tool["function"]["name"] not in taken]  # fmt: skip
        self._tools = [*tools, *own]
        self._own = {str(tool["function"]["name"]) for tool in own}
        self._idle = 0
        role = _ROLE if SUBMIT in self._own else _ROLE_PLAIN
        self.messages += [self._system(role), *await self._task_messages(interface, task_id)]

    def _offered(self) -> Sequence[Mapping[str, Any]]:
        return self._tools

    async def _act(self, reply: Reply, interface: Any, task_id: str) -> Any:
        if not reply.calls:
            return self._without_call(reply)
        self._idle = 0
        answer = None
        for call in reply.calls:
            if answer is not None:
                content, fine = "not called: the answer was given before", False
            elif call.problem is not None:
                content, fine = f"Error: {call.problem}", False
            elif call.name in self._own:
                answer, content, fine = self._surrendered(call) if call.name == SURRENDER else self._submitted(call)
            else:
                content, fine = await self._call_tool(interface, task_id, call.name, call.arguments)
            self.messages.append(tool_message(call, content, is_error=not fine))
        return answer

    def _submitted(self, call: ToolRequest) -> tuple[Any, str, bool]:
        if "answer" not in call.arguments:
            return None, "Error: the argument 'answer' is missing", False
        answer = call.arguments["answer"]
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
        return text, "submitted", True

    def _surrendered(self, call: ToolRequest) -> tuple[Any, str, bool]:
        self.messages.append(tool_message(call, "surrendered"))
        self.surrender(str(call.arguments.get("reason", "")))

    def _without_call(self, reply: Reply) -> str | None:
        """A reply without a call is the answer, if it says so or stays so."""
        marked = marked_answer(reply.text)
        if marked is not None and not reply.was_cut:
            return marked
        self._idle += 1
        if reply.text and not reply.was_cut and (SUBMIT not in self._own or self._idle > 1):
            return answer_in(reply.text)
        if self._idle > 2:
            return answer_in(reply.text)
        remark = _CUT if reply.was_cut else _GO_ON if reply.text else _EMPTY
        self.messages.append({"role": "user", "content": remark})
        return None
