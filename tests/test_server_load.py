"""An environment server under many clients, and under a machine that tries all that its description allows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread

from corral import AsyncCorralRouter, CorralRouter, CorralRunner
from corral.agents import ScriptedAgent
from corral.envs.wetlab import build_envs
from corral.envs.wetlab.agents import expert
from corral.front import SWEEP
from corral.report.files import stable_bytes
from tests.support import server_clients
from tests.support.mcp_agents import McpScriptedAgent
from tests.support.serving import serving

ENVS = "tests.support.server_envs"
IDLE = 3.0
SLOTS = 8
DOOMED = 20
CLIENT = Path(server_clients.__file__)


def doomed_client(url: str, number: int) -> subprocess.Popen[str]:
    """A client in a process of its own: every other one will hang in a call that never ends."""
    manner = "hangs" if number % 2 else "calls"
    command = [sys.executable, "-S", str(CLIENT), url.rpartition(":")[2], str(number), manner]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_in_mid_trial(client: subprocess.Popen[str]) -> str:
    """Wait until it has a trial and has used it; kill it; its trial's id."""
    with client:
        assert client.stdout is not None
        runtime_id = client.stdout.readline().strip()
        client.send_signal(signal.SIGKILL)
    assert client.returncode == -signal.SIGKILL
    return runtime_id


async def whole_trial(url: str, number: int, results: list[Any]) -> None:
    """A client that works to the end."""
    task_id = "abcd"[number % 4]
    async with AsyncCorralRouter(url) as router:
        opened = await router.create_trial(task_id, f"run-{number % 5}", trial_index=number, seed=number)
        trial = router.for_trial(opened["trial_runtime_id"], task_id)
        await trial.execute_tool(task_id, "python", {"code": f"env.mark = {number}"})
        seen = await trial.execute_tool(task_id, "python", {"code": "result = [env.mark, env.seed]"})
        record = await trial.submit_answer(task_id, number / 1000)
        await router.close_trial(opened["trial_runtime_id"])
        results.append((number, seen.result, record.score))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_hundred_clients_on_eight_slots() -> None:
    """180 work to the end while 20 more, each a process, are killed with a trial in their hands. Nobody is refused or
    mixed up, and the server's own log says when each trial was last used, and when its slot was back.
    """
    results: list[Any] = []
    killed: list[str] = []

    async def everyone(url: str) -> None:
        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(end, client)
            for number in range(180):
                tasks.start_soon(whole_trial, url, number, results)

    async def end(client: subprocess.Popen[str]) -> None:
        killed.append(await to_thread.run_sync(kill_in_mid_trial, client))

    with serving(f"{ENVS}:processes", "--pool-size", str(SLOTS), "--idle-timeout", str(IDLE)) as server:
        clients = [doomed_client(server.url, number) for number in range(DOOMED)]
        anyio.run(everyone, server.url)
        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http:
            # As many trials at once as there are slots: each slot serves.
            last = [http.post("/tasks/a/trials").json() for _ in range(SLOTS)]
            assert {opened["worker"]["slot"] for opened in last} == set(range(SLOTS))
            for opened in last:
                http.delete(f"/trials/{opened['trial_runtime_id']}")
            health = http.get("/health").json()
            assert (health["open_trials"], health["waiting"], health["pool"]["leased"]) == (0, 0, 0)
        assert server.stop() == 0
    assert sorted(results) == [(n, [n, n], n / 1000) for n in range(180)]
    lines = [json.loads(line) for line in server.lines]
    assert {line["level"] for line in lines} == {"info"}  # nothing went wrong
    closed = {line["trial"]: line for line in lines if line["event"] == "trial closed"}
    assert len(set(killed)) == DOOMED
    assert {closed[runtime_id]["why"] for runtime_id in killed} == {"idle"}
    assert [line["trial"] for line in closed.values() if line["why"] != "asked" and line["trial"] not in killed] == []
    unused = [closed[runtime_id]["unused_s"] for runtime_id in killed]
    assert all(IDLE < seconds <= IDLE + SWEEP for seconds in unused), sorted(unused)
    assert {closed[runtime_id]["slot"] for runtime_id in killed} <= set(range(SLOTS))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_wetlab_gives_the_same_report_every_way(tmp_path: Path) -> None:
    """One task of each kind and the whole chain, two trials of each, on a pool of 4."""
    alike = re.compile(r"l1-cation-[2-5]|l1-salt-[23]|l2-group-[2-5]|l2-titration-2|l3-column-[23]")
    tasks = [task for task in build_envs() if not alike.fullmatch(task)]
    assert len(tasks) == 15

    def bench(name: str, interface: Any, agent: Any = ScriptedAgent, backend: str = "asyncio", **options: Any) -> bytes:
        runner = CorralRunner(interface, agent_factory=lambda context: agent(expert), checkpoint_dir=tmp_path / name)
        run = partial(runner.abench, tasks, session_id="s", seed=1, trials_per_task=2, max_concurrency=4, **options)
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
