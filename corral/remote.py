"""CorralRouter and AsyncCorralRouter: the clients of an environment server. Thin shells over ``calls``.

Guarantees
    * No wait is cut short, be it for a slot or for a tool: a client waits in steps, and asks again under the same key.
      A server that is dead, stopped or cut off is noticed all the same, within two steps.
    * What is repeated after a lost connection is carried out once.
    * Errors are those of a run in-process: the same classes, sentences and evidence.
    * As many connections as calls at once, each used again. A router made by ``for_trial`` shares them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import anyio
import httpx
from anyio.lowlevel import current_token

from corral import calls
from corral.calls import Call, Patience, Pending
from corral.client import Bound, Link
from corral.errors import NotFound
from corral.types import ConcurrencyMode, TaskTrialResult, ToolResponse, Verbosity

T = TypeVar("T")

_NOT_REACHED = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def _delay(patience: Patience, error: Pending | httpx.TransportError) -> float:
    """Seconds to wait before the next try, in terms of what httpx raised."""
    is_silent, is_reached = isinstance(error, httpx.ReadTimeout), not isinstance(error, _NOT_REACHED)
    return patience.after(error, silent=is_silent, reached=is_reached)


class AsyncCorralRouter(Bound):
    """The asynchronous router of an environment server, on asyncio and trio.

    ``base_url`` is the server's address: ``http://host:port``, or ``unix:/path`` for a Unix socket. ``token`` is by
    default that of the environment variable CORRAL_TOKEN. A ``client`` (httpx.AsyncClient) that is given is used and
    never closed; one that the router made itself is closed by ``aclose``, or at the end of an ``async with`` block.
    """

    def __init__(
        self,
        base_url: str,
        *,
        client: httpx.AsyncClient | None = None,
        default_verbosity: Verbosity = "brief",
        token: str | None = None,
    ) -> None:
        super().__init__(Link(base_url, token, client), default_verbosity)
        self._address, self._token = base_url, token

    def to_sync(self) -> CorralRouter:
        """The synchronous twin, with connections of its own."""
        return CorralRouter(self._address, default_verbosity=self.current_verbosity, token=self._token)

    async def _client(self) -> httpx.AsyncClient:
        link = self.link
        if link.given is not None:
            return link.given  # type: ignore[no-any-return]
        here = current_token()
        if link.made is None or link.made_for != here:  # connections belong to the event loop that opened them
            link.made, link.made_for = httpx.AsyncClient(**link.options(httpx.AsyncHTTPTransport)), here
        return link.made  # type: ignore[no-any-return]

    async def _send(self, call: Call[T]) -> T:
        patience, client = Patience(self.link.address), await self._client()
        request = self.link.request(call)
        while True:
            try:
                answer = await client.request(**request)
                return calls.read_answer(call, answer.status_code, answer.content)
            except (Pending, httpx.TransportError) as error:
                delay = _delay(patience, error)
            except NotFound as error:
                raise self.missing(error) from None
            await anyio.sleep(delay)

    async def aclose(self) -> None:
        """Close the connections that it made. Used again, it makes new ones."""
        link = self.link
        client, link.made = link.made, None
        if client is not None and link.made_for == current_token():
            await client.aclose()

    async def disconnect(self) -> None:
        """The same, by the name that a runner calls at the end of a run."""
        await self.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def get_available_tasks(self) -> list[str]:
        """See AsyncRouter, here and below."""
        return await self._send(calls.tasks())

    async def get_task_prompt(self, task_id: str) -> Any:
        """The task's prompt: text, or a list of message parts."""
        return await self._send(self.place.prompt(task_id))

    async def get_task_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """Prompt, tools and how to submit, as one text."""
        return await self._send(self.place.guide(task_id, verbosity or self.current_verbosity))

    async def get_tools_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """The tools as readable text."""
        return await self._send(self.place.tools_guide(task_id, verbosity or self.current_verbosity))

    async def get_available_tools_for_task(self, task_id: str, verbosity: Verbosity | None = None) -> dict[str, Any]:
        """``{"tools": [OpenAI function schema, ...]}``."""
        return await self._send(self.place.tools(task_id, verbosity or self.current_verbosity))

    async def execute_tool(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolResponse:
        """Call a tool."""
        with self.noting(f"tool {tool_name}"):
            response = await self._send(self.place.execute(task_id, tool_name, arguments))
        return self.note_call(tool_name, arguments, response)

    async def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        """Hand in the answer and have it scored."""
        with self.noting("submit"):
            return self.note_result(await self._send(self.place.submit(task_id, self.index(), answer)))

    async def surrender_task(self, task_id: str) -> TaskTrialResult:
        """Give up: score 0."""
        with self.noting("surrender"):
            return self.note_result(await self._send(self.place.surrender(task_id)))

    async def get_task_status(self, task_id: str) -> dict[str, Any]:
        """A few words on where the trial stands."""
        return await self._send(self.place.status(task_id))

    async def get_task_state(self, task_id: str) -> dict[str, Any]:
        """The environment's state as plain data."""
        return await self._send(self.place.state(task_id))

    async def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        """Set up what the environment needs outside of it."""
        with self.noting("configure"):
            return await self._send(self.place.configure(task_id))

    async def supports_dependency_chain(self) -> bool:
        """Whether tasks can use other tasks' outputs here."""
        return await self._send(calls.supports_chains())

    async def get_dependency_graph(self) -> dict[str, list[str]]:
        """For each task the tasks whose outputs it uses."""
        return await self._send(calls.graph())

    async def get_concurrency_modes(self) -> dict[str, ConcurrencyMode]:
        """For each task how its trials may run."""
        return await self._send(calls.modes())

    async def get_trial_worker_active(self) -> bool:
        """Whether process-class trials run on a worker pool."""
        return (await self._send(calls.trial_worker()))[0]

    async def get_trial_worker_size(self) -> int:
        """The slots of the server's worker pool; 0 without one."""
        return (await self._send(calls.trial_worker()))[1]

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
        """Open a trial runtime, waiting for a slot if need be."""
        call = calls.open_trial(task_id, benchmark_run_id, episode_id, trial_index=trial_index, seed=seed,
                                tool_jobs_per_trial=tool_jobs_per_trial, outputs=outputs)  # fmt: skip
        self.note_episode(benchmark_run_id, episode_id)
        return self.note_opened(await self._send(call), trial_index)

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: Verbosity | None = None, workspace: str | None = None
    ) -> AsyncCorralRouter:
        """The same protocol, bound to one trial."""
        bound = AsyncCorralRouter.__new__(AsyncCorralRouter)
        Bound.__init__(bound, self.link, verbosity or self.current_verbosity, trial_runtime_id, task_id)
        bound._address, bound._token = self._address, self._token
        return bound

    async def review_trial(self, trial_runtime_id: str) -> None:
        """Ask what the server saw pass of a trial, for ``watch``: it may have been used past this router."""
        if (seen := self.watch(trial_runtime_id)) is None:
            return
        bound = self.for_trial(trial_runtime_id, seen.task_id)
        if seen.reviewed(await bound._send(bound.place.history())):
            seen.history = await bound._send(bound.place.seen_calls())

    async def close_trial(self, trial_runtime_id: str) -> dict[str, Any]:
        """Close a trial runtime: ``{"warnings", "peak_rss", "cpu_seconds"}``."""
        told: dict[str, Any] = {}
        try:
            told = await self._send(calls.close_trial(trial_runtime_id))
        finally:
            self.closed(trial_runtime_id, told)
        return told

    async def close_episode(self, episode_id: str) -> None:
        """Close an episode and give back its worker."""
        await self._send(calls.close_episode(self.episode_name_of(episode_id)))


