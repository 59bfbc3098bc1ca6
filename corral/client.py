"""What the two routers of an environment server have in common: the address, the httpx client's settings, and what was
seen of each trial. ``remote`` has the routers themselves.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from anyio.lowlevel import EventLoopToken

from corral import calls
from corral.calls import Call, Place, SeenTrial
from corral.credentials import secret, without_login
from corral.errors import ConfigError, InfrastructureError, NotFound, TrialError
from corral.types import TaskTrialResult, ToolResponse, Verbosity, check_path, check_verbosity, shown

TIMEOUT = httpx.Timeout(calls.WAIT + calls.SILENCE, connect=calls.CONNECT_TIMEOUT, pool=None)
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=30.0)
"""No limit of its own: the run's concurrency is the limit. Idle ones end here before the server ends them."""


class Link:
    """Where the server is, and how clients for it are made. Shared by a router and those that it binds to trials."""

    def __init__(self, base_url: str, token: str | None, client: Any) -> None:
        self.base_url, self.uds = _address(base_url)
        self.address = without_login(self.base_url) if self.uds is None else f"unix:{self.uds}"
        """As it may be shown."""
        known = token if token is not None else os.environ.get("CORRAL_TOKEN") or None
        self.token = secret(known, "token") if known is not None else None
        self.given = client
        self.made: Any = None
        self.made_for: EventLoopToken | None = None
        self.making = threading.Lock()
        self.trials: dict[str, SeenTrial] = {}
        self.episodes: dict[str, list[str]] = {}
        """The names on the server of the episodes that were opened through here."""

    def options(self, transport: type[Any]) -> dict[str, Any]:
        """What an httpx client is made with."""
        plain = self.base_url.startswith("http://")
        here = urlsplit(self.base_url).hostname in ("localhost", "127.0.0.1", "::1", "corral")
        options: dict[str, Any] = {"timeout": TIMEOUT, "limits": LIMITS, "trust_env": not here}
        # Certificates take 35 ms to load, and a plain connection has none.
        options["verify"] = not plain
        if self.uds is not None:
            options["transport"] = transport(uds=self.uds, limits=LIMITS, verify=False)
        elif here:
            options["transport"] = transport(limits=LIMITS, verify=not plain, socket_options=_socket_options())
        return options

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """The arguments of an httpx client's ``request``."""
        return {
            "method": call.method,
            "url": self.base_url + call.path,
            "params": call.query,
            "content": call.body(),
            "headers": calls.headers_of(self.token) | dict(call.headers),
        }

    def opened(self, data: Mapping[str, Any], trial_index: int | None) -> None:
        """A trial was opened: what becomes of it is kept in view."""
        runtime_id = data["trial_runtime_id"]
        self.trials[runtime_id] = SeenTrial(
            runtime_id, data["task_id"], trial_index or 0, data.get("worker"), data.get("mcp_url")
        )


def _address(base_url: object) -> tuple[str, str | None]:
    if not isinstance(base_url, str) or not base_url:
        raise ConfigError(f"base_url must be the address of an environment server, not {shown(base_url)}")
    path = check_path(base_url.removeprefix("unix:"), "base_url")
    if base_url.startswith("unix:") and path:
        return "http://corral", "/" + path.lstrip("/") if path.startswith("//") else path
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(
            f"base_url must begin with http://, https:// or unix:, such as http://127.0.0.1:8000, not {base_url!r}"
        )
    try:
        parts = urlsplit(base_url)
        complete = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # no port, no IPv6 address
        complete = False
    if not complete or any(c.isspace() for c in base_url):
        raise ConfigError(f"base_url must name a host, and a port from 1 to 65535 if any, not {base_url!r}")
    return base_url.rstrip("/"), None


def _socket_options() -> list[Any]:
    return [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]


class Bound:
    """What both routers have in common: what they are bound to, and what they saw."""

    def __init__(
        self, link: Link, default_verbosity: Verbosity, trial_runtime_id: str | None = None, task_id: str = ""
    ) -> None:
        self.link = link
        self.place = Place(trial_runtime_id, task_id)
        self.current_verbosity: Verbosity = check_verbosity(default_verbosity)
        self.trial_runtime_id = trial_runtime_id

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self.link.base_url

    @property
    def mcp_url(self) -> str | None:
        """Where MCP clients reach the tools of the trial that this router is bound to."""
        seen = self._seen()
        return seen.mcp_url if seen is not None else None

    @property
    def mcp_headers(self) -> dict[str, str]:
        """What MCP clients must send along there."""
        return {"authorization": f"Bearer {self.link.token}"} if self.link.token else {}

    def set_verbosity(self, verbosity: Verbosity) -> None:
        """How much tool descriptions say from now on."""
        self.current_verbosity = check_verbosity(verbosity)

    def watch(self, trial_runtime_id: str) -> SeenTrial | None:
        """What this client saw of an open trial: its worker, its calls, what broke it."""
        return self.link.trials.get(trial_runtime_id)

    def closed(self, trial_runtime_id: str, told: Mapping[str, Any]) -> None:
        """A trial was closed, or is lost with its server: this client is done with it."""
        if (seen := self.link.trials.pop(trial_runtime_id, None)) is not None:
            seen.output = seen.output or told.get("output") or ""

    def _seen(self) -> SeenTrial | None:
        return self.link.trials.get(self.trial_runtime_id or "")

    def index(self) -> int:
        """The trial's index."""
        seen = self._seen()
        return seen.trial_index if seen is not None else 0

    def missing(self, error: NotFound) -> Exception:
        """What it means that the server does not know the trial: if it was not closed here, the server lost it."""
        if error.what != "trial" or (seen := self._seen()) is None:
            return error
        seen.fault = InfrastructureError(
            f"the environment server at {self.base_url} does not have the trial any more: it was started again, or "
            f"closed the trial because nobody used it ({error})"
        )
        return seen.fault

    @contextmanager
    def noting(self, phase: str) -> Iterator[None]:
        """A call into the trial: its phase, and the error that breaks it, are kept in view."""
        seen = self._seen()
        if seen is None:
            yield
            return
        seen.phase = phase
        seen.calling += 1
        try:
            yield
        except TrialError as error:
            seen.broke(error)
            raise
        finally:
            seen.calling -= 1

    def note_call(self, tool: str, arguments: Mapping[str, Any], response: ToolResponse) -> ToolResponse:
        """A tool call came back."""
        if (seen := self._seen()) is not None:
            seen.called(tool, arguments, response)
        return response

    def note_result(self, result: TaskTrialResult) -> TaskTrialResult:
        """The trial was submitted or surrendered."""
        if (seen := self._seen()) is not None:
            seen.result = result
        return result

    def note_episode(self, run_id: str | None, episode_id: str | None) -> None:
        """A trial of it is about to be opened. Before that is asked for: who is stopped meanwhile is to close it."""
        if episode_id is not None:
            names, name = self.link.episodes.setdefault(episode_id, []), calls.episode_name(run_id, episode_id)
            if name not in names:
                names.append(name)

    def note_opened(self, data: dict[str, Any], index: int | None) -> dict[str, Any]:
        """A trial was opened."""
        self.link.opened(data, index)
        return data

    def episode_name_of(self, episode_id: str) -> str:
        """The last one opened under that name: a router serves one run at a time."""
        names = self.link.episodes.pop(episode_id, None) or [episode_id]
        return names[-1]
