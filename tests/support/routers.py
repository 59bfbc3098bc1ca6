"""Routers that somebody else wrote: without our base classes, and with no more than the contract asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral import TaskTrialResult
from corral.types import ToolResponse


class HandWritten:
    """A synchronous router over counters: a trial's task is to count to 3. It remembers what was asked of it."""

    def __init__(self, *tasks: str) -> None:
        self.tasks = list(tasks)
        self.counts: dict[str, int] = {}
        self.log: list[tuple[str, ...]] = []
        self.current_verbosity = "brief"

    def get_available_tasks(self) -> list[str]:
        return self.tasks

    def get_task_prompt(self, task_id: str) -> str:
        return f"task {task_id}"

    def get_available_tools_for_task(self, task_id: str, verbosity: str | None = None) -> dict[str, Any]:
        return {"tools": [{"type": "function", "function": {"name": "count"}}]}

    def execute_tool(self, task_id: str, tool_name: str, arguments: Any) -> ToolResponse:
        self.counts[task_id] = self.counts.get(task_id, 0) + 1
        self.log.append(("count", task_id))
        return ToolResponse(True, self.counts[task_id])

    def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        self.log.append(("submit", task_id))
        self.counts[task_id] = 0
        return TaskTrialResult(task_id, 0, float(answer == 3), state={"submitted_answer": answer})

    def surrender_task(self, task_id: str) -> None:
        self.log.append(("surrender", task_id))

    def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        self.log.append(("configure", task_id))
        return "ready"


class WithTrials(HandWritten):
    """The same with trial runtimes: each counts for itself."""

    def create_trial(
        self,
        task_id: str,
        benchmark_run_id: str | None = None,
        episode_id: str | None = None,
        trial_index: int | None = None,
        tool_jobs_per_trial: int | None = None,
    ) -> dict[str, Any]:
        runtime_id = f"tr_{task_id}_{trial_index}"
        self.log.append(("create", runtime_id, str(episode_id), str(tool_jobs_per_trial)))
        return {"trial_runtime_id": runtime_id, "task_id": task_id, "workspace": "/w", "mcp_url": None}

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: str | None = None, workspace: str | None = None
    ) -> Any:
        assert workspace == "/w"
        return HandWritten(task_id)

    def close_trial(self, trial_runtime_id: str) -> None:
        self.log.append(("close", trial_runtime_id))


def as_async(router: Any) -> Any:
    """The asynchronous twin of a hand-written router."""

    def later(name: str) -> Any:
        async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(router, name)(*args, **kwargs)

        return call

    names = [name for name in dir(router) if not name.startswith("_") and callable(getattr(router, name))]
    methods = {name: later(name) for name in names if name != "for_trial"}
    if hasattr(router, "for_trial"):
        methods["for_trial"] = lambda self, *args, **kwargs: as_async(router.for_trial(*args, **kwargs))
    return type("Async", (), {**methods, "log": router.log, "current_verbosity": "brief"})()


def count_to_3(lab: Any, prompt: str) -> Any:
    return [lab.call("count") for _ in range(3)][-1]


async def count_to_3_on_loop(lab: Any, prompt: str) -> Any:
    return [await lab.call("count") for _ in range(3)][-1]


def about_a_task(router: Any) -> list[Callable[[str], Any]]:
    """All that a bound router can be asked about a task, by its id."""
    return [
        router.get_task_prompt, router.get_task_guide, router.get_tools_guide, router.get_available_tools_for_task,
        router.get_task_status, router.get_task_state, router.configure_additional_apps, router.surrender_task,
        lambda task_id: router.execute_tool(task_id, "python", {"code": "1"}),
        lambda task_id: router.submit_answer(task_id, 1),
    ]  # fmt: skip
