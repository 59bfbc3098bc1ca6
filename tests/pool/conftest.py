"""What the pool's tests share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def no_main_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import the main module: here it would be pytest, which tests nothing and takes its time."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)


@pytest.fixture(params=["fork", "spawn"])
def fresh(request: pytest.FixtureRequest) -> str:
    """Both ways to make fresh process state."""
    return str(request.param)
