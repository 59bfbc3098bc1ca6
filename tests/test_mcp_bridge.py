"""A trial's tools over MCP, by the official client, old protocol and new, on asyncio and trio."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from corral import AsyncCorralRouter, CorralRunner
from corral.agents import ScriptedAgent
from corral.mcp_bridge import content_of
from corral.report.files import stable_bytes
from corral.types import ToolResponse
from corral.unwrap import unwrapped
from tests.support import server_envs
from tests.support.benches import roll_and_read
from tests.support.mcp_agents import McpScriptedAgent
from tests.support.serving import Served, serving

ENVS = "tests.support.server_envs"
pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(f"{ENVS}:threads") as server:
        yield server


def text(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_trial_by_an_mcp_client(served: Served, mode: str) -> None:
    async with AsyncCorralRouter(served.url) as router:
        opened = await router.create_trial("thread")
        trial = router.for_trial(opened["trial_runtime_id"], "thread")
        assert trial.mcp_url is not None
        async with Client(f"{trial.mcp_url}?submit=true", mode=mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            schemas = (await trial.get_available_tools_for_task("thread"))["tools"]
            for schema in schemas:
                offered = tools.pop(schema["function"]["name"])
                assert offered.description == schema["function"].get("description")
                assert offered.input_schema == schema["function"]["parameters"]
            assert tools.keys() == {"submit_answer", "surrender_task"}
            prompt = (await client.get_prompt("task")).messages[0]
            assert (prompt.role, prompt.content.text) == ("user", "task thread")  # type: ignore[union-attr]
            done = await client.call_tool("python", {"code": "result = {'a': [1, 2.5, None]}"})
            assert (done.structured_content, text(done)) == ({"result": {"a": [1, 2.5, None]}}, '{"a": [1, 2.5, null]}')
            assert text(await client.call_tool("python", {"code": "result = 'as it is'"})) == "as it is"
            failed = await client.call_tool("python", {"code": "1 / 0"})
            assert (failed.is_error, text(failed)) == (True, "ZeroDivisionError: division by zero")
            assert (await client.call_tool("python", {})).is_error
            assert "UnknownTool" in text(await client.call_tool("nothing", {}))
            scored = await client.call_tool("submit_answer", {"answer": 0.5})
            assert scored.structured_content == {"result": {"task_id": "thread", "score": 0.5, "surrendered": False}}
            with pytest.raises(MCPError, match="the answer was submitted already") as raised:
                await client.call_tool("submit_answer", {"answer": 1})
            assert raised.value.data["kind"] == "submission"
        state = await trial.get_task_state("thread")
        assert (state["submitted_answer"], len(state["tool_calls"])) == (0.5, 5)
        await router.close_trial(opened["trial_runtime_id"])


async def test_images_and_numbers_that_are_none(served: Served) -> None:
    async with AsyncCorralRouter(served.url) as router:
        async with Client((await router.create_trial("thread"))["mcp_url"]) as client:
            seen = (await client.call_tool("look", {})).content
            assert [block.type for block in seen] == ["text", "image"]
            assert seen[1].mime_type == "image/png"  # type: ignore[union-attr]
            assert base64.b64decode(seen[1].data).startswith(b"\x89PNG")  # type: ignore[union-attr]
            measured = (await client.call_tool("measure", {})).structured_content
            assert measured == {"result": {"nothing": None, "much": None, "odd": "?"}}


async def test_a_tool_of_the_environment_keeps_its_name() -> None:
    with serving(f"{ENVS}:ending") as server:
        await _call_its_submit_answer(server.url)


async def _call_its_submit_answer(url: str) -> None:
    async with AsyncCorralRouter(url) as router:
        async with Client((await router.create_trial("ending"))["mcp_url"] + "?submit=true") as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert (names.count("submit_answer"), names.count("surrender_task")) == (1, 1)
            assert text(await client.call_tool("submit_answer", {"x": 3})) == "4"
            assert text(await client.call_tool("submit_answer", {"x": 4})) == "5"  # the trial goes on


async def test_background_jobs(served: Served) -> None:
    async with AsyncCorralRouter(served.url) as router:
        async with Client((await router.create_trial("thread"))["mcp_url"]) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            poll = next(name for name in names if "poll" in name or "status" in name or name == "get_job")
            started: Any = (await client.call_tool("develop", {"seconds": 0.05})).structured_content
            job = started["result"]["job_id"]
            polled: Any = (await client.call_tool(poll, {"job_id": job, "wait_s": 10})).structured_content
            assert polled["result"]["result"] == "developed"


async def test_a_client_that_goes_away_does_not_break_the_trial(served: Served, tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    code = (
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nenv.mark = 'ended'"
    )
    async with AsyncCorralRouter(served.url) as router:
        opened = await router.create_trial("thread")
        with anyio.CancelScope() as scope:
            async with Client(opened["mcp_url"]) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "python", {"code": code})
                while not began.exists():
                    await anyio.sleep(0.01)
                scope.cancel()
        go.touch()
        trial = router.for_trial(opened["trial_runtime_id"], "thread")
        seen = await trial.execute_tool("thread", "python", {"code": "result = env.mark"})
        assert seen.result == "ended"


async def test_a_trial_that_is_closed_or_never_was(served: Served) -> None:
    async with AsyncCorralRouter(served.url) as router:
        opened = await router.create_trial("thread")
        async with Client(opened["mcp_url"]) as client:
            await router.close_trial(opened["trial_runtime_id"])
            with pytest.raises(MCPError, match=f"no trial '{opened['trial_runtime_id']}' is open here") as raised:
                await client.call_tool("python", {"code": "1"})
            assert raised.value.data["kind"] == "not_found"
        with pytest.raises(MCPError), unwrapped():
            async with Client(f"{served.url}/trials/tr_none/mcp"):
                pass


async def test_a_worker_that_dies() -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        async with AsyncCorralRouter(server.url) as router:
            async with Client((await router.create_trial("a"))["mcp_url"]) as client:
                for _ in range(2):  # once broken, broken
                    with pytest.raises(MCPError, match="was killed by signal 9") as raised:
                        await client.call_tool("python", {"code": "import os; os.kill(os.getpid(), 9)"})
                    assert (raised.value.data["kind"], raised.value.data["exit_status"]) == ("worker_died", -9)
        assert server.stop() == 0


async def test_a_result_that_is_too_large() -> None:
    with serving(f"{ENVS}:threads", "--max-result", "1MiB") as server:
        async with AsyncCorralRouter(server.url) as router:
            async with Client((await router.create_trial("thread"))["mcp_url"]) as client:
                with pytest.raises(MCPError, match=r"answer to tool python has 1\.9 MiB, over this server's") as raised:
                    await client.call_tool("python", {"code": "result = 'x' * 2_000_000"})
                assert raised.value.data["kind"] == "serialization"
                assert text(await client.call_tool("python", {"code": "result = 'fine'"})) == "fine"
        assert server.stop() == 0


async def test_behind_a_token() -> None:
    """The address that the server gives opens the trial by itself: an agent never needs the token."""
    with serving(f"{ENVS}:threads", env={**os.environ, "CORRAL_TOKEN": "s3cret"}) as server:
        async with AsyncCorralRouter(server.url, token="s3cret") as router:
            opened = await router.create_trial("thread")
            async with Client(opened["mcp_url"]) as client:
                assert text(await client.call_tool("python", {"code": "result = 'in'"})) == "in"
        assert server.stop() == 0


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}},
        {"type": "image", "mime_type": "image/png", "data": "QQ=="},
    ],
)
def test_images_as_others_write_them(part: dict[str, Any]) -> None:
    (block,) = content_of(ToolResponse(True, part)).content
    assert (block.type, block.data, block.mime_type) == ("image", "QQ==", "image/png")  # type: ignore[union-attr]


def test_the_same_report_as_in_process(tmp_path: Path) -> None:
    def bench(interface: Any, agent: Any, name: str, backend: str = "asyncio", **options: Any) -> bytes:
        runner = CorralRunner(
            interface, agent_factory=lambda context: agent(roll_and_read), checkpoint_dir=tmp_path / name
        )
        run = partial(runner.abench, session_id="s", seed=3, trials_per_task=2, max_concurrency=4, **options)
        return stable_bytes(anyio.run(run, backend=backend))

    expected = bench(server_envs.dice, ScriptedAgent, "local", worker_pool=2)
    with serving(f"{ENVS}:dice", "--pool-size", "2") as server:
        for backend in ("asyncio", "trio"):
            assert bench(AsyncCorralRouter(server.url), McpScriptedAgent, backend, backend) == expected
        assert server.stop() == 0
