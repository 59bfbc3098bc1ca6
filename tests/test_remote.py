"""The routers of an environment server: a run through them is one in-process, no failure is hidden or doubled."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from corral import AsyncCorralRouter, BenchmarkResult, ConcurrencyConfig, CorralRouter, CorralRunner, FailureKind
from corral import calls as client_calls
from corral.agents import BaseAgent, ScriptedAgent
from corral.calls import DELAYS, Patience
from corral.errors import ConfigError, InfrastructureError, NotFound, OtherTask
from corral.report.files import stable_bytes
from tests.support import server_envs
from tests.support.benches import code, roll_and_read, sole
from tests.support.chains import solve
from tests.support.routers import about_a_task
from tests.support.serving import Served, serving

ENVS = "tests.support.server_envs"
ROUTERS = [CorralRouter, AsyncCorralRouter]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(f"{ENVS}:threads") as server:
        yield server


def bench(interface: Any, policy: Any, folder: Path, backend: str = "asyncio", **options: Any) -> BenchmarkResult:
    """Run it on an event loop of that kind."""
    factory: Any = policy if isinstance(policy, type) else lambda context: ScriptedAgent(policy)
    runner = CorralRunner(interface, agent_factory=factory, checkpoint_dir=folder)
    settings = {"session_id": "s", "seed": 11, "max_concurrency": 4, "max_concurrency_per_task": 4, **options}
    return anyio.run(partial(runner.abench, **settings), backend=backend)


async def roll_async(lab: Any, prompt: str) -> Any:
    for sides in (6, 20, 100):
        await lab.call("roll", sides=sides)
    return await lab.call("read")


roll_async.__name__ = roll_and_read.__name__  # the agent's name is in the report


# ---- the same run ----


def test_the_same_report_as_in_process(tmp_path: Path) -> None:
    """Everything in these environments is random, and follows from the trial's seed."""
    local = bench(server_envs.dice, roll_and_read, tmp_path / "local", trials_per_task=3, worker_pool=2)
    expected = stable_bytes(local)
    with serving(f"{ENVS}:dice", "--pool-size", "2") as server:
        ways = {
            "sync": (CorralRouter, roll_and_read, "asyncio"),
            "async": (AsyncCorralRouter, roll_and_read, "asyncio"),
            "trio": (AsyncCorralRouter, roll_and_read, "trio"),
            "async policy": (AsyncCorralRouter, roll_async, "asyncio"),
            "sync router on trio": (CorralRouter, roll_async, "trio"),
        }
        for name, (router, policy, backend) in ways.items():
            result = bench(router(server.url), policy, tmp_path / name, backend, trials_per_task=3)
            assert stable_bytes(result) == expected, name
        assert server.stop() == 0


def test_chains(tmp_path: Path) -> None:
    local = bench(server_envs.diamond, solve, tmp_path / "local", trials_per_task=2, worker_pool=2)
    assert local.average_score() == 1
    with serving(f"{ENVS}:diamond", "--pool-size", "2") as server:
        results = {}

        def run(name: str) -> None:  # two runs of the same plan at once: their episodes have the same names
            results[name] = bench(AsyncCorralRouter(server.url), solve, tmp_path / name, trials_per_task=2)

        threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [stable_bytes(result) for result in results.values()] == [stable_bytes(local)] * 2
        health = httpx.get(f"{server.url}/health", trust_env=False).json()
        assert (health["open_trials"], health["pool"]["leased"]) == (0, 0)
        assert server.stop() == 0


def test_a_chain_goes_on_after_a_resume(tmp_path: Path) -> None:
    """Outputs of tasks that were recorded in an earlier run are sent along."""
    with serving(f"{ENVS}:diamond", "--pool-size", "1") as server:
        first = bench(CorralRouter(server.url), _solve_but_the_end, tmp_path)
        assert first.coverage.graded == 3
        again = bench(CorralRouter(server.url), _solve_but_the_end_named, tmp_path, retry_errors=True)
        assert (again.coverage.graded, again.average_score()) == (4, 1)
        assert server.stop() == 0


