"""The environment server over HTTP: what each route answers, who may come in, what is shared and what is not."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from corral import CorralRouter, create_benchmark_server
from corral.errors import ConfigError, EnvStartError, NotFound, SubmissionError, ToolTimeout, WorkerDied
from corral.protocol import KEY_HEADER, WAIT_HEADER
from tests.support.serving import Served, serving, until

ENVS = "tests.support.server_envs"
ODD = "dir/with space"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(f"{ENVS}:build", "--pool-size", "2", "--max-body", "1MiB", "--max-result", "1MiB") as server:
        until(lambda: httpx.get(f"{server.url}/health", trust_env=False).json()["pool"]["idle"] == 2)
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=20, trust_env=False) as client:
        yield client


@pytest.fixture
def router(served: Served) -> Iterator[CorralRouter]:
    with CorralRouter(served.url) as router:
        yield router


def trial(http: httpx.Client, task_id: str, **order: Any) -> str:
    opened = http.post(f"/tasks/{task_id}/trials", json=order)
    assert opened.status_code == 200, opened.text
    return str(opened.json()["trial_runtime_id"])


def run(http: httpx.Client, place: str, code: str, **headers: str) -> httpx.Response:
    body = {"tool_name": "python", "arguments": {"code": code}}
    return http.post(f"{place}/tools/execute", json=body, headers=headers)


def _is(http: httpx.Client, name: str, value: int) -> bool:
    return bool(http.get("/health").json()[name] == value)


# ---- what there is ----


def test_it_tells_what_there_is(http: httpx.Client, served: Served) -> None:
    assert http.get("/tasks").json() == {"tasks": ["thread", "process", "serial", ODD]}
    assert http.get("/concurrency").json()["process"] == "process"
    assert http.get("/dependency_chain").json() == {"supported": True}
    assert http.get("/dependency_graph").json() == {"thread": [], "process": [], "serial": [], ODD: []}
    assert http.get("/trial_worker").json() == {"active": True, "size": 2}
    health = http.get("/health").json()
    assert (health["status"], health["server_id"], health["tasks"]) == ("ok", served.server_id, 4)
    assert health["pool"]["size"] == 2
    metrics = http.get("/metrics").text
    assert "corral_slots 2.0" in metrics
    assert "corral_trials_open" in metrics


def test_the_api_is_described(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()
    assert {"get", "post"} & described["paths"]["/tasks/{task_id}/prompt"].keys() == {"get"}
    body = described["paths"]["/trials/{trial_id}/submit"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Submit"}
    assert described["components"]["schemas"]["Problem"]["required"] == ["kind", "detail"]
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/trials/{trial_id}/tools/execute" in page.text


def test_a_trial_from_beginning_to_end(http: httpx.Client) -> None:
    opened = http.post("/tasks/process/trials", json={"trial_index": 3, "seed": 7}).json()
    place = f"/trials/{opened['trial_runtime_id']}"
    assert opened["mcp_url"] == f"http://127.0.0.1:{http.base_url.port}{place}/mcp"
    assert http.get(f"{place}/prompt").json() == {"prompt": "task process"}
    assert "task process" in http.get(f"{place}/guide").json()["guide"]
    assert "python(code)" in http.get(f"{place}/tools/guide?verbosity=full").json()["guide"]
    tools = http.get(f"{place}/tools?verbosity=minimal").json()["tools"]
    assert "python" in [tool["function"]["name"] for tool in tools]
    assert http.post(f"{place}/configure").json() == {"message": "nothing to set up"}
    seen = run(http, place, "import os; result = [env.seed, str(env.current_work_dir), os.getpid()]").json()
    assert seen == {"success": True, "result": [7, opened["workspace"], opened["worker"]["trial_pid"]], "error": None}
    assert http.get(f"{place}/status").json()["tool_calls"] == 1
    assert http.get(f"{place}/state").json()["task_id"] == "process"
    record = http.post(f"{place}/submit", json={"answer": 0.75}).json()
    assert (record["score"], record["trial_index"], record["task_id"]) == (0.75, 3, "process")
    again = http.post(f"{place}/submit", json={"answer": 1})
    assert (again.status_code, again.json()["kind"]) == (409, "submission")
    assert http.delete(place).json()["warnings"] == []
    assert http.delete(place).status_code == 404
    assert http.get(f"{place}/prompt").json()["kind"] == "not_found"


def test_what_the_server_saw_pass(http: httpx.Client) -> None:
    """Of a trial that goes on, of one that is submitted, and of one that broke."""
    place = f"/trials/{trial(http, 'process', trial_index=2)}"
    history = {"phase": "set-up", "running": 0, "calls": 0, "fault": None, "result": None}
    assert http.get(f"{place}/history").json() == history
    run(http, place, "result = {'a': 1}")
    run(http, place, "1 / 0")
    assert http.get(f"{place}/history").json() == history | {"phase": "tool python", "calls": 2}
    assert http.get(f"{place}/history/calls").json()["statistics"] == {"python": {"calls": 2, "errors": 1}}
    assert http.get(f"{place}/history/calls").json()["calls"] == [
        {"tool": "python", "arguments": {"code": "result = {'a': 1}"}, "success": True, "result": {"a": 1},
         "error": None},
        {"tool": "python", "arguments": {"code": "1 / 0"}, "success": False, "result": None,
         "error": "ZeroDivisionError: division by zero"},
    ]  # fmt: skip
    submitted = http.post(f"{place}/submit", json={"answer": 0.5}).json()
    seen = http.get(f"{place}/history").json()
    assert (seen["phase"], seen["result"]) == ("submit", submitted)
    http.delete(place)
    assert http.get(f"{place}/history").status_code == 404
    place = f"/trials/{trial(http, 'process')}"
    broke = run(http, place, "import os; os.kill(os.getpid(), 9)").json()
    seen = http.get(f"{place}/history").json()
    assert (seen["fault"], seen["calls"], seen["fault"]["kind"]) == (broke, 0, "worker_died")
    http.delete(place)


def test_a_tool_that_raises_is_an_answer(http: httpx.Client) -> None:
    place = f"/trials/{trial(http, 'thread')}"
    answer = run(http, place, "1 / 0")
    assert answer.status_code == 200
    assert answer.json() == {"success": False, "result": None, "error": "ZeroDivisionError: division by zero"}
    unknown = http.post(f"{place}/tools/execute", json={"tool_name": "nothing"}).json()
    assert unknown["error"].startswith("UnknownTool")
    http.delete(place)


def test_what_json_does_not_know_is_null_or_escaped(http: httpx.Client, router: CorralRouter) -> None:
    runtime_id = trial(http, "thread")
    answer = http.post(f"/trials/{runtime_id}/tools/execute", json={"tool_name": "measure"})
    assert answer.json()["result"] == {"nothing": None, "much": None, "odd": "\ud800"}
    own = router.for_trial(runtime_id, "thread").execute_tool("thread", "measure", {}).result
    assert str(own["nothing"]) == "nan"
    assert own["much"] == float("inf")
    http.delete(f"/trials/{runtime_id}")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/tasks/none/prompt", None, 404, "no task 'none'"),
        ("POST", "/tasks/none/trials", {}, 404, "no task 'none'"),
        ("GET", "/trials/tr_none/prompt", None, 404, "no trial 'tr_none'"),
        ("DELETE", "/episodes/none", None, 404, "no episode 'none'"),
        ("GET", "/nowhere", None, 404, "/docs lists"),
        ("PUT", "/tasks", {}, 405, "no PUT /tasks"),
        ("GET", "/tasks/thread/tools?verbosity=loud", None, 422, "verbosity must be"),
        ("POST", "/tasks/thread/tools/execute", {"tool_name": 3}, 422, "tool_name"),
        ("POST", "/tasks/thread/tools/execute", {"arguments": {}}, 422, "tool_name"),
        ("POST", "/tasks/thread/submit", {}, 422, "answer"),
        ("POST", "/tasks/thread/trials", {"tool_jobs_per_trial": 0}, 422, "tool_jobs_per_trial"),
        ("POST", "/tasks/thread/trials", [], 422, "the body: it must be a JSON object"),
    ],
)
def test_bad_requests(http: httpx.Client, method: str, path: str, body: Any, status: int, words: str) -> None:
    answer = http.request(method, path, json=body)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text


def test_a_body_that_is_no_json(http: httpx.Client) -> None:
    place = "/tasks/thread/submit"
    typed = {"content-type": "application/json"}
    assert http.post(place, content=b'{"answer":', headers=typed).status_code == 422
    assert http.post(place, content=b"", headers=typed).status_code == 422
    assert http.post(place, data={"answer": "1"}).json()["kind"] == "not_json"


def test_a_request_that_is_too_large(http: httpx.Client) -> None:
    answer = http.post("/tasks/thread/submit", json={"answer": "x" * 2**20})
    assert (answer.status_code, answer.json()["kind"]) == (413, "too_large")
    assert answer.json()["detail"] == "the request's body is over this server's limit of 1 MiB"


def test_a_result_that_is_too_large(http: httpx.Client) -> None:
    place = f"/trials/{trial(http, 'process')}"
    answer = run(http, place, "result = 'x' * 2_000_000")
    assert (answer.status_code, answer.json()["kind"]) == (500, "serialization")
    assert "has 1.9 MiB, over this server's limit of 1 MiB" in answer.json()["detail"]
    assert run(http, place, "result = 1").json()["result"] == 1
    http.delete(place)


def test_ids_with_odd_characters(http: httpx.Client, router: CorralRouter) -> None:
    assert http.get("/tasks/dir%2Fwith%20space/prompt").json() == {"prompt": f"task {ODD}"}
    opened = router.create_trial(ODD)
    bound = router.for_trial(opened["trial_runtime_id"], ODD)
    assert bound.get_task_prompt(ODD) == f"task {ODD}"
    assert bound.submit_answer(ODD, 1).task_id == ODD
    router.close_trial(opened["trial_runtime_id"])


# ---- isolation and order ----


@pytest.mark.parametrize("task_id", ["thread", "process"])
def test_two_trials_of_a_task_see_only_themselves(http: httpx.Client, task_id: str) -> None:
    places = [f"/trials/{trial(http, task_id)}" for _ in range(2)]
    for number, place in enumerate(places):
        run(http, place, f"env.mark = {number}; (env.current_work_dir / 'mark').write_text('{number}')")
    seen = [run(http, p, "result = [env.mark, (env.current_work_dir / 'mark').read_text()]").json() for p in places]
    assert [answer["result"] for answer in seen] == [[0, "0"], [1, "1"]]
    folders = {run(http, place, "result = str(env.current_work_dir)").json()["result"] for place in places}
    assert len(folders) == 2
    for place in places:
        http.delete(place)


def test_calls_of_one_trial_run_one_after_the_other(http: httpx.Client, tmp_path: Path) -> None:
    place = f"/trials/{trial(http, 'thread')}"
    began, go = tmp_path / "began", tmp_path / "go"
    wait = (
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nenv.order = ['first']"
    )
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(run, http, place, wait)
        until(began.exists)
        others = []
        for number in range(4):
            others.append(pool.submit(run, http, place, f"env.order.append({number})"))
            until(partial(_is, http, "running_calls", number + 2))
        go.touch()
        assert all(job.result().json()["success"] for job in [first, *others])
    assert run(http, place, "result = env.order").json()["result"] == ["first", 0, 1, 2, 3]
    http.delete(place)


def test_closing_a_trial_ends_its_call(http: httpx.Client, tmp_path: Path) -> None:
    place = f"/trials/{trial(http, 'process')}"
    began = tmp_path / "began"
    hang = f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(60)"
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run, http, place, hang)
        until(began.exists)
        http.delete(place)
        assert call.result().status_code in (404, 502)


# ---- once, and again ----


def test_a_repeated_call_is_carried_out_once(http: httpx.Client) -> None:
    place = f"/trials/{trial(http, 'thread')}"
    count = "env.count = getattr(env, 'count', 0) + 1; result = env.count"
    assert [run(http, place, count, **{KEY_HEADER: "one"}).json()["result"] for _ in range(3)] == [1, 1, 1]
    assert run(http, place, count, **{KEY_HEADER: "two"}).json()["result"] == 2
    other = run(http, place, "result = 0", **{KEY_HEADER: "one"})
    assert (other.status_code, "was used for another request" in other.text) == (422, True)
    http.delete(place)


@pytest.mark.parametrize("headers", [{}, {KEY_HEADER: "close"}], ids=["without a key", "with one"])
def test_what_a_closed_trial_gave_is_kept_for_nobody(headers: dict[str, str], http: httpx.Client) -> None:
    place = f"/trials/{trial(http, 'thread')}"
    once = {KEY_HEADER: "once"}
    assert [run(http, place, "result = 'large'", **once).json()["result"] for _ in range(2)] == ["large"] * 2
    assert http.delete(place, headers=headers).status_code == 200
    assert run(http, place, "result = 'large'", **once).status_code == 404


def test_a_trial_is_opened_once(http: httpx.Client) -> None:
    first, second = (http.post("/tasks/thread/trials", headers={KEY_HEADER: "open-once"}).json() for _ in range(2))
    assert first == second
    http.delete(f"/trials/{first['trial_runtime_id']}")


def test_waiting_in_steps(http: httpx.Client, tmp_path: Path) -> None:
    place, go = f"/trials/{trial(http, 'thread')}", tmp_path / "go"
    code = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nresult = 'done'"
    headers = {KEY_HEADER: "slow", WAIT_HEADER: "0.05"}
    for _ in range(2):
        pending = run(http, place, code, **headers)
        assert (pending.status_code, pending.json()["kind"]) == (202, "pending")
    go.touch()
    answer = run(http, place, code, **headers | {WAIT_HEADER: "20"})
    assert answer.json()["result"] == "done"
    again = run(http, place, code, **headers | {WAIT_HEADER: "0"})  # only to look
    assert (again.status_code, again.json()["result"]) == (200, "done")
    assert run(http, place, code, **headers | {WAIT_HEADER: "soon"}).status_code == 422
    http.delete(place)


# ---- places ----


def test_more_trials_than_slots_wait(http: httpx.Client) -> None:
    ids = [trial(http, "process") for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(trial, http, "process")
        until(lambda: http.get("/health").json()["waiting"] == 1)
        http.delete(f"/trials/{ids[0]}")
        http.delete(f"/trials/{third.result()}")
    http.delete(f"/trials/{ids[1]}")


def test_a_client_that_leaves_while_it_waits_gets_no_slot(http: httpx.Client) -> None:
    ids = [trial(http, "process") for _ in range(2)]
    with pytest.raises(httpx.ReadTimeout):
        http.post("/tasks/process/trials", timeout=0.3)
    until(lambda: http.get("/health").json()["waiting"] == 0)
    for runtime_id in ids:
        http.delete(f"/trials/{runtime_id}")
    until(lambda: http.get("/health").json()["pool"]["leased"] == 0)


def test_slots_are_shared_fairly_by_runs(http: httpx.Client) -> None:
    """One run has both slots and four trials more in the queue; the other's single trial comes next."""
    held = [trial(http, "process", benchmark_run_id="greedy") for _ in range(2)]
    opened: list[str] = []

    def wait_for_one(run_id: str) -> None:
        runtime_id = trial(http, "process", benchmark_run_id=run_id)
        opened.append(run_id)
        http.delete(f"/trials/{runtime_id}")

    with ThreadPoolExecutor(5) as pool:
        for number, run_id in enumerate(["greedy"] * 4 + ["modest"]):
            pool.submit(wait_for_one, run_id)
            until(partial(_is, http, "waiting", number + 1))
        http.delete(f"/trials/{held[0]}")
    assert opened[0] == "modest"
    http.delete(f"/trials/{held[1]}")


