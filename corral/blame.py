"""Who is to blame for a failure that carries no kind of its own: pure decisions about exceptions and phases."""

from __future__ import annotations

import sys

from corral.errors import (
    AgentError,
    ConfigureTimeout,
    DeadlineExceeded,
    ErrorRecord,
    InfrastructureError,
    ScoringError,
    TrialError,
)

_INFRASTRUCTURE_STATUS = frozenset({402, 408, 409, 425, 429})


def too_slow(phase: str, seconds: float) -> TrialError:
    """The trial's limit passed: its agent's doing, but for what only its environment does."""
    what = f"did not end within the trial's limit of {seconds:g} s"
    if phase == "submit":
        return ScoringError(f"the scoring {what}")
    if phase == "configure":
        return ConfigureTimeout(f"configuring {what}")
    return DeadlineExceeded.of_trial(seconds)


def blame(error: Exception) -> TrialError:
    """A failure outside of the agent: its own kind where it has one, else of the router that was asked."""
    if isinstance(error, TrialError):
        return error
    record = ErrorRecord.of(error)
    return InfrastructureError(f"the router failed: {record}", record=record)


def blame_agent(error: BaseException) -> TrialError:
    """A failure of the agent: what it depends on, or the agent itself."""
    if isinstance(error, TrialError):
        return error
    record = ErrorRecord.of(error)
    if any(_is_infrastructure(cause) for cause in _causes(error)):
        return InfrastructureError(f"what the agent depends on failed: {record}", record=record)
    return AgentError(f"the agent raised: {record}", record=record)


def _causes(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__
    return chain


def _is_infrastructure(error: BaseException) -> bool:
    """An endpoint's refusal for reasons of quota or health, or a connection that failed."""
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in _INFRASTRUCTURE_STATUS or status >= 500
    httpx = sys.modules.get("httpx")
    return isinstance(error, ConnectionError) or (httpx is not None and isinstance(error, httpx.TransportError))