def _solve_but_the_end(lab: Any, prompt: str) -> Any:
    if prompt.startswith("sum"):
        raise RuntimeError("not today")
    return solve(lab, prompt)


def _solve_but_the_end_named(lab: Any, prompt: str) -> Any:
    return solve(lab, prompt)


_solve_but_the_end_named.__name__ = _solve_but_the_end.__name__


def test_a_run_takes_no_more_slots_than_there_are(tmp_path: Path) -> None:
    """Trials beyond the server's slots wait in the scheduler, not in the server's queue; and no slot stays empty."""
    seen: list[tuple[int, int]] = []

    def look(lab: Any, prompt: str) -> str:
        lab.call("meet", folder=str(tmp_path / "meeting"), guests=2)  # both slots are in use
        health = httpx.get(f"{server.url}/health", trust_env=False).json()
        seen.append((health["waiting"], health["pool"]["leased"]))
        return "1"

    with serving(f"{ENVS}:processes", "--pool-size", "2") as server:
        limits = ConcurrencyConfig(global_trials=8, per_task=8)
        result = bench(CorralRouter(server.url), look, tmp_path, trials_per_task=3, concurrency=limits)
        assert server.stop() == 0
    assert result.coverage.graded == 12
    assert len(seen) == 12
    assert {waiting for waiting, _ in seen} == {0}
    assert max(leased for _, leased in seen) == 2


def test_two_runners_share_the_slots_fairly(tmp_path: Path) -> None:
    """One has both slots when the other comes; the next one is the other's, and from then on each has one."""
    trials = 4
    began: Counter[str] = Counter()
    late_has_one = threading.Event()

    def health() -> Any:
        return httpx.get(f"{server.url}/health", trust_env=False).json()

    def work(run: str, lab: Any, prompt: str) -> str:
        began[run] += 1
        if (run, began["early"]) == ("early", 2) and not began["late"]:
            late.start()
            late_has_one.wait(30)
        if run == "late":
            late_has_one.set()
        # Each runner has its next trial in the queue, so it is the server that decides whose turn it is.
        while health()["waiting"] < sum(began[name] < trials for name in ("early", "late")):
            time.sleep(0.01)
        return "1"

    def run(name: str) -> None:
        policy = partial(work, name)
        policy.__name__ = name  # type: ignore[attr-defined]
        runs[name] = bench(CorralRouter(server.url), policy, tmp_path / name, task_ids=["a"], trials_per_task=trials,
                           session_id=name)  # fmt: skip

    runs: dict[str, BenchmarkResult] = {}
    with serving(f"{ENVS}:processes", "--pool-size", "2") as server:
        early, late = (threading.Thread(target=run, args=(name,)) for name in ("early", "late"))
        early.start()
        early.join(60)
        late.join(60)
        assert server.stop() == 0
        lines = [json.loads(line) for line in server.lines]
    assert [runs[name].coverage.graded for name in ("early", "late")] == [trials, trials]
    opened = [line for line in lines if line["event"] == "trial opened"]
    whose = {line["trial"]: line["run"] for line in opened}
    first = opened[0]["run"]
    order = ["early" if line["run"] == first else "late" for line in opened]
    assert order[:3] == ["early", "early", "late"]
    held: Counter[str] = Counter()
    after: list[int] = []
    for line in lines:
        if line["event"] == "trial closed":
            held[whose[line["trial"]]] -= 1
        if line["event"] == "trial opened":
            held[line["run"]] += 1
            if line["run"] != first or after:
                after.append(max(held.values()))
    assert after[: 2 * trials - 3] == [1] * (2 * trials - 3), (order, after)


@pytest.mark.parametrize("router", ROUTERS)
def test_a_worker_that_dies_is_retried_as_in_process(router: Any, tmp_path: Path) -> None:
    once = """
import os, pathlib
mark = pathlib.Path({!r})
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)"""
    local = bench(server_envs.processes, code(once.format(str(tmp_path / "x")), 1), tmp_path / "l", task_ids=["a"],
                  worker_pool=1)  # fmt: skip
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        over = bench(router(server.url), code(once.format(str(tmp_path / "y")), 1), tmp_path / "r", task_ids=["a"])
        assert server.stop() == 0
    trials = [sole(local), sole(over)]
    for trial in trials:
        first, second = trial.attempts
        assert (first.failure, first.exit_status, first.phase) == (FailureKind.WORKER_DIED, -9, "tool python")
        assert (second.failure, trial.graded, trial.score) == (None, True, 1)
    assert [attempt.phase for attempt in trials[0].attempts] == [attempt.phase for attempt in trials[1].attempts]


