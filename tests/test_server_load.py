"""An environment server under many clients, and under a machine that tries all that its description allows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from corral import AsyncCorralRouter, CorralRouter, CorralRunner
from corral.agents import ScriptedAgent
from corral.envs.wetlab import build_envs
from corral.envs.wetlab.agents import expert
from corral.report.files import stable_bytes
from tests.support.mcp_agents import McpScriptedAgent
from tests.support.serving import ROOT, serving

ENVS = "tests.support.server_envs"
IDLE = 3.0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_hundred_clients_on_eight_slots() -> None:
    """180 work to the end while 20 are killed with trials open and in the queue. Nobody is refused or mixed up."""
    results: list[tuple[int, object, float]] = []

    async def client(url: str, number: int) -> None:
        task_id = "abcd"[number % 4]
        async with AsyncCorralRouter(url) as router:
            opened = await router.create_trial(task_id, f"run-{number % 5}", trial_index=number, seed=number)
            trial = router.for_trial(opened["trial_runtime_id"], task_id)
            await trial.execute_tool(task_id, "python", {"code": f"env.mark = {number}"})
            seen = await trial.execute_tool(task_id, "python", {"code": "result = [env.mark, env.seed]"})
            record = await trial.submit_answer(task_id, number / 1000)
            await router.close_trial(opened["trial_runtime_id"])
            results.append((number, seen.result, record.score))

    async def everyone(url: str) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(180):
                tasks.start_soon(client, url, number)

    with serving(f"{ENVS}:processes", "--pool-size", "8", "--idle-timeout", str(IDLE)) as server:
        doomed = subprocess.Popen([sys.executable, "-m", "tests.support.server_clients", server.url], cwd=ROOT,
                                  stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert doomed.stdout is not None
        for _ in range(8):  # they hold every slot
            assert doomed.stdout.readline() == "open\n"
        with httpx.Client(base_url=server.url, trust_env=False) as http:
            assert http.get("/health").json()["pool"]["leased"] == 8
            doomed.kill()
            killed = time.monotonic()
            anyio.run(everyone, server.url)
            health = http.get("/health").json()
            while health["open_trials"] or health["waiting"]:
                assert time.monotonic() - killed < 60
                health = http.get("/health").json()
        doomed.wait(10)
        doomed.stdout.close()
        idle = [line for line in server.lines if '"why": "idle"' in line]
        assert server.stop() == 0
    assert sorted(results) == [(n, [n, n], n / 1000) for n in range(180)]
    assert 8 <= len(idle) <= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wetlab_gives_the_same_report_every_way(tmp_path: Path) -> None:
    half = [task for task in build_envs() if not task.endswith(("-2", "-3")) or "chain" in task]

    def bench(name: str, interface: Any, agent: Any = ScriptedAgent, backend: str = "asyncio", **options: Any) -> bytes:
        runner = CorralRunner(interface, agent_factory=lambda context: agent(expert), checkpoint_dir=tmp_path / name)
        run = partial(runner.abench, session_id="s", seed=1, max_concurrency=4, task_ids=half, **options)
        return stable_bytes(anyio.run(run, backend=backend))

    expected = bench("local", build_envs, worker_pool=4)
    with serving("corral.envs.wetlab:build_envs", "--pool-size", "4") as server, CorralRouter(server.url) as router:
        own = AsyncCorralRouter(server.url)
        assert bench("sync", router) == expected
        assert bench("asyncio", own) == expected
        assert bench("trio", own, backend="trio") == expected
        assert bench("mcp", own, McpScriptedAgent) == expected
        assert server.stop() == 0


SOUND = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "response_headers_conformance,use_after_free,ensure_resource_availability"
)
REFUSES = ",negative_data_rejection"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("phases", "checks"),
    # The coverage phase counts it as wrong that a header nobody knows is passed over, as HTTP wants it.
    [("examples,coverage", SOUND), ("fuzzing,stateful", SOUND + REFUSES)],
)
def test_the_description_is_true(phases: str, checks: str, tmp_path: Path) -> None:
    """schemathesis makes requests from openapi.json, right and wrong ones, and checks every answer against it."""
    with serving(f"{ENVS}:threads", env={**os.environ, "CORRAL_TOKEN": "t"}) as server:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("st")), "run", f"{server.url}/openapi.json",
             "--header", "Authorization: Bearer t", "--checks", checks, "--max-examples", "25", "--seed", "1",
             "--no-color", "--phases", phases],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        assert server.stop() == 0
