"""Every route of an environment server, as a table: its path, what it takes and gives, and what answers it.

The application and the API's description are both made from it. A trial's own surface and the shared surface of a task
are the same actions under two paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from corral import bodies as p
from corral.errors import NotFound
from corral.front import Front
from corral.guests import Place
from corral.protocol import to_problem
from corral.records import to_record
from corral.types import Action, Verbosity, check_verbosity

READ_ERRORS = (401, 403, 404, 422)
WORK_ERRORS = (401, 403, 404, 408, 409, 413, 415, 422, 500, 502, 503, 504, 507)
BODY_ERRORS = frozenset({408, 413, 415})


@dataclass(frozen=True)
class Visit:
    """One request, read."""

    front: Front
    params: Mapping[str, str]
    query: Mapping[str, str]
    raw: bytes
    """Its body as it came."""
    body: Any
    server_id: str
    mcp_url: Callable[[str], str]

    @property
    def scope(self) -> str:
        """What its idempotency key is unique in."""
        return self.params.get("trial_id") or " ".join(["other", *self.params.values()])

    @property
    def place(self) -> Place | None:
        """What its client visits: a trial, or the shared surface of a task."""
        if (trial_id := self.params.get("trial_id")) is not None:
            return "trial", trial_id
        return ("task", self.params["task_id"]) if "task_id" in self.params else None

    @property
    def verbosity(self) -> Verbosity:
        """How much tool descriptions shall say."""
        return check_verbosity(self.query.get("verbosity", "brief"))

    async def ask(self, action: Action, *arguments: Any) -> Any:
        """Ask the trial, or the task's shared one."""
        if (trial_id := self.params.get("trial_id")) is not None:
            return await self.front.ask(trial_id, action, *arguments)
        return await self.front.ask_shared(self.params["task_id"], action, *arguments)


@dataclass(frozen=True)
class Endpoint:
    """One route."""

    method: str
    path: str
    summary: str
    answer: Any
    handle: Callable[[Visit], Awaitable[Any]]
    body: type[p.Body] | None = None
    body_required: bool = True
    has_verbosity: bool = False
    errors: tuple[int, ...] = READ_ERRORS
    undo: Callable[[Front, Any], Awaitable[object]] | None = None
    """What becomes of its outcome when the client never came for it."""
    tag: str = field(default="the benchmark")


# ---- what there is ----


async def _tasks(visit: Visit) -> Any:
    return {"tasks": list(visit.front.service.catalogue)}


async def _modes(visit: Visit) -> Any:
    return {task_id: info.mode for task_id, info in visit.front.service.catalogue.items()}


async def _supported(visit: Visit) -> Any:
    return {"supported": True}


async def _graph(visit: Visit) -> Any:
    return {task_id: list(info.parents) for task_id, info in visit.front.service.catalogue.items()}


async def _worker(visit: Visit) -> Any:
    pool = visit.front.service.pool
    return {"active": pool is not None, "size": pool.size if pool is not None else 0}


async def _health(visit: Visit) -> Any:
    front = visit.front
    pool = front.service.pool
    return {
        "status": "draining" if front.draining else "ok",
        "server_id": visit.server_id,
        "tasks": len(front.service.catalogue),
        "open_trials": front.open_trials,
        "waiting": front.waiting,
        "running_calls": front.running_calls,
        "pool": asdict(pool.statistics()) if pool is not None else None,
    }


# ---- the actions of a trial, or of a task's shared one ----


async def _prompt(visit: Visit) -> Any:
    return {"prompt": await visit.ask(Action.PROMPT)}


async def _guide(visit: Visit) -> Any:
    return {"guide": await visit.ask(Action.GUIDE, visit.verbosity)}


async def _tools(visit: Visit) -> Any:
    return {"tools": await visit.ask(Action.TOOLS, visit.verbosity)}


async def _tools_guide(visit: Visit) -> Any:
    return {"guide": await visit.ask(Action.TOOLS_GUIDE, visit.verbosity)}


async def _status(visit: Visit) -> Any:
    return await visit.ask(Action.STATUS)


async def _state(visit: Visit) -> Any:
    return await visit.ask(Action.STATE)


async def _execute(visit: Visit) -> Any:
    response = await visit.ask(Action.EXECUTE, visit.body.tool_name, visit.body.arguments)
    return {"success": response.success, "result": response.result, "error": response.error}


async def _submit(visit: Visit) -> Any:
    return to_record(await visit.ask(Action.SUBMIT, visit.body.answer))


async def _surrender(visit: Visit) -> Any:
    return to_record(await visit.ask(Action.SURRENDER))


async def _configure(visit: Visit) -> Any:
    return {"message": await visit.ask(Action.CONFIGURE)}