class Swallower(BaseAgent):
    """Makes its worker die, and goes on as if nothing had been."""

    def __init__(self, context: Any) -> None:
        super().__init__("swallower")

    def run(self, interface: Any, task_id: str, **kwargs: Any) -> str:
        try:
            interface.execute_tool(task_id, "python", {"code": "import os; os._exit(3)"})
        except Exception:
            self.surrender()
        return "fine"


@pytest.mark.parametrize("router", ROUTERS)
def test_no_score_follows_a_death(router: Any, tmp_path: Path) -> None:
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        result = bench(router(server.url), Swallower, tmp_path, task_ids=["a"], retries=0)
        assert server.stop() == 0
    trial = sole(result)
    assert (trial.failure, trial.graded, trial.attempts[0].exit_status) == (FailureKind.WORKER_DIED, False, 3)


# ---- one router ----


@pytest.mark.anyio
async def test_a_bound_router_knows_its_own_task_only(served: Served) -> None:
    """An agent that mixes up its tasks does not act on the wrong one, and breaks nothing of its own."""
    told = "^this router is bound to a trial of task 'thread', and was asked about 'other'$"
    async with AsyncCorralRouter(served.url) as router:
        opened = await router.create_trial("thread")
        bound = router.for_trial(opened["trial_runtime_id"], "thread")
        for ask in about_a_task(bound):
            with pytest.raises(OtherTask, match=told):
                await ask("other")
        with CorralRouter(served.url) as twin, pytest.raises(OtherTask, match=told):
            twin.for_trial(opened["trial_runtime_id"], "thread").execute_tool("other", "python", {"code": "1"})
        seen = router.watch(opened["trial_runtime_id"])
        assert seen is not None
        assert (seen.history.made, seen.fault, seen.calling) == (0, None, 0)
        assert (await bound.submit_answer("thread", 1)).score == 1
        await router.review_trial(opened["trial_runtime_id"])
        await router.close_trial(opened["trial_runtime_id"])


@pytest.mark.anyio
async def test_every_method(served: Served) -> None:
    async with AsyncCorralRouter(served.url) as router:
        assert await router.get_available_tasks() == ["thread", "other"]
        assert await router.get_concurrency_modes() == {"thread": "thread", "other": "thread"}
        assert await router.get_dependency_graph() == {"thread": [], "other": []}
        assert await router.supports_dependency_chain() is True
        assert (await router.get_trial_worker_active(), await router.get_trial_worker_size()) == (False, 0)
        opened = await router.create_trial("thread", "run", None, 2, 1, seed=5)
        trial = router.for_trial(opened["trial_runtime_id"], "thread", verbosity="minimal")
        assert (trial.current_verbosity, trial.mcp_url) == ("minimal", opened["mcp_url"])
        assert await trial.get_task_prompt("thread") == "task thread"
        assert "task thread" in await trial.get_task_guide("thread")
        assert "look()" in await trial.get_tools_guide("thread")
        minimal = (await trial.get_available_tools_for_task("thread"))["tools"]
        full = (await trial.get_available_tools_for_task("thread", "full"))["tools"]
        assert "description" not in minimal[0]["function"]
        assert "description" in full[0]["function"]
        assert await trial.configure_additional_apps("thread") == "nothing to set up"
        assert (await trial.execute_tool("thread", "python", {"code": "result = env.seed"})).result == 5
        assert (await trial.get_task_status("thread"))["tool_calls"] == 1
        assert (await trial.get_task_state("thread"))["trial_id"] == "thread#2"
        assert (await trial.submit_answer("thread", 0.5)).score == 0.5
        seen = router.watch(opened["trial_runtime_id"])
        assert seen is not None
        assert [call.tool for call in seen.history.kept] == ["python"]
        assert seen.result is not None
        assert (await router.close_trial(opened["trial_runtime_id"]))["warnings"] == []
        assert router.watch(opened["trial_runtime_id"]) is None
        assert (await router.surrender_task("other")).surrendered is True


