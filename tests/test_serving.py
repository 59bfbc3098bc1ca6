"""The server's own life: its address, its signals, what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import psutil
import pytest

from corral import CorralRouter
from corral.errors import InfrastructureError, NotFound
from corral.protocol import Draining
from tests.support.serving import ROOT, serving, until

ENVS = "tests.support.server_envs"
HANG = """
import pathlib, time
pathlib.Path({began!r}).touch()
while not pathlib.Path({go!r}).exists(): time.sleep(0.01)
result = 'ended'"""


def command(*arguments: str, within: float = 30, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "corral.server", *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=within, check=False, env={**os.environ, **env})  # fmt: skip


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


# ---- the address ----


def test_a_port_that_is_taken() -> None:
    """One sentence within 3 s, before anything that takes longer is loaded. The quickest of three tries counts: all of
    it is Python's start, and the machine may be busy."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        took: list[float] = []
        while not took or (min(took) >= 3 and len(took) < 3):
            began = time.monotonic()
            done = command(f"{ENVS}:build", "--port", str(port))
            took.append(time.monotonic() - began)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == f"corral: cannot listen on 127.0.0.1:{port}: something else listens there already\n"
    assert min(took) < 3


def test_a_port_that_is_taken_is_told_before_a_server_is_loaded() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        lines = (
            "import sys; from corral import run_server\n"
            f"try: run_server(build_envs=dict, port={port})\n"
            "finally: print([name for name in ('uvicorn', 'starlette', 'pydantic', 'psutil') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "[]\n")
    assert f"ConfigError: cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.slow
def test_ten_servers_at_once_pick_ten_ports() -> None:
    with ExitStack() as stack, ThreadPoolExecutor(10) as pool:
        started = list(pool.map(lambda _: stack.enter_context(serving(f"{ENVS}:threads")), range(10)))
        assert len({server.url for server in started}) == 10
        for server in started:
            assert httpx.get(f"{server.url}/health", trust_env=False).json()["server_id"] == server.server_id
        for server in started:
            server.process.terminate()
        assert [server.process.wait(20) for server in started] == [0] * 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere:build"], "there is no module 'nowhere'"),
        ([f"{ENVS}:nothing"], "has no 'nothing'"),
        ([f"{ENVS}:threads", "--host", "0.0.0.0"], "can be reached from other machines"),
        ([f"{ENVS}:threads", "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid:8000"),
        ([f"{ENVS}:threads", "--port", "99999"], "at most 65535"),
        ([f"{ENVS}:threads", "--uds", "/no/such/folder/s"], "cannot listen on unix:/no/such/folder/s"),
    ],
)
def test_bad_usage(arguments: list[str], words: str) -> None:
    done = command(*arguments, CORRAL_TOKEN="" if "0.0.0.0" in arguments else "t")
    assert (done.returncode, words in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr


def test_environments_that_cannot_be_loaded() -> None:
    done = command(f"{ENVS}:broken", "--port", "0", "--pool-size", "2")
    assert (done.returncode, "there is no licence for the simulator" in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr


def test_another_host_needs_a_token_and_warns() -> None:
    env = {**os.environ, "CORRAL_TOKEN": "t"}
    with serving(f"{ENVS}:threads", "--host", "0.0.0.0", env=env) as server:
        assert json.loads(server.lines[0])["event"] == "reachable from other machines"
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/tasks", trust_env=False).status_code == 401
        with CorralRouter(url, token="t") as router:
            assert router.get_available_tasks() == ["thread", "other"]
        assert server.stop() == 0


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(f"{ENVS}:threads", "--uds", str(path)) as server:
        assert server.url == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        with CorralRouter(server.url) as router:
            opened = router.create_trial("thread")
            assert router.for_trial(opened["trial_runtime_id"], "thread").submit_answer("thread", 1).score == 1
        second = command(f"{ENVS}:threads", "--uds", str(path))
        assert (second.returncode, "something else listens there already" in second.stderr) == (2, True)
        server.process.kill()
        server.process.wait()
    assert path.exists()  # nobody could remove it
    with serving(f"{ENVS}:threads", "--uds", str(path)) as server:
        assert server.stop() == 0
    assert not path.exists()


# ---- the end ----


def test_killed_it_leaves_nothing_and_starts_again_at_once() -> None:
    began = time.monotonic()
    with serving(f"{ENVS}:processes", "--pool-size", "2") as server:
        usual = time.monotonic() - began  # a busy machine starts anything slowly
        with CorralRouter(server.url) as router:
            opened = router.create_trial("a")
            bound = router.for_trial(opened["trial_runtime_id"], "a")
            stay = "import subprocess; result = subprocess.Popen(['sleep', '300'], start_new_session=True).pid"
            child = psutil.Process(bound.execute_tool("a", "python", {"code": stay}).result)
        everyone = [*family(server.process.pid), child]
        server.process.kill()
        server.process.wait()
        began = time.monotonic()
        port = int(server.url.rpartition(":")[2])
        with serving(f"{ENVS}:processes", "--pool-size", "1", port=port) as again:
            assert time.monotonic() - began < 5 + usual
            with CorralRouter(again.url) as router:
                assert router.get_available_tasks() == list("abcd")
            until(lambda: not alive(everyone), within=5)
            assert again.stop() == 0


def test_sigterm_lets_calls_end_and_opens_no_trials(tmp_path: Path) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server, CorralRouter(server.url) as router:
        bound = router.for_trial(router.create_trial("a")["trial_runtime_id"], "a")
        with ThreadPoolExecutor(2) as pool:
            body = {"code": HANG.format(began=str(began), go=str(go))}
            call = pool.submit(bound.execute_tool, "a", "python", body)
            waits = pool.submit(router.create_trial, "b")
            until(began.exists)
            everyone = family(server.process.pid)
            until(lambda: httpx.get(f"{server.url}/health", trust_env=False).json()["waiting"])
            server.process.terminate()
            with pytest.raises(Draining, match="opens no trials any more"):
                waits.result()
            refused = httpx.post(f"{server.url}/tasks/a/trials", trust_env=False)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert httpx.get(f"{server.url}/health", trust_env=False).json()["status"] == "draining"
            go.touch()
            assert call.result().result == "ended"
        assert server.process.wait(10) == 0
        assert not alive(everyone)


@pytest.mark.slow
def test_sigterm_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with serving(f"{ENVS}:processes", "--pool-size", "1", "--drain-timeout", "0.5") as server:
        with CorralRouter(server.url) as router, ThreadPoolExecutor(1) as pool:
            bound = router.for_trial(router.create_trial("a")["trial_runtime_id"], "a")
            body = {"code": HANG.format(began=str(began), go=str(tmp_path / "never"))}
            call = pool.submit(bound.execute_tool, "a", "python", body)
            until(began.exists)
            everyone = family(server.process.pid)
            assert server.stop() == 0
            with pytest.raises((InfrastructureError, NotFound)):
                call.result()
        assert not alive(everyone)


@pytest.mark.slow
def test_an_open_stream_does_not_hold_it() -> None:
    with serving(f"{ENVS}:threads") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with closing(socket.create_connection((host, int(port)))) as stream:
            stream.sendall(b"POST /tasks/thread/submit HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
            began = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(15) == 0
            assert time.monotonic() - began < 6


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        with CorralRouter(server.url) as router, ThreadPoolExecutor(1) as pool:
            bound = router.for_trial(router.create_trial("a")["trial_runtime_id"], "a")
            body = {"code": HANG.format(began=str(began), go=str(tmp_path / "never"))}
            pool.submit(bound.execute_tool, "a", "python", body)
            until(began.exists)
            everyone = family(server.process.pid)
            server.process.terminate()
            until(lambda: any('"draining"' in line for line in server.lines))
            started = time.monotonic()
            server.process.terminate()
            assert server.process.wait(10) == 0
            assert time.monotonic() - started < 8
            assert not alive(everyone)
            with contextlib.suppress(Exception):
                router.get_available_tasks()


# ---- what it says ----


def test_what_environments_print_reaches_no_answer() -> None:
    with serving(f"{ENVS}:loud", "--pool-size", "1") as server, CorralRouter(server.url) as router:
        opened = router.create_trial("loud")
        bound = router.for_trial(opened["trial_runtime_id"], "loud")
        assert bound.configure_additional_apps("loud") == "done"
        assert bound.execute_tool("loud", "shout", {}).result == "shouted"
        router.close_trial(opened["trial_runtime_id"])
        assert server.stop() == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
    lines = [json.loads(line) for line in server.lines]  # every line is JSON
    events = [(line["event"], line.get("trial")) for line in lines]
    runtime_id = opened["trial_runtime_id"]
    assert events == [("trial opened", runtime_id), ("trial closed", runtime_id), ("draining", None), ("stopped", None)]
