"""What an environment server and its clients say to each other: headers, JSON, and errors as data. No I/O.

Guarantees
    * An error that was raised on the server is raised again by its client: the same class, sentence and evidence.
    * Answers are strict JSON. To a client that asks for it by ``Accept``, not-a-number and infinities are sent as
      Python writes them, so that an agent sees the same numbers as in-process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from corral.data import to_data
from corral.errors import (
    TRIAL_ERRORS,
    ConfigError,
    CorralError,
    ErrorRecord,
    FailureKind,
    InfrastructureError,
    NotFound,
    ProtocolError,
    SerializationError,
    TrialError,
)
from corral.plain import plain
from corral.records import known_fields
from corral.types import WorkerRef

OWN_TYPE = "application/vnd.corral+json"
"""JSON in which not-a-number and infinities may stand. Corral's own clients ask for it."""
KEY_HEADER = "idempotency-key"
"""Names an operation: repeated under the same name it is joined, or its answer given again."""
KEY_PATTERN = "^[A-Za-z0-9_-]{1,200}$"
WAIT_HEADER = "corral-wait"
"""Seconds that a client waits for an answer; after them it is told "pending", and asks again under the same key."""

MAX_WAIT = 60.0
"""The longest such step."""

# ---- errors that only a server knows ----


class Refused(CorralError):
    """The server does not take the request. ``status``: of HTTP; ``kind``: in the answer's body."""

    status = 400
    kind = "refused"


class Unauthorized(Refused, ConfigError):
    """The token is missing or wrong."""

    status, kind = 401, "unauthorized"


class Forbidden(Refused, ConfigError):
    """A request that comes from a web page, or by a name that is not this server's."""

    status, kind = 403, "forbidden"


class TooLarge(Refused, ConfigError):
    """The request's body is over the server's limit."""

    status, kind = 413, "too_large"


class Incomplete(Refused, ConfigError):
    """The request's body did not come in full."""

    status, kind = 408, "incomplete"


class NotJSON(Refused, ConfigError):
    """The request's body has another content type."""

    status, kind = 415, "not_json"


class Draining(Refused):
    """The server is stopping and takes no new trials."""

    status, kind = 503, "draining"


class NotStarted(Refused):
    """The application's lifespan was not entered."""

    status, kind = 503, "not_started"


REFUSALS: dict[str, type[Refused]] = {
    kind.kind: kind for kind in (Unauthorized, Forbidden, TooLarge, Incomplete, NotJSON, Draining, NotStarted)
}

STATUSES: dict[FailureKind, int] = {
    FailureKind.WORKER_DIED: 502,
    FailureKind.MEMORY: 507,
    FailureKind.TRIAL_TIMEOUT: 504,
    FailureKind.TOOL_TIMEOUT: 504,
    FailureKind.CONFIGURE_TIMEOUT: 504,
    FailureKind.ENV_START: 503,
    FailureKind.INFRASTRUCTURE: 503,
    FailureKind.SUBMISSION: 409,
}
"""The HTTP status of each failure kind; 500 for the others."""

RETRY_AFTER = 5
"""Seconds after which a refused client may try again."""


def to_problem(error: BaseException) -> tuple[int, dict[str, Any], dict[str, str]]:
    """An error as HTTP status, body and headers."""
    match error:
        case Refused():
            headers = {"retry-after": str(RETRY_AFTER)} if error.status == 503 else {}
            if error.status == 401:
                headers["www-authenticate"] = 'Bearer realm="corral"'
            return error.status, {"kind": error.kind, "detail": str(error)}, headers
        case NotFound():
            return 404, {"kind": "not_found", "detail": str(error), "what": error.what, "name": error.name}, {}
        case ValidationError():
            return 422, {"kind": "config", "detail": _sentences(error)}, {}
        case ConfigError():
            return 422, {"kind": "config", "detail": str(error)}, {}
        case TrialError():
            return STATUSES.get(error.kind, 500), _of_trial(error), {}
        case CorralError():
            return 500, {"kind": "protocol", "detail": str(error)}, {}
    return 500, {"kind": "internal", "detail": str(ErrorRecord.of(error))}, {}


def _of_trial(error: TrialError) -> dict[str, Any]:
    return {
        "kind": error.kind.value,
        "detail": str(error),
        "record": asdict(error.record) if error.record else None,
        "exit_status": error.exit_status,
        "output": error.output,
        "phase": error.phase,
        "worker": asdict(error.worker) if isinstance(error.worker, WorkerRef) else None,
    }


def _sentences(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {_NO_OBJECT.get(problem['type'], problem['msg'])}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )


_NO_OBJECT = dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "it must be a JSON object")
"""Pydantic's own words name a class of ours."""


def to_error(status: int, body: Any) -> Exception:
    """The exception that a client raises for an answer that is none of success."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return InfrastructureError(f"the environment server answered with status {status} and {body!r:.300}")
    kind, detail = body["kind"], str(body.get("detail", ""))
    if kind == "not_found":
        return _not_found(body, detail)
    if kind in REFUSALS:
        return REFUSALS[kind](detail)
    if kind == "config":
        return ConfigError(detail)
    if kind == "protocol":
        return ProtocolError(f"on the environment server: {detail}")
    try:
        return _to_trial_error(TRIAL_ERRORS[FailureKind(kind)], detail, body)
    except (ValueError, TypeError):
        return InfrastructureError(f"the environment server failed: {detail}")


def _not_found(body: Mapping[str, Any], detail: str) -> NotFound:
    error = NotFound(str(body.get("what")), str(body.get("name")))
    error.args = (detail,)  # with its hint of what is known there
    return error


def _to_trial_error(kind: type[TrialError], detail: str, body: Mapping[str, Any]) -> TrialError:
    record = body.get("record")
    error = kind(
        detail,
        record=ErrorRecord(**known_fields(ErrorRecord, record)) if record else None,
        exit_status=body.get("exit_status"),
        output=body.get("output") or "",
    )
    error.phase, error.worker = body.get("phase"), to_worker(body.get("worker"))
    return error


def to_worker(data: Mapping[str, Any] | None) -> WorkerRef | None:
    """A worker's reference from data."""
    return None if data is None else WorkerRef(**known_fields(WorkerRef, data))


# ---- JSON ----


def encode(data: Any, *, strict: bool = True) -> bytes:
    """``data`` as JSON. What it does not know becomes plain data first. Escapes carry even lone surrogates.

    Not ``strict``: with not-a-number and infinities, in arrays too.
    """
    try:
        return json.dumps(data, allow_nan=not strict, separators=(",", ":"), default=_as_data).encode()
    except (TypeError, ValueError, RecursionError):
        return json.dumps(plain(data), separators=(",", ":")).encode()


def _as_data(value: Any) -> Any:
    try:
        return to_data(value, "an answer", arrays="list")
    except SerializationError:
        return plain(value)


def decode(body: bytes) -> Any:
    """JSON as data; ConfigError if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the body is no JSON that can be read: {type(error).__name__}: {error}") from None