@pytest.mark.anyio
async def test_a_trial_that_its_server_has_lost_is_out_of_view(served: Served) -> None:
    """Or a run over many restarts of its server would keep what it saw of every trial that was lost."""
    async with AsyncCorralRouter(served.url) as router:
        runtime_id = (await router.create_trial("thread"))["trial_runtime_id"]
        httpx.delete(f"{served.url}/trials/{runtime_id}", trust_env=False).raise_for_status()
        assert router.watch(runtime_id) is not None
        with pytest.raises(NotFound):
            await router.close_trial(runtime_id)
        assert router.watch(runtime_id) is None


def test_so_it_is_to_the_synchronous_twin(served: Served) -> None:
    with CorralRouter(served.url) as router:
        runtime_id = router.create_trial("thread")["trial_runtime_id"]
        httpx.delete(f"{served.url}/trials/{runtime_id}", trust_env=False).raise_for_status()
        with pytest.raises(NotFound):
            router.close_trial(runtime_id)
        assert router.watch(runtime_id) is None


@pytest.mark.anyio
async def test_a_given_client_is_never_closed(served: Served) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        async with AsyncCorralRouter(served.url, client=client, default_verbosity="full") as router:
            assert router.current_verbosity == "full"
            await router.get_available_tasks()
        assert not client.is_closed


def test_the_synchronous_twin(served: Served) -> None:
    with AsyncCorralRouter(served.url, default_verbosity="full").to_sync() as router:
        assert router.current_verbosity == "full"
        assert router.get_available_tasks() == ["thread", "other"]


def test_one_router_on_many_event_loops(served: Served) -> None:
    router = AsyncCorralRouter(served.url)

    async def once() -> None:
        await router.get_available_tasks()
        await router.aclose()

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(once, backend=backend)


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:8000", "ftp://x", None, 8000, "http://", "http:///x", "http://127.0.0.1:99999", "http://h:0",
     "http://h:x", "http://[::1", "http://a b", "unix:", "unix:/a\0b"],
)  # fmt: skip
def test_addresses_that_are_none(address: Any) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        CorralRouter(address)


def test_a_socket_that_is_not_there_is_named() -> None:
    # Not by a call: httpcore leaves the socket open that it could not connect.
    patience = Patience(CorralRouter("unix:/nowhere").link.address)
    for _ in DELAYS:
        patience.after(OSError("no"))
    with pytest.raises(InfrastructureError, match="server at unix:/nowhere does not answer"):
        patience.after(OSError("no"))


def test_a_plain_connection_loads_no_certificates(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import ssl

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("certificates were loaded")

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", refuse)
    with CorralRouter(served.url) as router:
        router.get_available_tasks()


# ---- connections that fail ----


class Wire:
    """Stands between a client and the server, and spoils what a test tells it to."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lose_answers = 0
        """So many answers are not passed on: the connection is cut instead."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with source, sink:
            while data := _received(source):
                if is_answer and self.lose_answers:
                    self.lose_answers -= 1
                    break
                try:
                    sink.sendall(data)
                except OSError:
                    break
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(2**16)
    except OSError:
        return b""


@contextmanager
def wire(served: Served) -> Iterator[Wire]:
    with closing(Wire(served.url)) as between:
        yield between


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_answer_is_fetched_again(served: Served, lost: int) -> None:
    """The call was carried out; its answer did not arrive. Nothing is done twice: no trial, no call, no submission."""
    with wire(served) as between, CorralRouter(between.url) as router, CorralRouter(served.url) as direct:
        before = httpx.get(f"{served.url}/health", trust_env=False).json()["open_trials"]
        between.lose_answers = lost
        opened = router.create_trial("thread")
        assert httpx.get(f"{served.url}/health", trust_env=False).json()["open_trials"] == before + 1
        trial = router.for_trial(opened["trial_runtime_id"], "thread")
        between.lose_answers = lost
        count = {"code": "env.count = getattr(env, 'count', 0) + 1; result = env.count"}
        assert trial.execute_tool("thread", "python", count).result == 1
        assert (
            direct.for_trial(opened["trial_runtime_id"], "thread").execute_tool("thread", "python", count).result == 2
        )
        between.lose_answers = lost
        assert trial.submit_answer("thread", 0.5).score == 0.5
        between.lose_answers = lost
        router.close_trial(opened["trial_runtime_id"])


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_calls, "DELAYS", (0.01, 0.01))


