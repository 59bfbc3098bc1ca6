"""One exchange of an environment server's HTTP: the request's body and headers read, its answer written.

Guarantees
    * A body that is too large, does not come, or is no JSON is refused with a sentence; so is an answer that is too
      large to send.
    * Whoever waits for an operation is told "pending" when its time is over; one that can be undone is left at once
      when its client goes away.
"""

from __future__ import annotations

import hashlib
import logging
import re
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from corral.errors import ConfigError, SerializationError
from corral.once import Operation
from corral.protocol import (
    KEY_HEADER,
    KEY_PATTERN,
    MAX_WAIT,
    OWN_TYPE,
    WAIT_HEADER,
    Incomplete,
    NotJSON,
    TooLarge,
    encode,
    to_problem,
)

log = logging.getLogger("corral.server")

JSON = "application/json"
BODY_SILENCE = 30.0
"""Seconds without a byte after which a request's body is taken for one that never comes."""


class Pending(Exception):
    """The operation goes on."""


# ---- the request ----


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body, of at most ``limit`` bytes."""
    parts, size, more = [], 0, True
    while more:
        part, more = await _part(request)
        size += len(part)
        if size > limit:
            raise TooLarge(f"the request's body is over this server's limit of {limit / 2**20:g} MiB")
        parts.append(part)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and kind != JSON and not (kind.startswith("application/") and kind.endswith("+json")):
        raise NotJSON(f"the body must be {JSON}, and came {f'as {kind}' if kind else 'without a content type'}")
    return b"".join(parts)


async def _part(request: Request) -> tuple[bytes, bool]:
    with anyio.move_on_after(BODY_SILENCE):
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Incomplete("the client went away in the middle of the request's body")
        return message.get("body", b""), message.get("more_body", False)
    raise Incomplete(f"nothing came of the request's body for {BODY_SILENCE:g} s")


def key_of(request: Request) -> str | None:
    """The idempotency key that the client chose."""
    key = request.headers.get(KEY_HEADER)
    if key is not None and not re.fullmatch(KEY_PATTERN, key):
        raise ConfigError(f"{KEY_HEADER} must be 1 to 200 letters, digits, - and _, not {key!r:.100}")
    return key


def wait_of(request: Request) -> float | None:
    """How long the client waits for an answer."""
    given = request.headers.get(WAIT_HEADER)
    if given is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT:
        raise ConfigError(f"{WAIT_HEADER} must be a number of seconds from 0 to {MAX_WAIT:g}, not {given!r}")
    return seconds


def digest(request: Request, body: bytes) -> bytes:
    """Tells two requests apart. Of the bytes: data would not do, for not-a-number is not equal to itself."""
    head = "\n".join([request.method, request.scope["path"], request.scope["query_string"].decode("latin-1"), ""])
    return hashlib.sha256(head.encode("utf-8", "backslashreplace") + body).digest()


# ---- the answer ----


async def outcome_of(operation: Operation, request: Request, wait: float | None) -> Any:
    """The operation's outcome; Pending when the wait is over, or its client has gone."""
    if operation.ended.is_set():  # with no time to wait, it would not even be looked at
        return await operation.outcome()
    if operation.undo is None:
        with anyio.move_on_after(wait):
            return await operation.outcome()
        raise Pending
    outcome: list[Any] = []
    errors: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_gone, request, tasks.cancel_scope)
        with anyio.move_on_after(wait):
            try:
                outcome.append(await operation.outcome())
            except Exception as error:
                errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    if not outcome:
        raise Pending
    return outcome[0]


async def _cancel_when_gone(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def answer(request: Request, value: Any, limit: int) -> Response:
    """``value`` as the client wants it. SerializationError if that has more than ``limit`` bytes."""
    own = OWN_TYPE in request.headers.get("accept", "")
    body = encode(value, strict=not own)
    check_size(len(body), limit, request.url.path)
    return Response(body, media_type=OWN_TYPE if own else JSON)


def check_size(size: int, limit: int, path: str) -> None:
    """SerializationError for an answer of more than ``limit`` bytes."""
    if size > limit:
        raise SerializationError(
            f"the answer to {path} has {size / 2**20:.1f} MiB, over this server's limit of {limit / 2**20:g} MiB"
        )


def as_json(status: int, data: Any, headers: dict[str, str] | None = None) -> Response:
    """An answer of that status."""
    return Response(encode(data), status, headers, media_type=JSON)


def problem(request: Request, error: Exception) -> Response:
    """An error as its answer. Corral's own faults are logged."""
    status, body, headers = to_problem(error)
    if body["kind"] in ("internal", "protocol"):
        log.error("a request failed", exc_info=error, extra={"facts": {"path": request.url.path}})
    return as_json(status, body, headers)
