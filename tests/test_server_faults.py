"""Clients that break off, stand still, send what is none, and go away with trials open: the server goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from corral import CorralRouter
from corral.errors import WorkerDied
from corral.front import SWEEP
from corral.once import GRACE
from corral.protocol import KEY_HEADER, WAIT_HEADER
from tests.support import serving as support
from tests.support.raw_http import connected, request, until_closed
from tests.support.serving import ROOT, Served, serving

ENVS = "tests.support.server_envs"
IDLE = 0.6
until = partial(support.until, within=15.0)
TOUCH = "import pathlib, time\npathlib.Path({began!r}).touch()\ntime.sleep(600)"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(f"{ENVS}:build", "--pool-size", "2", "--max-body", "1MiB") as server:
        until(lambda: httpx.get(f"{server.url}/health", trust_env=False).json()["pool"]["idle"] == 2)
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """And at the end of each test the server is well, and has complained of nothing."""
    with httpx.Client(base_url=served.url, timeout=20, trust_env=False) as client:
        yield client
        assert client.get("/health").json()["status"] == "ok"
    assert [line for line in served.lines if json.loads(line)["level"] == "error"] == []


def health(http: httpx.Client) -> dict[str, Any]:
    return dict(http.get("/health").json())


def ask(served: Served, data: bytes) -> tuple[int, str]:
    with closing(connected(served.url)) as connection:
        connection.sendall(data)
        answer = until_closed(connection)
    return int(answer.split(b" ", 2)[1]), answer.decode("utf-8", "replace")


# ---- requests that are none ----

SUBMIT, EXECUTE, OPEN = "/tasks/thread/submit", "/tasks/thread/tools/execute", "/tasks/thread/trials"
DEEP = b"[" * 100_000 + b"]" * 100_000
SMUGGLED = b"POST /tasks HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n"
CHUNKS = b"POST /tasks/thread/submit HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n"


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (request("GET", "/tasks", "x: " + "a" * 200_000), 400, "Invalid HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00" * 20, 400, "Invalid HTTP request"),
        (SMUGGLED, 400, "Invalid HTTP request"),
        (CHUNKS, 400, ""),
        (request("POST", SUBMIT, body=b'{"answer": '), 422, "no JSON that can be read"),
        (request("POST", SUBMIT, body=b'{"answer": ' + DEEP + b"}"), 422, "RecursionError"),
        (request("POST", SUBMIT, body=b'{"answer": ' + b"9" * 5000 + b"}"), 422, "4300 digits"),
        (request("POST", SUBMIT, body=b'{"answer": ' + b"[" * 900 + b"]" * 900 + b"}"), 409, "nested too deeply"),
        (request("POST", SUBMIT, body=b'{"answer": "\xff"}'), 422, "no JSON that can be read"),
        (request("POST", SUBMIT, body=b'{"answer": 1}', kind="text/plain"), 415, "and came as text/plain"),
        (request("POST", SUBMIT, body=b'{"answer": 1}', kind=None), 415, "and came without a content type"),
        (request("POST", SUBMIT, "idempotency-key: a b", body=b'{"answer": 1}'), 422, "idempotency-key must be"),
        (request("POST", SUBMIT, "corral-wait: inf", body=b'{"answer": 1}'), 422, "corral-wait must be"),
        (request("POST", OPEN, body=b'{"seed": NaN}'), 422, "seed: Input should be a valid integer"),
        (request("POST", OPEN, body=b'{"trial_index": 1e400}'), 422, "trial_index: Input should be"),
        (request("POST", EXECUTE, body=b'{"tool_name": "\\ud800"}'), 200, "UnknownTool"),
        (request("POST", EXECUTE, body=b'{"tool_name": "python", "arguments": {"code": NaN}}'), 200, "InvalidArg"),
        (request("GET", "/tasks/%00/prompt"), 404, "no task"),
        (request("GET", "/tasks/%ff/prompt"), 404, "no task"),
        (request("GET", "/tasks/../../etc/passwd"), 404, "/docs lists"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("http")
def test_a_request_that_is_none_gets_a_sentence(served: Served, data: bytes, status: int, words: str) -> None:
    given, text = ask(served, data)
    assert (given, words in text) == (status, True), text[-500:]


def test_not_a_number_is_the_same_request_when_it_comes_again(http: httpx.Client, tmp_path: Path) -> None:
    """It is not equal to itself; the client that asks again must not be told that its key means something else."""
    code = f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)"
    body = json.dumps({"tool_name": "python", "arguments": {"code": code, "odd": float("nan")}})
    headers = {KEY_HEADER: "nan", WAIT_HEADER: "0.05", "content-type": "application/json"}
    answers = [http.post(EXECUTE, content=body, headers=headers) for _ in range(2)]
    assert {answer.status_code for answer in answers} <= {200, 202}, answers[-1].text
    other = http.post(EXECUTE, content=body.replace("NaN", "null"), headers=headers)
    assert (other.status_code, "the idempotency key 'nan' was used for another request" in other.text) == (422, True)


# ---- connections that stand still ----


def test_silent_connections_end(tmp_path: Path) -> None:
    """No head, half a head, half a body, and half a second head: each is closed, and nobody else is."""
    with serving(f"{ENVS}:hasty") as server:
        beginnings = {
            "nothing": b"",
            "half a head": b"GET /tasks HTTP/1.1\r\nhost: loc",
            "half a body": request("POST", SUBMIT, body=b"x" * 100)[:-50],
        }
        with closing(connected(server.url)) as long_call, httpx.Client(base_url=server.url, trust_env=False) as http:
            body = json.dumps({"tool_name": "python", "arguments": {"code": "import time; time.sleep(1.5)"}})
            long_call.sendall(request("POST", "/tasks/other/tools/execute", body=body.encode()))
            answers = {}
            for name, beginning in beginnings.items():
                with closing(connected(server.url)) as connection:
                    connection.sendall(beginning)
                    answers[name] = until_closed(connection)
            assert answers["nothing"] == answers["half a head"] == b""
            with closing(connected(server.url)) as connection:
                connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert connection.recv(9) == b"HTTP/1.1 "
                connection.sendall(b"GET /tas")
                assert b"HTTP/1.1" not in until_closed(connection)
            assert b"408" in answers["half a body"].split(b"\r\n")[0]
            assert b"nothing came of the request's body for 0.2 s" in answers["half a body"]
            assert b'"success":true' in until_closed(long_call)  # it waits for an answer, not for a request
            assert health(http)["status"] == "ok"
        assert server.stop() == 0


def test_clients_that_go_away_in_the_middle_of_a_request(served: Served, http: httpx.Client) -> None:
    whole = request("POST", SUBMIT, body=b'{"answer": 1}')
    for end in (1, 20, len(whole) - 10):
        with closing(connected(served.url)) as connection:
            connection.sendall(whole[:end])
    descriptors = psutil.Process(served.process.pid).num_fds
    before = descriptors()
    crowd = [connected(served.url) for _ in range(200)]
    assert health(http)["status"] == "ok"
    for connection in crowd:
        connection.close()
    until(lambda: descriptors() <= before + 1)


def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    """They wait; the log says so in a line or two, and when some have gone all is as before."""
    lines = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); from corral.server import main; main()"
    )
    command = [sys.executable, "-c", lines, f"{ENVS}:threads", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            assert process.stdout is not None
            found = re.search(r" at (\S+) ", process.stdout.readline())
            assert found
            with httpx.Client(base_url=found[1], trust_env=False) as http:
                assert health(http)["status"] == "ok"
                crowd = [connected(found[1]) for _ in range(100)]
                until(lambda: psutil.Process(process.pid).num_fds() >= 63)
                assert health(http)["status"] == "ok"
                for connection in crowd:
                    connection.close()
                until(lambda: psutil.Process(process.pid).num_fds() < 40)
            assert httpx.get(f"{found[1]}/tasks", trust_env=False, timeout=15).json() == {"tasks": ["thread", "other"]}
            process.terminate()
            said = process.communicate(timeout=20)[1].splitlines()
        finally:
            process.kill()
    events = [json.loads(line)["event"] for line in said]
    assert 1 <= events.count("connections wait") <= 3, said
    assert set(events) == {"connections wait", "draining", "stopped"}


def test_the_usual_limit_of_descriptors_is_raised() -> None:
    lines = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, min(hard, 1000) if hard > 0 else 1000))\n"
        "from corral.serving import more_descriptors; more_descriptors()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "(1000, 1000)\n"


# ---- clients that go away with something in their hands ----


def test_clients_that_go_away_while_a_trial_is_opened_for_them() -> None:
    """At every moment of it, politely and by a reset: no slot is lost. Where the answer was out already, the trial is
    one that nobody uses.
    """
    with_reset = struct.pack("ii", 1, 0)
    with (
        serving(f"{ENVS}:build", "--pool-size", "2", "--idle-timeout", str(IDLE)) as server,
        httpx.Client(base_url=server.url, timeout=20, trust_env=False) as http,
    ):
        until(lambda: health(http)["pool"]["idle"] == 2)
        for number in range(40):
            with closing(connected(server.url)) as connection:
                connection.sendall(request("POST", "/tasks/process/trials"))
                if number % 2:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, with_reset)
                time.sleep(0.0005 * number)
        until(lambda: _state(http) == (0, 0, 0))
        opened = [http.post("/tasks/process/trials").json() for _ in range(2)]
        assert {trial["worker"]["slot"] for trial in opened} == {0, 1}
        for trial in opened:
            http.delete(f"/trials/{trial['trial_runtime_id']}")
    assert [line for line in server.lines if json.loads(line)["level"] == "error"] == []


def _state(http: httpx.Client) -> tuple[int, int, int]:
    now = health(http)
    return now["waiting"], now["open_trials"], now["pool"]["leased"]


def _over_http(url: str, runtime_id: str, call: dict[str, Any]) -> list[str]:
    return ["import sys, httpx; httpx.post(sys.argv[1] + '/trials/' + sys.argv[2] + '/tools/execute', "
            "content=sys.argv[3], headers={'content-type': 'application/json'}, timeout=None)",
            url, runtime_id, json.dumps(call)]  # fmt: skip


def _by_the_router(url: str, runtime_id: str, call: dict[str, Any]) -> list[str]:
    return ["import sys, json; from corral import CorralRouter\n"
            "CorralRouter(sys.argv[1]).for_trial(sys.argv[2], 'a').execute_tool('a', **json.loads(sys.argv[3]))",
            url, runtime_id, json.dumps(call)]  # fmt: skip


def _over_mcp(url: str, runtime_id: str, call: dict[str, Any]) -> list[str]:
    return ["import sys, json, anyio; from mcp import Client\n"
            "async def main():\n"
            "    call = json.loads(sys.argv[3])\n"
            "    async with Client(sys.argv[1] + '/trials/' + sys.argv[2] + '/mcp') as client:\n"
            "        await client.call_tool(call['tool_name'], call['arguments'])\n"
            "anyio.run(main)",
            url, runtime_id, json.dumps(call)]  # fmt: skip


def _on_the_shared_surface(url: str, runtime_id: str, call: dict[str, Any]) -> list[str]:
    return ["import sys, httpx; httpx.post(sys.argv[1] + '/tasks/a/tools/execute', content=sys.argv[3], "
            "headers={'content-type': 'application/json'}, timeout=None)",
            url, runtime_id, json.dumps(call)]  # fmt: skip


@pytest.fixture(scope="module")
def impatient() -> Iterator[Served]:
    with serving(f"{ENVS}:processes", "--pool-size", "1", "--idle-timeout", str(IDLE)) as server:
        yield server


@pytest.mark.parametrize("way", [_over_http, _by_the_router, _over_mcp, _on_the_shared_surface])
def test_a_call_whose_client_was_killed_keeps_no_slot(way: Any, impatient: Served, tmp_path: Path) -> None:
    """The call would take ten minutes. While its client lives the trial is in use; then its slot is soon free."""
    began = tmp_path / "began"
    call = {"tool_name": "python", "arguments": {"code": TOUCH.format(began=str(began))}}
    with httpx.Client(base_url=impatient.url, timeout=30, trust_env=False) as http:
        runtime_id = ""
        if way is not _on_the_shared_surface:
            runtime_id = http.post("/tasks/a/trials").json()["trial_runtime_id"]
        client = subprocess.Popen([sys.executable, "-c", *way(impatient.url, runtime_id, call)], cwd=ROOT)
        try:
            # A client takes longer to start than the trial may be unused.
            until(lambda: http.get(f"/trials/{runtime_id}/history").status_code and began.exists(), within=30)
            end = time.monotonic() + 3 * (IDLE + SWEEP)
            while time.monotonic() < end:  # it waits, and that is use
                assert health(http)["running_calls"] == 1
                time.sleep(0.1)
        finally:
            client.kill()
            client.wait()
        opened = http.post("/tasks/b/trials").json()  # waits for the only slot
        assert http.delete(f"/trials/{opened['trial_runtime_id']}").status_code == 200
        assert health(http)["running_calls"] == 0
    if runtime_id:
        closed = [json.loads(line) for line in impatient.lines if runtime_id in line and "trial closed" in line]
        assert [line["why"] for line in closed] == ["idle"]
        assert IDLE < closed[0]["unused_s"] <= IDLE + SWEEP


def test_an_episode_whose_client_is_gone_gives_its_slot_back_as_soon(impatient: Served) -> None:
    """Its trial and the episode itself are unused since the same moment."""
    with httpx.Client(base_url=impatient.url, timeout=30, trust_env=False) as http:
        http.post("/tasks/a/trials", json={"episode_id": "e"})
        began = time.monotonic()
        trial = http.post("/tasks/b/trials").json()
        assert time.monotonic() - began < 10
        assert http.delete("/episodes/e").status_code == 404
        http.delete(f"/trials/{trial['trial_runtime_id']}")


RUNNER = """
import sys
from corral import CorralRouter, CorralRunner
from corral.agents import ScriptedAgent
from tests.support.chains import solve
with CorralRouter(sys.argv[1]) as router:
    runner = CorralRunner(router, agent_factory=lambda context: ScriptedAgent(solve), checkpoint_dir=sys.argv[2])
    runner.bench(progress=False)
