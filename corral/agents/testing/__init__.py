"""A model that follows a script, behind a real HTTP endpoint: for tests of agents, tutorials and dry runs.

::

    from corral.agents import ToolCallingAgent
    from corral.agents.testing import ScriptedEndpoint, following

    endpoint = ScriptedEndpoint(following(expert))    # expert(lab, prompt), as for a ScriptedAgent
    with endpoint.serving() as url:
        agent = ToolCallingAgent("openai/scripted", api_base=f"{url}/v1", api_key="any")
        ...
    print(endpoint.usage)

It plays OpenAI's chat completions and Anthropic's messages, as JSON and as event streams, counts tokens, and fails on
order (`Faults`).
"""

from __future__ import annotations

from corral.agents.testing.endpoint import ScriptedEndpoint, Served
from corral.agents.testing.faults import Fault, Faults
from corral.agents.testing.scripts import Call, Conversation, Result, Script, Turn, following, saying

__all__ = [
    "Call", "Conversation", "Fault", "Faults", "Result", "Script", "ScriptedEndpoint", "Served", "Turn", "following",
    "saying",
]  # fmt: skip
