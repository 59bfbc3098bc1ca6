"""What can go wrong with a model's endpoint. The class says who is to blame, and so what follows::

InfrastructureError
└── EndpointError       the endpoint: quota, key, health, connection; the trial is tried again, never scored
AgentError
└── RequestRefused      our request: unknown model, a parameter that it does not take; not tried again
    └── ContextExceeded the conversation is too long for the model
"""

from __future__ import annotations

from typing import Self

from corral.errors import AgentError, InfrastructureError

EXCERPT = 500
"""Characters of an endpoint's own words that an error quotes."""


def _said(body: str) -> str:
    text = " ".join(body.split())
    return f": {text[:EXCERPT]}" if text else ""


class EndpointError(InfrastructureError):
    """The model's endpoint failed. ``status_code`` is its HTTP status, None where there was no answer."""

    status_code: int | None = None

    @property
    def in_short(self) -> str:
        """What the endpoint does, for a display that has little room."""
        return "the model does not answer" if self.status_code is None else f"the model answers HTTP {self.status_code}"

    @classmethod
    def answered(cls, model: str, status: int, body: str, tries: int) -> Self:
        """It answered with an error ``tries`` times."""
        times = f" {tries} times" if tries > 1 else ""
        error = cls(f"the endpoint of {model} answered HTTP {status}{times}{_said(body)}")
        error.status_code = status
        return error

    @classmethod
    def silent(cls, model: str, url: str, reason: str, tries: int) -> Self:
        """There was no whole answer, ``tries`` times."""
        times = f" in {tries} tries" if tries > 1 else ""
        return cls(f"the endpoint of {model} at {url} gave no answer{times}: {reason}")


class RequestRefused(AgentError):
    """The endpoint does not take our request; asking again would not help."""

    @classmethod
    def answered(cls, model: str, status: int, body: str) -> Self:
        """It refused with an HTTP status."""
        return cls(f"the endpoint of {model} refused the request with HTTP {status}{_said(body)}")


class ContextExceeded(RequestRefused):
    """The conversation does not fit the model's context."""