"""


def test_a_runner_that_is_stopped_while_its_chain_waits_leaves_no_slot_behind(tmp_path: Path) -> None:
    """It closes the episode while the server still waits to open the first trial of it, and does not leave that to the
    server's patience with clients that have gone.
    """
    with (
        serving(f"{ENVS}:diamond", "--pool-size", "1") as server,
        httpx.Client(base_url=server.url, timeout=20, trust_env=False) as http,
    ):
        holder = http.post("/tasks/top/trials").json()["trial_runtime_id"]
        client = subprocess.Popen([sys.executable, "-c", RUNNER, server.url, str(tmp_path)], cwd=ROOT)
        try:
            until(lambda: health(http)["waiting"] == 1, within=30)
            client.send_signal(signal.SIGINT)
            assert client.wait(20) != 0
        finally:
            client.kill()
            client.wait()
        until(lambda: health(http)["waiting"] == 0, within=GRACE / 2)
        http.delete(f"/trials/{holder}")
        until(lambda: _state(http) == (0, 0, 0))
        assert http.post("/tasks/top/trials").json()["worker"]["slot"] == 0
        assert server.stop() == 0


# ---- workers that go away ----


def test_a_worker_that_is_killed_in_the_middle_of_a_call(tmp_path: Path) -> None:
    """Not the trial's process but its host: both end, the call fails as any death, and the slot serves again."""
    began = tmp_path / "began"
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        with CorralRouter(server.url) as router, ThreadPoolExecutor(1) as pool:
            opened = router.create_trial("a")
            bound = router.for_trial(opened["trial_runtime_id"], "a")
            call = pool.submit(bound.execute_tool, "a", "python", {"code": TOUCH.format(began=str(began))})
            until(began.exists)
            os.kill(opened["worker"].pid, signal.SIGKILL)
            with pytest.raises(WorkerDied) as died:
                call.result()
            assert (died.value.phase, died.value.worker) == ("tool python", opened["worker"])
            router.close_trial(opened["trial_runtime_id"])
            until(lambda: not _lives(opened["worker"].trial_pid))
            again = router.create_trial("a")
            assert router.for_trial(again["trial_runtime_id"], "a").submit_answer("a", 0.5).score == 0.5
            assert again["worker"].pid != opened["worker"].pid
        assert server.stop() == 0


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