def _surface(prefix: str, tag: str) -> list[Endpoint]:
    def read(path: str, summary: str, answer: Any, handle: Any, *, verbosity: bool = False) -> Endpoint:
        errors = tuple(sorted({*WORK_ERRORS} - BODY_ERRORS))
        return Endpoint("GET", prefix + path, summary, answer, handle, has_verbosity=verbosity, errors=errors, tag=tag)

    def act(path: str, summary: str, answer: Any, handle: Any, body: Any = None, *, required: bool = True) -> Endpoint:
        return Endpoint("POST", prefix + path, summary, answer, handle, body, required, errors=WORK_ERRORS, tag=tag)

    return [
        read("/prompt", "The prompt", p.Prompt, _prompt),
        read("/tools/guide", "The tools as readable text", p.Guide, _tools_guide, verbosity=True),
        read("/guide", "Prompt, tools and how to submit, as one text", p.Guide, _guide, verbosity=True),
        read("/tools", "The tools as function schemas", p.ToolList, _tools, verbosity=True),
        read("/status", "Where the trial stands", dict[str, Any], _status),
        read("/state", "The environment's state as plain data", dict[str, Any], _state),
        act("/tools/execute", "Call a tool", p.ToolResult, _execute, p.ExecuteTool),
        act("/submit", "Submit the answer and have it scored", p.TrialResult, _submit, p.Submit),
        act("/surrender", "Give up: score 0", p.TrialResult, _surrender),
        act("/configure", "Set up what the environment needs outside of it", p.Configured, _configure, p.Configure,
            required=False),
    ]  # fmt: skip


# ---- trial runtimes ----


async def _open(visit: Visit) -> Any:
    trial = await visit.front.open(visit.params["task_id"], visit.body)
    return {
        "trial_runtime_id": trial.runtime_id,
        "task_id": trial.task_id,
        "workspace": trial.workspace,
        "mcp_url": visit.mcp_url(trial.runtime_id),
        "worker": asdict(trial.worker) if trial.worker is not None else None,
    }


async def _forsake(front: Front, opened: Any) -> None:
    with suppress(NotFound):  # the idle limit was faster
        await front.forsake(opened["trial_runtime_id"])


async def _close(visit: Visit) -> Any:
    closed = await visit.front.close(visit.params["trial_id"])
    return closed.to_dict()


async def _history(visit: Visit) -> Any:
    trial = visit.front.find(visit.params["trial_id"])
    return {
        "phase": trial.phase,
        "running": len(trial.calling),
        "calls": trial.history.made,
        "fault": to_problem(trial.fault)[1] if trial.fault is not None else None,
        "result": to_record(trial.result) if trial.result is not None else None,
    }


async def _calls(visit: Visit) -> Any:
    history = visit.front.find(visit.params["trial_id"]).history
    calls = [{name: getattr(call, name) for name in _CALL} for call in history.kept]
    return {"calls": calls, "statistics": history.statistics}


async def _close_episode(visit: Visit) -> Any:
    await visit.front.close_episode(visit.params["episode_id"])
    return {"episode_id": visit.params["episode_id"]}


_CALL = tuple(p.SeenCall.model_fields)

ENDPOINTS: list[Endpoint] = [
    Endpoint("GET", "/tasks", "The ids of all tasks", p.TaskList, _tasks),
    Endpoint("GET", "/concurrency", "For each task how its trials may run", p.Modes, _modes),
    Endpoint("GET", "/dependency_chain", "Whether tasks can use others' outputs", p.Supported, _supported),
    Endpoint("GET", "/dependency_graph", "For each task the tasks whose outputs it uses", p.Graph, _graph),
    Endpoint("GET", "/trial_worker", "Whether there is a worker pool, and its size", p.TrialWorker, _worker),
    Endpoint("GET", "/health", "How the server is", p.Health, _health),
    Endpoint("POST", "/tasks/{task_id}/trials", "Open a trial runtime; waits for a free slot", p.OpenedTrial, _open,
             p.NewTrial, body_required=False, errors=WORK_ERRORS, undo=_forsake, tag="trials"),
    Endpoint("DELETE", "/trials/{trial_id}", "Close a trial", p.ClosedTrial, _close, tag="trials"),
    Endpoint("GET", "/trials/{trial_id}/history", "What the server saw pass of a trial", p.History, _history,
             errors=(*READ_ERRORS, 500), tag="trials"),
    Endpoint("GET", "/trials/{trial_id}/history/calls", "The trial's tool calls", p.CallList, _calls,
             errors=(*READ_ERRORS, 500), tag="trials"),
    Endpoint("DELETE", "/episodes/{episode_id}", "Close an episode and give back its slot", p.ClosedEpisode,
             _close_episode, tag="trials"),
    *_surface("/trials/{trial_id}", "trials"),
    *_surface("/tasks/{task_id}", "tasks, one trial at a time"),
]  # fmt: skip