def _send_one(url: str, kind: str) -> Callable[[], Awaitable[Any]]:
    async def send() -> Any:
        if kind == "async":
            async with AsyncCorralRouter(url) as router:
                return await router.get_available_tasks()
        with CorralRouter(url) as sync_router:
            return sync_router.get_available_tasks()

    return send


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("hasty")
def test_a_server_that_is_gone(kind: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InfrastructureError) as caught:
        anyio.run(_send_one(url, kind))
    assert re.fullmatch(
        f"the environment server at {url} does not answer: ConnectError: .+; is it running, and is this its address\\?",
        str(caught.value),
    )
    assert "httpcore" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [httpx.ConnectTimeout, httpx.ConnectError, httpx.PoolTimeout])
@pytest.mark.usefixtures("hasty")
def test_a_host_that_nobody_connects_to_may_be_the_wrong_one(error: type[httpx.TransportError]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error("no")

    with httpx.Client(base_url="http://h", transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(InfrastructureError, match=r"is it running, and is this its address\?$"):
            CorralRouter("http://h", client=client).get_available_tasks()


def test_a_server_that_was_reached_is_where_it_was_looked_for() -> None:
    patience = Patience("http://h")
    for reached in (False, True, *[False] * (len(DELAYS) - 2)):
        patience.after(OSError("no"), reached=reached)
    with pytest.raises(InfrastructureError, match=r"at http://h does not answer: OSError: no$"):
        patience.after(OSError("no"), reached=False)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.usefixtures("hasty")
def test_a_server_that_stands_still_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system still accepts connections; nothing answers on them."""
    from corral import client

    monkeypatch.setattr(client, "TIMEOUT", httpx.Timeout(0.3))
    with serving(f"{ENVS}:threads") as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(InfrastructureError, match=r"does not answer: ReadTimeout[^;]*$"):
            anyio.run(_send_one(server.url, kind))
        os.kill(server.process.pid, signal.SIGCONT)
        assert anyio.run(_send_one(server.url, kind)) == ["thread", "other"]
        assert server.stop() == 0


def test_a_long_call_outlives_every_step(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from corral import client

    monkeypatch.setattr(client, "TIMEOUT", httpx.Timeout(5.0))
    monkeypatch.setattr(client_calls, "WAIT", 0.1)
    with CorralRouter(served.url) as router:
        response = router.execute_tool("thread", "python", {"code": "import time; time.sleep(1); result = 'slept'"})
    assert response.result == "slept"


def test_a_server_that_restarts_costs_an_attempt(tmp_path: Path) -> None:
    """Its trials are gone with it; the run goes on with the new one at the same address."""
    servers: list[Served] = []

    def policy(lab: Any, prompt: str) -> str:
        if len(servers) == 1:
            servers[0].process.kill()
            servers[0].process.wait()
            port = int(servers[0].url.rpartition(":")[2])
            again = serving(f"{ENVS}:processes", "--pool-size", "1", port=port)
            opened.append(again)
            servers.append(again.__enter__())
        return str(lab.call("python", code="result = 1"))

    opened: list[Any] = []
    with serving(f"{ENVS}:processes", "--pool-size", "1") as server:
        servers.append(server)
        try:
            result = bench(CorralRouter(server.url), policy, tmp_path, task_ids=["a"])
            assert servers[1].stop() == 0
        finally:
            for one in opened:
                one.__exit__(None, None, None)
    first, second = sole(result).attempts
    assert (first.failure, second.failure, sole(result).graded) == (FailureKind.INFRASTRUCTURE, None, True)
