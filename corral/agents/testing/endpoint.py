"""The scripted endpoint: an ASGI application that plays OpenAI and Anthropic, and keeps a log of what it served."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import anyio

from corral.agents.loopback import serving
from corral.agents.testing import anthropic_side, openai_side
from corral.agents.testing.faults import Fault, Faults
from corral.agents.testing.openai_side import BadRequest
from corral.agents.testing.scripts import Call, Conversation, Script, Turn
from corral.agents.testing.tokens import usage_of

Send = Callable[[dict[str, Any]], Any]
SUBMIT = "submit_answer"


@dataclass(frozen=True)
class Served:
    """One request, and what became of it."""

    number: int
    at: float
    """When it came, by ``time.monotonic``."""
    path: str
    key: str
    """The same for equal requests: a digest of the body."""
    conversation: Conversation | None
    status: int | None
    """None where there was no whole answer."""
    fault: Fault | None = None
    headers: dict[str, str] | None = None
    body: Any = None


class ScriptedEndpoint:
    """A model behind an endpoint: ``/v1/chat/completions`` and ``/v1/messages``.

    It is strict: what the real APIs refuse (a call without its result, an empty text) is a 400 here too.
    ``key``: the only API key that is taken; None takes any.
    """

    def __init__(self, script: Script, *, faults: Faults | None = None, key: str | None = None) -> None:
        self.script = script
        self.faults = faults or Faults()
        self.key = key
        self.served: list[Served] = []
        self.usage: Counter[str] = Counter()
        """Tokens of all whole answers, by the names that agents use."""
        self._numbers = 0
        self._lock = threading.Lock()

    def serving(self) -> AbstractContextManager[str]:
        """Serve it on loopback while a ``with`` block runs; gives its address, without ``/v1``."""
        return serving(self)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        text = await _body(receive)
        side = _side(scope["path"])
        if side is None or scope["method"] != "POST":
            await _respond(send, 404, {"error": {"message": f"no {scope['method']} {scope['path']} here"}})
            return
        with self._lock:
            number = self._numbers
            self._numbers += 1
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = _Request(number, scope["path"], text, headers, side)
        fault = self.faults.of(number)
        if fault is not None:
            await self._fail(request, fault, receive, send)
        else:
            await self._serve(request, receive, send)

    async def _serve(self, request: _Request, receive: Any, send: Send) -> None:
        side = request.side
        if self.key is not None and request.key != self.key:
            return await self._refuse(request, send, 401, "invalid api key")
        try:
            body = json.loads(request.text)
            conversation = side.read(body)
        except (BadRequest, ValueError, KeyError, TypeError) as problem:
            return await self._refuse(request, send, 400, f"{type(problem).__name__}: {problem}")
        try:
            turn = self.script(conversation)
        except Exception as error:
            return await self._refuse(request, send, 500, f"the script raised {type(error).__name__}: {error}")
        if isinstance(turn, Fault):
            return await self._fail(request, turn, receive, send)
        usage = usage_of(body["messages"], conversation.turns, turn)
        whole = side.answer(conversation, _rendered(turn, conversation), usage, request.number)
        self.usage.update(usage.counted())
        self._note(request, 200, conversation=conversation, body=body)
        if body.get("stream"):
            await _stream(send, side.stream(whole))
        else:
            await _respond(send, 200, whole)
        return None

    async def _refuse(self, request: _Request, send: Send, status: int, message: str) -> None:
        self._note(request, status)
        await _respond(send, status, request.side.error(status, message, None))

    async def _fail(self, request: _Request, fault: Fault, receive: Any, send: Send) -> None:
        if fault.kind == "status":
            self._note(request, fault.status, fault)
            body = request.side.error(fault.status, fault.message, fault.code)
            await _respond(send, fault.status, body, fault.headers)
        elif fault.kind == "garbage":
            self._note(request, 200, fault)
            await _respond(send, 200, "<html>no model here</html>")
        elif fault.kind == "cut":
            self._note(request, None, fault)
            await _begin(send, 200, {"content-length": "1000", "content-type": "application/json"})
            await send({"type": "http.response.body", "body": b'{"id": ', "more_body": True})
            raise ConnectionAbortedError("on order")  # the server closes the connection in the middle
        else:
            self._note(request, None, fault)
            await _gone(receive)

    def _note(self, request: _Request, status: int | None, fault: Fault | None = None, **more: Any) -> None:
        conversation, body = more.get("conversation"), more.get("body")
        with self._lock:
            self.served.append(
                Served(
                    request.number, request.at, request.path, request.digest, conversation, status, fault,
                    request.headers, body,
                )
            )  # fmt: skip


class _Request:
    def __init__(self, number: int, path: str, text: bytes, headers: dict[str, str], side: ModuleType) -> None:
        self.number, self.path, self.text, self.headers, self.side = number, path, text, headers, side
        self.at = time.monotonic()
        self.digest = hashlib.sha256(text).hexdigest()

    @property
    def key(self) -> str | None:
        """The API key that came with it."""
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ") or None


def _side(path: str) -> ModuleType | None:
    if path.endswith("/chat/completions"):
        return openai_side
    return anthropic_side if path.endswith("/messages") else None


def _rendered(turn: Turn, conversation: Conversation) -> Turn:
    """The turn as the agent that asks expects it: native calls under its names for the tools, or ReAct's text."""
    if not conversation.tools:
        return _as_text(turn)
    if turn.answer is not None:
        if (submit := _offered(SUBMIT, conversation.tools)) is None:
            return _saying(turn, "\n".join(filter(None, [turn.text, f"Answer: {turn.answer}"])))
        turn = replace(turn, calls=(*turn.calls, Call(submit, {"answer": turn.answer})))
    calls = tuple(replace(call, tool=_offered(call.tool, conversation.tools) or call.tool) for call in turn.calls)
    return replace(_saying(turn, turn.text or ("" if calls else " ")), calls=calls)


def _offered(tool: str, offered: Iterable[str]) -> str | None:
    """The name under which a tool is offered: MCP clients put the server's name before it."""
    return next((name for name in offered if name == tool or name.endswith(f"__{tool}")), None)


def _as_text(turn: Turn) -> Turn:
    lines = [f"Thought: {turn.text}"] if turn.text and (turn.calls or turn.answer is not None) else [turn.text]
    if turn.calls:
        call = turn.calls[0]
        given = json.dumps(call.arguments) if call.raw is None else call.raw
        lines += [f"Action: {call.tool}", f"Action Input: {given}"]
    elif turn.answer is not None:
        lines.append(f"Answer: {turn.answer}")
    return _saying(turn, "\n".join(filter(None, lines)) or " ")


def _saying(turn: Turn, text: str) -> Turn:
    return Turn(text, was_cut=turn.was_cut)


# ---- ASGI ----


async def _body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _gone(receive: Any) -> None:
    """Until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        await anyio.sleep(0)


async def _begin(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


async def _respond(send: Send, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    await _begin(send, status, {"content-type": "application/json", **(headers or {})})
    text = body if isinstance(body, str) else json.dumps(body)
    await send({"type": "http.response.body", "body": text.encode()})


async def _stream(send: Send, events: Iterable[str]) -> None:
    await _begin(send, 200, {"content-type": "text/event-stream"})
    for event in events:
        await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})