class CorralRouter(Bound):
    """The synchronous router of an environment server, for threads, scripts and notebooks. See AsyncCorralRouter.

    May be used by many threads at once. ``close`` it when done, or use it in a ``with`` block.
    """

    def __init__(
        self,
        base_url: str,
        *,
        client: httpx.Client | None = None,
        default_verbosity: Verbosity = "brief",
        token: str | None = None,
    ) -> None:
        super().__init__(Link(base_url, token, client), default_verbosity)
        self._address, self._token = base_url, token

    def _client(self) -> httpx.Client:
        link = self.link
        if link.given is not None:
            return link.given  # type: ignore[no-any-return]
        with link.making:
            if link.made is None:
                link.made = httpx.Client(**link.options(httpx.HTTPTransport))
            return link.made  # type: ignore[no-any-return]

    def _send(self, call: Call[T]) -> T:
        patience, client = Patience(self.link.address), self._client()
        request = self.link.request(call)
        while True:
            try:
                answer = client.request(**request)
                return calls.read_answer(call, answer.status_code, answer.content)
            except (Pending, httpx.TransportError) as error:
                delay = _delay(patience, error)
            except NotFound as error:
                raise self.missing(error) from None
            time.sleep(delay)

    def close(self) -> None:
        """Close the connections that it made. Used again, it makes new ones."""
        link = self.link
        client, link.made = link.made, None
        if client is not None:
            client.close()

    def disconnect(self) -> None:
        """The same, by the name that a runner calls at the end of a run."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def get_available_tasks(self) -> list[str]:
        """See AsyncRouter, here and below."""
        return self._send(calls.tasks())

    def get_task_prompt(self, task_id: str) -> Any:
        """The task's prompt: text, or a list of message parts."""
        return self._send(self.place.prompt(task_id))

    def get_task_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """Prompt, tools and how to submit, as one text."""
        return self._send(self.place.guide(task_id, verbosity or self.current_verbosity))

    def get_tools_guide(self, task_id: str, verbosity: Verbosity | None = None) -> str:
        """The tools as readable text."""
        return self._send(self.place.tools_guide(task_id, verbosity or self.current_verbosity))

    def get_available_tools_for_task(self, task_id: str, verbosity: Verbosity | None = None) -> dict[str, Any]:
        """``{"tools": [OpenAI function schema, ...]}``."""
        return self._send(self.place.tools(task_id, verbosity or self.current_verbosity))

    def execute_tool(self, task_id: str, tool_name: str, arguments: Mapping[str, Any]) -> ToolResponse:
        """Call a tool."""
        with self.noting(f"tool {tool_name}"):
            response = self._send(self.place.execute(task_id, tool_name, arguments))
        return self.note_call(tool_name, arguments, response)

    def submit_answer(self, task_id: str, answer: Any) -> TaskTrialResult:
        """Hand in the answer and have it scored."""
        with self.noting("submit"):
            return self.note_result(self._send(self.place.submit(task_id, self.index(), answer)))

    def surrender_task(self, task_id: str) -> TaskTrialResult:
        """Give up: score 0."""
        with self.noting("surrender"):
            return self.note_result(self._send(self.place.surrender(task_id)))

    def get_task_status(self, task_id: str) -> dict[str, Any]:
        """A few words on where the trial stands."""
        return self._send(self.place.status(task_id))

    def get_task_state(self, task_id: str) -> dict[str, Any]:
        """The environment's state as plain data."""
        return self._send(self.place.state(task_id))

    def configure_additional_apps(self, task_id: str, timeout: float | None = None) -> str:
        """Set up what the environment needs outside of it."""
        with self.noting("configure"):
            return self._send(self.place.configure(task_id))

    def supports_dependency_chain(self) -> bool:
        """Whether tasks can use other tasks' outputs here."""
        return self._send(calls.supports_chains())

    def get_dependency_graph(self) -> dict[str, list[str]]:
        """For each task the tasks whose outputs it uses."""
        return self._send(calls.graph())

    def get_concurrency_modes(self) -> dict[str, ConcurrencyMode]:
        """For each task how its trials may run."""
        return self._send(calls.modes())

    def get_trial_worker_active(self) -> bool:
        """Whether process-class trials run on a worker pool."""
        return (self._send(calls.trial_worker()))[0]

    def get_trial_worker_size(self) -> int:
        """The slots of the server's worker pool; 0 without one."""
        return (self._send(calls.trial_worker()))[1]

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
        """Open a trial runtime, waiting for a slot if need be."""
        call = calls.open_trial(task_id, benchmark_run_id, episode_id, trial_index=trial_index, seed=seed,
                                tool_jobs_per_trial=tool_jobs_per_trial, outputs=outputs)  # fmt: skip
        self.note_episode(benchmark_run_id, episode_id)
        return self.note_opened(self._send(call), trial_index)

    def for_trial(
        self, trial_runtime_id: str, task_id: str, *, verbosity: Verbosity | None = None, workspace: str | None = None
    ) -> CorralRouter:
        """The same protocol, bound to one trial."""
        bound = CorralRouter.__new__(CorralRouter)
        Bound.__init__(bound, self.link, verbosity or self.current_verbosity, trial_runtime_id, task_id)
        bound._address, bound._token = self._address, self._token
        return bound

    def review_trial(self, trial_runtime_id: str) -> None:
        """Ask what the server saw pass of a trial, for ``watch``: it may have been used past this router."""
        if (seen := self.watch(trial_runtime_id)) is None:
            return
        bound = self.for_trial(trial_runtime_id, seen.task_id)
        if seen.reviewed(bound._send(bound.place.history())):
            seen.history = bound._send(bound.place.seen_calls())

    def close_trial(self, trial_runtime_id: str) -> dict[str, Any]:
        """Close a trial runtime: ``{"warnings", "peak_rss", "cpu_seconds"}``."""
        told: dict[str, Any] = {}
        try:
            told = self._send(calls.close_trial(trial_runtime_id))
        finally:
            self.closed(trial_runtime_id, told)
        return told

    def close_episode(self, episode_id: str) -> None:
        """Close an episode and give back its worker."""
        self._send(calls.close_episode(self.episode_name_of(episode_id)))
