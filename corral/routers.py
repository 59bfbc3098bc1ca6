"""Routers: what the runner and agents talk to. In-process here; a server's clients have the same methods.

The protocol is one, asynchronous and synchronous. A router that is bound to one trial (``for_trial``) answers for that
trial alone, and to its own task's id alone; an unbound one answers for the shared, serial surface of each task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from corral.errors import OtherTask
from corral.loop import LoopThread
from corral.service import OpenTrial, TrialService
from corral.source import EnvironmentsOrBuilder, EnvironmentSource
from corral.types import (
    Action,
    ConcurrencyMode,
    TaskTrialResult,
    ToolResponse,
    Verbosity,
    check_verbosity,
)

T = TypeVar("T")

Prompt = str | list[dict[str, Any]]


class AsyncRouter(Protocol):
    """What every asynchronous router can do. Its synchronous twin has the same methods without ``async``."""

    current_verbosity: Verbosity

    async def get_available_tasks(self) -> list[str]:
        """The ids of all tasks."""

    async def get_task_prompt(self, task_id: str) -> Prompt:
        """The task's prompt: text, or a list of message parts."""

    async def get_task_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """Prompt, tools and how to submit, as one text."""

    async def get_tools_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """The tools as readable text."""

    async def get_available_tools_for_task(self, task_id: str, verbosity: Verbosity | None = None) -> dict[str, Any]:
        """``{"tools": [OpenAI function schema, ...]}``."""

    async def execute_tool(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolResponse:
        """Call a tool. A tool that raises gives a response with ``success`` False; TrialError if the trial broke."""

    async def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        """Hand in the answer and have it scored."""

    async def surrender_task(self, task_id: str) -> TaskTrialResult:
        """Give up: score 0."""

    async def get_task_status(self, task_id: str) -> dict[str, Any]:
        """A few words on where the trial stands."""

    async def get_task_state(self, task_id: str) -> dict[str, Any]:
        """The environment's state as plain data."""

    async def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        """Set up what the environment needs outside of it, within ``timeout`` seconds."""

    async def supports_dependency_chain(self) -> bool:
        """Whether tasks can use other tasks' outputs here."""

    async def get_dependency_graph(self) -> dict[str, list[str]]:
        """For each task the tasks whose outputs it uses."""

    async def get_concurrency_modes(self) -> dict[str, ConcurrencyMode]:
        """For each task how its trials may run."""

    async def get_trial_worker_active(self) -> bool:
        """Whether process-class trials run on a worker pool."""

    def set_verbosity(self, verbosity: Verbosity) -> None:
        """How much tool descriptions say from now on."""

    async def create_trial(
        self,
        task_id: str,
        benchmark_run_id: str | None = None,
        episode_id: str | None = None,
        trial_index: int | None = None,
        tool_jobs_per_trial: int | None = None,
        *,
        seed: int | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Open a trial runtime: ``{"trial_runtime_id", "task_id", "workspace", "mcp_url"}``.

        ``outputs`` are those of its parents by task id, where they were not submitted in this episode here.
        """

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: Verbosity | None = None, workspace: str | None = None
    ) -> AsyncRouter:
        """The same protocol, bound to one trial."""

    async def close_trial(self, trial_runtime_id: str) -> dict[str, Any]:
        """Close a trial runtime: ``{"warnings", "peak_rss", "cpu_seconds", "exit_status", "output"}``."""

    async def close_episode(self, episode_id: str) -> None:
        """Close an episode and give back its worker."""


class AsyncLocalRouter:
    """The asynchronous router over a TrialService in this process."""

    def __init__(
        self,
        service: TrialService,
        *,
        verbosity: Verbosity = "brief",
        trial_runtime_id: str | None = None,
        task_id: str | None = None,
    ) -> None:
        """``task_id``: that of the trial, where it is bound to one."""
        self.service = service
        self.current_verbosity: Verbosity = check_verbosity(verbosity)
        self.trial_runtime_id = trial_runtime_id
        self._task_id = task_id

    async def _ask(self, task_id: str, action: Action, *arguments: Any) -> Any:
        if self.trial_runtime_id is not None:
            if task_id != self._task_id is not None:
                raise OtherTask(task_id, self._task_id)
            return await self.service.perform(self.trial_runtime_id, action, *arguments)
        return await self.service.perform_shared(task_id, action, *arguments)

    async def get_available_tasks(self) -> list[str]:
        """See AsyncRouter."""
        return list(self.service.catalogue)

    async def get_task_prompt(self, task_id: str) -> Prompt:
        """See AsyncRouter."""
        prompt: Prompt = await self._ask(task_id, Action.PROMPT)
        return prompt

    async def get_task_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """See AsyncRouter."""
        return str(await self._ask(task_id, Action.GUIDE, verbosity or self.current_verbosity))

    async def get_tools_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """See AsyncRouter."""
        return str(await self._ask(task_id, Action.TOOLS_GUIDE, verbosity or self.current_verbosity))

    async def get_available_tools_for_task(self, task_id: str, verbosity: Verbosity | None = None) -> dict[str, Any]:
        """See AsyncRouter."""
        return {"tools": await self._ask(task_id, Action.TOOLS, verbosity or self.current_verbosity)}

    async def execute_tool(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolResponse:
        """See AsyncRouter."""
        response: ToolResponse = await self._ask(task_id, Action.EXECUTE, tool_name, arguments)
        return response

    async def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        """See AsyncRouter."""
        result: TaskTrialResult = await self._ask(task_id, Action.SUBMIT, answer)
        return result

    async def surrender_task(self, task_id: str) -> TaskTrialResult:
        """See AsyncRouter."""
        result: TaskTrialResult = await self._ask(task_id, Action.SURRENDER)
        return result

    async def get_task_status(self, task_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        status: dict[str, Any] = await self._ask(task_id, Action.STATUS)
        return status

    async def get_task_state(self, task_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        state: dict[str, Any] = await self._ask(task_id, Action.STATE)
        return state

    async def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        """See AsyncRouter."""
        return str(await self._ask(task_id, Action.CONFIGURE))

    async def supports_dependency_chain(self) -> bool:
        """See AsyncRouter."""
        return True

    async def get_dependency_graph(self) -> dict[str, list[str]]:
        """See AsyncRouter."""
        return {task_id: list(info.parents) for task_id, info in self.service.catalogue.items()}

    async def get_concurrency_modes(self) -> dict[str, ConcurrencyMode]:
        """See AsyncRouter."""
        return {task_id: info.mode for task_id, info in self.service.catalogue.items()}

    async def get_trial_worker_active(self) -> bool:
        """See AsyncRouter."""
        return self.service.pool is not None

    def set_verbosity(self, verbosity: Verbosity) -> None:
        """See AsyncRouter."""
        self.current_verbosity = check_verbosity(verbosity)

    async def create_trial(
        self,
        task_id: str,
        benchmark_run_id: str | None = None,
        episode_id: str | None = None,
        trial_index: int | None = None,
        tool_jobs_per_trial: int | None = None,
        *,
        seed: int | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """See AsyncRouter."""
        trial = await self.service.create_trial(
            task_id,
            episode_id=episode_id,
            trial_index=trial_index or 0,
            tool_jobs_per_trial=4 if tool_jobs_per_trial is None else tool_jobs_per_trial,
            seed=seed or 0,
            outputs=outputs,
        )
        return {
            "trial_runtime_id": trial.runtime_id,
            "task_id": task_id,
            "workspace": trial.workspace,
            "mcp_url": None,
            "worker": trial.worker,
        }

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: Verbosity | None = None, workspace: str | None = None
    ) -> AsyncLocalRouter:
        """See AsyncRouter."""
        return AsyncLocalRouter(
            self.service,
            verbosity=verbosity or self.current_verbosity,
            trial_runtime_id=trial_runtime_id,
            task_id=task_id,
        )

    async def close_trial(self, trial_runtime_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        closed = await self.service.close_trial(trial_runtime_id)
        return closed.to_dict()

    async def close_episode(self, episode_id: str) -> None:
        """See AsyncRouter."""
        await self.service.close_episode(episode_id)

    def watch(self, trial_runtime_id: str) -> OpenTrial:
        """What the supervisor sees of an open trial: its phase, its worker, the calls that passed."""
        return self.service.find(trial_runtime_id)


class SyncRouter:
    """The synchronous twin of an asynchronous router, for use in a thread. ``call`` runs one method on the loop."""

    def __init__(self, router: AsyncRouter, call: Callable[..., Any]) -> None:
        self._router = router
        self._call: Callable[..., Any] = call

    @property
    def current_verbosity(self) -> Verbosity:
        """How much tool descriptions say."""
        return self._router.current_verbosity

    def set_verbosity(self, verbosity: Verbosity) -> None:
        """See AsyncRouter."""
        self._router.set_verbosity(verbosity)

    def _run(self, method: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        result: T = self._call(method, *args)
        return result

    def get_available_tasks(self) -> list[str]:
        """See AsyncRouter."""
        return self._run(self._router.get_available_tasks)

    def get_task_prompt(self, task_id: str) -> Prompt:
        """See AsyncRouter."""
        return self._run(self._router.get_task_prompt, task_id)

    def get_task_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """See AsyncRouter."""
        return self._run(self._router.get_task_guide, task_id, verbosity)

    def get_tools_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """See AsyncRouter."""
        return self._run(self._router.get_tools_guide, task_id, verbosity)

    def get_available_tools_for_task(self, task_id: str, verbosity: Verbosity | None = None) -> dict[str, Any]:
        """See AsyncRouter."""
        return self._run(self._router.get_available_tools_for_task, task_id, verbosity)

    def execute_tool(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolResponse:
        """See AsyncRouter."""
        return self._run(self._router.execute_tool, task_id, tool_name, arguments)

    def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        """See AsyncRouter."""
        return self._run(self._router.submit_answer, task_id, answer)

    def surrender_task(self, task_id: str) -> TaskTrialResult:
        """See AsyncRouter."""
        return self._run(self._router.surrender_task, task_id)

    def get_task_status(self, task_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        return self._run(self._router.get_task_status, task_id)

    def get_task_state(self, task_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        return self._run(self._router.get_task_state, task_id)

    def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        """See AsyncRouter."""
        return self._run(self._router.configure_additional_apps, task_id, timeout)

    def supports_dependency_chain(self) -> bool:
        """See AsyncRouter."""
        return self._run(self._router.supports_dependency_chain)

    def get_dependency_graph(self) -> dict[str, list[str]]:
        """See AsyncRouter."""
        return self._run(self._router.get_dependency_graph)

    def get_concurrency_modes(self) -> dict[str, ConcurrencyMode]:
        """See AsyncRouter."""
        return self._run(self._router.get_concurrency_modes)

    def get_trial_worker_active(self) -> bool:
        """See AsyncRouter."""
        return self._run(self._router.get_trial_worker_active)

    def create_trial(
        self,
        task_id: str,
        benchmark_run_id: str | None = None,
        episode_id: str | None = None,
        trial_index: int | None = None,
        tool_jobs_per_trial: int | None = None,
        *,
        seed: int | None = None,
        outputs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """See AsyncRouter."""

        async def create() -> dict[str, Any]:
            return await self._router.create_trial(
                task_id, benchmark_run_id, episode_id, trial_index, tool_jobs_per_trial, seed=seed, outputs=outputs
            )

        return self._run(create)

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: Verbosity | None = None, workspace: str | None = None
    ) -> SyncRouter:
        """See AsyncRouter."""
        bound = self._router.for_trial(trial_runtime_id, task_id, verbosity=verbosity, workspace=workspace)
        return SyncRouter(bound, self._call)

    def close_trial(self, trial_runtime_id: str) -> dict[str, Any]:
        """See AsyncRouter."""
        return self._run(self._router.close_trial, trial_runtime_id)

    def close_episode(self, episode_id: str) -> None:
        """See AsyncRouter."""
        return self._run(self._router.close_episode, episode_id)


class LocalRouter(SyncRouter):
    """The environments in this process, with no server: a synchronous router for scripts, notebooks and tests.

    Give it a mapping ``{task_id: Environment}`` or a function that returns one. Its trials run in this process; of
    process- and serial-class tasks one can be open at a time, and a second one is refused (ConfigError). Close it when
    done, or use it in a ``with`` block. Given to a CorralRunner, the run uses its environments, not its open trials.
    """

    def __init__(self, environments: EnvironmentsOrBuilder, *, verbosity: Verbosity = "brief") -> None:
        from corral.runtime import describe
        from corral.scratch import scratch_folder

        check_verbosity(verbosity)
        self.source = EnvironmentSource(environments)
        catalogue = describe(self.source.here())
        self._scratch = scratch_folder()
        self._loop = LoopThread()
        service = TrialService(self.source, catalogue, work_root=Path(self._scratch.name), waits=False)
        super().__init__(AsyncLocalRouter(service, verbosity=verbosity), self._loop.call)
        self._service = service

    def close(self) -> None:
        """Close every open trial."""
        self._loop.close(self._service.aclose)
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