def test_an_episode_of_another_run_is_none_of_ours(http: httpx.Client) -> None:
    mine = trial(http, "process", benchmark_run_id="mine", episode_id="e")
    other = http.post("/tasks/process/trials", json={"benchmark_run_id": "yours", "episode_id": "e"})
    assert (other.status_code, "belongs to another run" in other.text) == (422, True)
    second = http.post("/tasks/process/trials", json={"benchmark_run_id": "mine", "episode_id": "e"}).json()
    assert second["worker"]["slot"] == http.get("/health").json()["pool"]["leased"] - 1
    http.delete("/episodes/e")
    assert http.get(f"/trials/{mine}/prompt").status_code == 404
    assert http.get("/health").json()["pool"]["leased"] == 0


# ---- the shared surface ----


@pytest.mark.parametrize("task_id", ["thread", "process", "serial"])
def test_the_shared_surface(http: httpx.Client, task_id: str) -> None:
    place = f"/tasks/{task_id}"
    assert http.get(f"{place}/prompt").json() == {"prompt": f"task {task_id}"}
    run(http, place, "env.mark = 5")
    assert run(http, place, "result = env.mark").json()["result"] == 5
    assert http.post(f"{place}/submit", json={"answer": 0.25}).json()["score"] == 0.25
    assert http.get(f"{place}/status").json()["score"] == 0.25
    assert run(http, place, "env.mark").json()["success"] is False  # a new trial
    assert http.post(f"{place}/surrender").json()["surrendered"] is True
    for runtime_id in [trial(http, "process") for _ in range(2)]:  # the shared trial, which is over, gives way
        http.delete(f"/trials/{runtime_id}")


