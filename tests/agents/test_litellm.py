"""Models by way of litellm, against the scripted endpoint. Runs where ``corral[litellm]`` is."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from corral.agents import ToolCallingAgent
from corral.agents.llm.backoff import Backoff
from corral.agents.testing import Fault, Faults, ScriptedEndpoint, following
from tests.support.agent_envs import only_trial, weigher
from tests.support.endpoints import serving

pytestmark = [
    pytest.mark.skipif(find_spec("litellm") is None, reason="corral[litellm] is not installed"),  # importing takes long
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # litellm's own, at import and per call
]


def _agent(url: str, **options: Any) -> ToolCallingAgent:
    patience = Backoff(retries=2, first=0.01)
    return ToolCallingAgent(
        "litellm/openai/gpt-4o", **{"api_base": f"{url}/v1", "api_key": "k", "backoff": patience, **options}
    )


async def test_it_solves_a_task_and_reports_what_the_endpoint_counted(tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(following(weigher))
    with serving(endpoint) as url:
        trial = await only_trial(tmp_path, lambda _: _agent(url, prices=True))
    assert trial.score == 1.0
    assert {name: trial.token_usage[name] for name in endpoint.usage} == endpoint.usage
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"


async def test_retry_after_is_waited_out_and_nothing_else_retries(tmp_path: Path) -> None:
    faults = Faults(at={0: Fault(status=429, retry_after=0.4), 2: Fault(status=500)})
    endpoint = ScriptedEndpoint(following(weigher), faults=faults)
    with serving(endpoint) as url:
        trial = await only_trial(tmp_path, lambda _: _agent(url))
    assert (trial.score, [one.status for one in endpoint.served]) == (1.0, [429, 200, 500, 200, 200, 200])
    assert endpoint.served[1].at - endpoint.served[0].at >= 0.4


@pytest.mark.parametrize(
    ("fault", "kind", "requests"),
    [(Fault(status=402), "infrastructure", 1), (Fault(status=401), "infrastructure", 1),
     (Fault(status=400), "agent", 1), (Fault(status=503), "infrastructure", 3), (Fault("cut"), "infrastructure", 3)],
    ids=["402", "401", "400", "503", "cut"],
)  # fmt: skip
async def test_failures_by_their_kind(fault: Fault, kind: str, requests: int, tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(following(weigher), faults=Faults(always=fault))
    with serving(endpoint) as url:
        trial = await only_trial(tmp_path, lambda _: _agent(url))
    assert (trial.failure, trial.graded, len(endpoint.served)) == (kind, False, requests)


def test_prices_of_its_table() -> None:
    from corral.agents.llm.by_litellm import cost

    usage = {"input_tokens": 1_000_000, "cached_input_tokens": 500_000, "output_tokens": 100_000}
    assert cost("openai/gpt-4o", usage) == pytest.approx(0.5 * 2.5 + 0.5 * 1.25 + 1.0)
    assert cost("nobody/nothing", usage) == 0.0
