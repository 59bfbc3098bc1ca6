"""Asks a model, patiently: one request at a time, repeated where that may help.

Guarantees
    * An answer, or an error that says who is to blame (see ``errors``): nothing else comes out.
    * No request takes longer than ``timeout``, silent and trickling endpoints included.
    * A wait that the endpoint asked for is honoured before the next try.
Works on asyncio and trio.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx

from corral.agents.llm import anthropic, backoff, openai
from corral.agents.llm.backoff import Backoff
from corral.agents.llm.endpoints import Endpoint
from corral.agents.llm.errors import ContextExceeded, EndpointError, RequestRefused
from corral.agents.llm.messages import Message, Reply
from corral.agents.remarks import remark
from corral.credentials import without_login
from corral.plain import plain

if TYPE_CHECKING:
    from corral.agents.llm.throttle import Throttle

TIMEOUT = 300.0
"""Seconds that one request may take."""

HANG = 3
"""Tries that a request without an answer counts as: each takes the whole of ``timeout``."""

_TOO_LONG = (
    "context_length_exceeded", "maximum context length", "prompt is too long", "exceeds the context",
    "exceed context", "exceeds the available context", "context window",
)  # fmt: skip


class TryFailed(Exception):
    """One try failed in a way that another one may not."""

    def __init__(
        self, error: EndpointError, asked: float | None = None, *, limited: bool = False, cost: int = 1
    ) -> None:
        self.error = error
        self.asked = asked
        self.limited = limited
        self.cost = cost
        """How many tries it counts as."""


class ChatClient:
    """A connection to one model's endpoint. Use it in an ``async with`` block."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        options: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT,
        patience: Backoff | None = None,
        headers: Mapping[str, str] | None = None,
        throttle: Throttle | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``options`` go into every request: temperature, max_tokens, what the endpoint knows besides."""
        self.endpoint = endpoint
        self.retried = 0
        """Tries that failed and were repeated."""
        protocol: Any = anthropic if endpoint.protocol == "anthropic" else openai
        self._request: Callable[..., tuple[str, dict[str, str], dict[str, Any]]] = protocol.request
        self._reply: Callable[[Any], Reply] = protocol.reply
        self._options = dict(options or {})
        self._timeout = timeout
        self._backoff = patience or Backoff()
        self._headers = dict(headers or {})
        self._throttle = throttle
        self._chance = chance
        self._http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(
            verify=_tls() if self.endpoint.base.startswith("https") else False,
            timeout=httpx.Timeout(self._timeout, connect=min(30.0, self._timeout)),
            trust_env=not self.endpoint.is_loopback,  # a proxy does not reach this machine
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self._http.aclose()

    async def complete(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> Reply:
        """The model's next turn. Raises EndpointError, RequestRefused or ContextExceeded."""
        try:
            return await self._until_it_answers(messages, tools)
        finally:
            remark("")

    async def _until_it_answers(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        failures = tries = 0
        while True:
            tries += 1
            try:
                return await self._admitted(messages, tools, tries)
            except TryFailed as failed:
                failures += failed.cost
                wait = self._backoff.wait(failures, failed.asked, self._chance())
                if wait is None:
                    raise failed.error from failed.error.__cause__
                self.retried += 1
                most = tries + self._backoff.further(failures, failed.cost)
                remark(f"{failed.error.in_short}, try {tries + 1} of {most}")
            await anyio.sleep(wait)

    async def _admitted(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tries: int) -> Reply:
        if self._throttle is None:
            return await self._ask(messages, tools, tries)
        async with self._throttle.turn() as turn:
            try:
                answer = await self._ask(messages, tools, tries)
            except TryFailed as failed:
                turn.limited = failed.limited
                raise
            turn.succeeded = True
            return answer

    async def _ask(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], tries: int) -> Reply:
        url, headers, body = self._request(self.endpoint, messages, tools, self._options)
        content, place = _written(body), without_login(url)
        headers = {"content-type": "application/json", **headers}
        try:
            with anyio.fail_after(self._timeout):
                response = await self._http.post(url, headers=headers, content=content)
        except TimeoutError:
            raise self._silent(place, f"nothing within {self._timeout:g} s", tries, cost=HANG) from None
        except httpx.TimeoutException as error:
            raise self._silent(place, f"{type(error).__name__} within {self._timeout:g} s", tries, cost=HANG) from error
        except httpx.InvalidURL as error:
            raise RequestRefused(f"{place} is no address: {error}") from error
        except httpx.LocalProtocolError:  # its words would quote a header, and headers hold keys
            raise RequestRefused(f"the request to {place} cannot be sent: its headers are none of HTTP's") from None
        except httpx.HTTPError as error:
            raise self._silent(place, f"{type(error).__name__}: {error}".rstrip(": "), tries) from error
        return self._read(response, place, tries)

    def _silent(self, place: str, reason: str, tries: int, *, cost: int = 1) -> TryFailed:
        return TryFailed(EndpointError.silent(self.endpoint.name, place, reason, tries), cost=cost)

    def _read(self, response: httpx.Response, place: str, tries: int) -> Reply:
        if response.status_code != 200:
            raise self._judged(response.status_code, response.headers, response.text, tries)
        try:
            return self._reply(json.loads(response.content))
        except (ValueError, RecursionError) as error:  # MalformedReply, and what is no JSON
            raise self._silent(place, f"{error} (in {response.text[:200]!r})", tries) from None

    def _judged(self, status: int, headers: Mapping[str, str], text: str, tries: int) -> Exception:
        """What an answer with an error status means: to be tried again, or who is to blame."""
        name = self.endpoint.name
        if backoff.may_repeat(status, headers, text):
            asked = backoff.asked_for(headers, datetime.now(UTC))
            error = EndpointError.answered(name, status, text, tries)
            return TryFailed(error, asked, limited=status in (429, 529))
        if status in backoff.ITS_OWN or not 400 <= status < 500:
            return EndpointError.answered(name, status, text or _elsewhere(headers), 1)
        if status in (400, 413) and any(sign in text.lower() for sign in _TOO_LONG):
            return ContextExceeded.answered(name, status, text)
        return RequestRefused.answered(name, status, text)


def _written(body: Any) -> str:
    """Escaped, for a lone surrogate has no UTF-8; and without the infinities that Python alone reads as JSON."""
    try:
        return json.dumps(body, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(plain(body))


def _elsewhere(headers: Mapping[str, str]) -> str:
    place = headers.get("location", "")
    return f"it sends to {without_login(place)}; give that as api_base, if it is right" if place else ""


@cache
def _tls() -> Any:
    """One for all clients: making it reads every certificate of the system, which takes 35 ms."""
    return httpx.create_ssl_context()