def test_shared_trials_keep_no_slot_from_others() -> None:
    """Four tasks of which one is at work, two slots: reads and ended trials give way."""
    with serving(f"{ENVS}:processes", "--pool-size", "2") as server, httpx.Client(base_url=server.url) as http:
        for task_id in "abcd":
            assert http.get(f"/tasks/{task_id}/prompt").json() == {"prompt": f"task {task_id}"}
        run(http, "/tasks/a", "env.mark = 1")
        for task_id in "bcd":
            assert http.post(f"/tasks/{task_id}/submit", json={"answer": 1}).json()["score"] == 1
        http.delete(f"/trials/{trial(http, 'b')}")
        assert run(http, "/tasks/a", "result = env.mark").json()["result"] == 1
        assert server.stop() == 0


# ---- failures ----


def test_a_worker_that_dies_in_a_call(served: Served) -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server, CorralRouter(server.url) as router:
        opened = router.create_trial("a")
        bound = router.for_trial(opened["trial_runtime_id"], "a")
        with pytest.raises(WorkerDied) as died:
            bound.execute_tool("a", "python", {"code": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"})
        error = died.value
        assert (error.exit_status, error.phase, error.worker) == (-11, "tool python", opened["worker"])
        assert "SIGSEGV" in str(error)
        assert "Fatal Python error" in error.output
        seen = router.watch(opened["trial_runtime_id"])
        assert seen is not None
        assert seen.fault is error
        with pytest.raises(WorkerDied):  # once broken, broken
            bound.submit_answer("a", 1)
        router.close_trial(opened["trial_runtime_id"])
        fresh = router.create_trial("a")
        assert router.for_trial(fresh["trial_runtime_id"], "a").submit_answer("a", 1).score == 1
        router.close_trial(fresh["trial_runtime_id"])
        facts = [json.loads(line) for line in server.lines]
        broke = next(line for line in facts if line["event"] == "trial broke")
        assert (broke["trial"], broke["kind"]) == (opened["trial_runtime_id"], "worker_died")
        assert server.stop() == 0


def test_time_limits_and_typed_errors() -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1", "--tool-timeout", "0.3") as server:
        with CorralRouter(server.url) as router:
            runtime_id = router.create_trial("a")["trial_runtime_id"]
            bound = router.for_trial(runtime_id, "a")
            with pytest.raises(ToolTimeout, match=r"tool python did not end within its limit of 0\.3 s"):
                bound.execute_tool("a", "python", {"code": "import time; time.sleep(60)"})
            router.close_trial(runtime_id)
            with pytest.raises(NotFound, match="there is no task 'x'; known: 'a', 'b', 'c', 'd'"):
                router.create_trial("x")
            with pytest.raises(NotFound, match=runtime_id):
                bound.get_task_prompt("a")
            with pytest.raises(ConfigError, match="tool_jobs_per_trial"):
                router.create_trial("a", tool_jobs_per_trial=0)
            bound = router.for_trial(router.create_trial("a", trial_index=4)["trial_runtime_id"], "a")
            with pytest.raises(
                SubmissionError, match="the answer to a#4 cannot be accepted: the answer gave a value of type object"
            ):
                bound.submit_answer("a", object())
        assert server.stop() == 0


def test_environments_that_cannot_be_set_up(tmp_path: Path) -> None:
    """In-process: the same error over the application without a socket."""
    from tests.support.benches import Bench

    class Unbuildable(Bench):
        def new_instance(self, seed: int = 0) -> Any:
            raise OSError("the licence server is down")

    app = create_benchmark_server({"u": Unbuildable("u")})

    async def main() -> None:
        from corral import AsyncCorralRouter

        async with app.lifespan(), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            router = AsyncCorralRouter("http://testserver", client=client)
            with pytest.raises(EnvStartError, match="the licence server is down") as raised:
                await router.create_trial("u")
            assert raised.value.record is not None
            assert raised.value.record.type == "OSError"

    import anyio

    anyio.run(main)


def test_an_application_whose_lifespan_was_not_entered() -> None:
    import anyio

    app = create_benchmark_server({})

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
            return await client.get("http://testserver/tasks")

    answer = anyio.run(main)
    assert (answer.status_code, "async with app.lifespan()" in answer.json()["detail"]) == (503, True)


def test_what_fails_beside_an_application_comes_out_as_it_is() -> None:
    """And not in the groups of the tasks that the application runs on."""
    import anyio

    app = create_benchmark_server({})

    async def main() -> None:
        async with app.lifespan():
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        anyio.run(main)


# ---- those who vanish ----


def test_a_trial_that_nobody_uses_is_closed() -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1", "--idle-timeout", "0.4") as server:
        with httpx.Client(base_url=server.url, timeout=20) as http:
            forgotten = trial(http, "a")
            assert run(http, f"/trials/{forgotten}", "import time; time.sleep(0.9); result = 1").json()["result"] == 1
            began = time.monotonic()
            trial(http, "b", episode_id="left")  # waits for the only slot
            assert time.monotonic() - began < 5
            assert http.delete(f"/trials/{forgotten}").status_code == 404
            http.get("/tasks/c/prompt")  # the episode's slot comes back too, and the shared trial's
            trial(http, "d")
        until(lambda: [line for line in server.lines if '"why": "idle"' in line])
        assert server.stop() == 0


# ---- who may come in ----


def test_with_a_token() -> None:
    env = {**os.environ, "CORRAL_TOKEN": "s3cret"}
    with serving(f"{ENVS}:threads", env=env) as server, httpx.Client(base_url=server.url) as http:
        refused = http.get("/tasks")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="corral"')
        for wrong in ("Bearer wrong", "Bearer", "Basic s3cret", "s3cret"):
            assert http.get("/tasks", headers={"authorization": wrong}).status_code == 401
        assert http.get("/health").json()["status"] == "ok"  # for who watches over it
        with CorralRouter(server.url, token="s3cret") as router:
            opened = router.create_trial("thread")
        with pytest.raises(ConfigError, match="the token is wrong"), CorralRouter(server.url, token="no") as router:
            router.get_available_tasks()
        place = f"/trials/{opened['trial_runtime_id']}"
        assert run(http, place, "result = 1", authorization="Bearer wrong").status_code == 401
        key = opened["mcp_url"].partition("?key=")[2]
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        accept = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"}
        answer = http.post(f"{place}/mcp?key={key}", json=listing, headers=accept)
        assert "python" in answer.text  # the key of the trial opens its tools
        assert http.post(f"{place}/mcp?key={key[::-1]}", json=listing, headers=accept).status_code == 401
        assert http.get(f"{place}/prompt?key={key}").status_code == 401  # and nothing else
        assert server.stop() == 0


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}])
def test_web_pages_cannot_reach_it(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.get("/tasks", headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden")


def test_it_listens_on_loopback_only(served: Served) -> None:
    """The workers' own sockets included."""
    family = [psutil.Process(served.process.pid), *psutil.Process(served.process.pid).children(recursive=True)]
    listening = [c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"port": -1}, "port"),
        ({"port": 70000}, "at most 65535"),
        ({"host": "0.0.0.0"}, "can be reached from other machines"),
        ({"idle_timeout": 0}, "idle_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"max_body": "many"}, "max_body"),
        ({"worker_pool": 0}, "worker_pool"),
        ({"token": ""}, "token"),
        ({"build_envs": dict}, "give environments"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral import run_server

    monkeypatch.delenv("CORRAL_TOKEN", raising=False)
    before = threading.active_count()
    with pytest.raises(ConfigError, match=words):
        run_server({}, **arguments)
    assert threading.active_count() <= before, "nothing was started"
