"""In a notebook: what is defined in its cells runs on a pool, a result shows itself, an interrupt leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.support.pool_waiting import remain
from tests.support.scripts import ROOT, environment

pytestmark = pytest.mark.slow

DEFINITIONS = """
from corral import CorralRunner, Environment, tool
from corral.agents import ScriptedAgent

WEIGHED = []

class Scale(Environment):
    concurrency = "process"

    def get_task_prompt(self):
        return "How many times did you weigh?"

    @tool
    def weigh(self, seconds: float = 0.0) -> int:
        "Weigh."
        import time
        time.sleep(seconds)
        WEIGHED.append(seconds)
        return len(WEIGHED)

    def score(self):
        return float(self.state.submitted_answer == 2)

def build():
    return {name: Scale(name) for name in ("left", "right")}

def twice(lab, prompt):
    lab.call("weigh")
    print("weighed")
    return lab.call("weigh", seconds=SECONDS)

SECONDS = 0
runner = CorralRunner(build, agent_factory=lambda context: ScriptedAgent(twice))
"""


class Notebook:
    """A kernel, and what its cells gave."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client
        self._pid = int(self.run("__import__('os').getpid()")["text/plain"])

    @property
    def below(self) -> list[int]:
        """The processes that the kernel has started."""
        return [child.pid for child in psutil.Process(self._pid).children(recursive=True)]

    def run(self, code: str, hook: Callable[[Any], None] = lambda message: None) -> dict[str, Any]:
        """Run a cell: what it showed by media type, what it printed, the error that ended it."""
        shown: dict[str, Any] = {"printed": "", "error": None}

        def take(message: Any) -> None:
            content = message["content"]
            shown.update(content.get("data", {}))
            shown["printed"] += content.get("text", "")
            if message["msg_type"] == "error":
                shown["error"] = f"{content['ename']}: {content['evalue']}"
            hook(message)

        self._client.execute_interactive(code, timeout=50, output_hook=take)
        return shown

    def interrupt(self) -> None:
        """As the button does."""
        self._manager.interrupt_kernel()


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path), env=environment(PYTHONWARNINGS="default", PYTHONPATH=str(ROOT)))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=50)
        notebook = Notebook(manager, client)
        assert notebook.run(DEFINITIONS)["error"] is None
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_run_of_what_cells_define(notebook: Notebook) -> None:
    shown = notebook.run("result = await runner.abench(trials_per_task=2, max_concurrency=2, worker_pool=2)\nresult")
    assert shown["error"] is None
    assert shown["text/plain"].endswith("4 of 4 trials graded, average score 1.000>")
    assert "4 of 4 graded" in shown["text/html"]
    assert notebook.run("WEIGHED")["text/plain"] == "[]"  # the workers' own are elsewhere
    assert notebook.below == []
    refused = notebook.run("runner.bench()")["error"]
    assert refused == "RuntimeError: bench() was called in a running event loop: use `await runner.abench(...)` there"


def test_an_interrupted_run_goes_on(notebook: Notebook) -> None:
    below: list[int] = []

    def interrupt(message: Any) -> None:
        if "weighed" in message["content"].get("text", "") and not below:
            below.extend(notebook.below)
            notebook.interrupt()

    run = "await runner.abench(worker_pool=1, session_id='night', max_concurrency=1)"
    error = str(notebook.run(f"SECONDS = 300\n{run}", interrupt)["error"])
    assert error.startswith(("KeyboardInterrupt", "CancelledError"))
    assert below
    assert remain(below) == []
    shown = notebook.run(f"SECONDS = 0\n{run}")
    assert shown["text/plain"] == "<BenchmarkResult 'night': 2 of 2 trials graded, average score 1.000>"
