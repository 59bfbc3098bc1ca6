"""``python -m corral.pool --model PROVIDER/NAME --api-base URL``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.agents.testing import ScriptedEndpoint, following
from tests.support.agent_envs import weigher

ROOT = Path(__file__).resolve().parents[2]


def _corral(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    keys = {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    surroundings = {name: value for name, value in os.environ.items() if name not in keys}
    return subprocess.run(
        [sys.executable, "-m", "corral.pool", "--size", "1", "--envs", "tests.support.agent_envs:build",
         "--checkpoint-dir", str(folder), "--retries", "0", "--json", *arguments],
        env={**surroundings, "PYTHONPATH": str(ROOT), **environment}, cwd=ROOT, capture_output=True, text=True,
        timeout=50, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("agent", [[], ["--agent", "corral.agents.factories:react"]], ids=["tool-calling", "react"])
def test_a_model_solves_the_tasks(agent: list[str], tmp_path: Path) -> None:
    endpoint = ScriptedEndpoint(following(weigher), key="secret")
    with endpoint.serving() as url:
        model = ["--model", "openai/m", "--api-base", f"{url}/v1"]
        done = _corral(tmp_path, *model, *agent, OPENAI_API_KEY="secret")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["graded"], document["average_score"]) == (1, 1.0)
    report = json.loads(Path(document["report"]).read_text())
    assert {name: report["token_usage"][name] for name in endpoint.usage} == endpoint.usage


def test_a_wrong_key_is_no_success(tmp_path: Path) -> None:
    """Nothing graded, the exit status says so, the cause is named."""
    with ScriptedEndpoint(following(weigher), key="secret").serving() as url:
        model = ["--model", "openai/m", "--api-base", f"{url}/v1"]
        done = _corral(tmp_path, *model, OPENAI_API_KEY="wrong")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["graded"], document["not_graded"]) == (0, {"infrastructure": 1})
    assert "invalid api key" in Path(document["report"]).read_text()


def test_a_missing_key_starts_nothing(tmp_path: Path) -> None:
    done = _corral(tmp_path, "--model", "anthropic/m")
    assert done.returncode == 2
    assert "set ANTHROPIC_API_KEY" in done.stderr
    assert not list(tmp_path.iterdir())
