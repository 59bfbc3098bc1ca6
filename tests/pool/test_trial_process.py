"""What a trial process answers, asked directly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral import Environment, TaskDefinition
from corral.pool import holdings, traces
from corral.pool.messages import Close, Closed, Done, Failed, Open, Opened
from corral.pool.trial_process import TrialServer
from corral.process_state import Owned
from corral.types import TrialSpec
from tests.support import leaky


def marking(env: Environment) -> None:
    """A set-up that leaves something behind and fails."""
    leaky.kept.append("left")
    raise ValueError("no such reagent")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrialServer:
    # As in a process of its own: where it goes back to, and what is looked at.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Owned, "_home", None)
    monkeypatch.setattr(traces, "_first", [])
    monkeypatch.setattr(holdings, "sys", SimpleNamespace(modules={leaky.__name__: leaky}))
    monkeypatch.setattr(leaky, "kept", [])
    failing = TaskDefinition("fails", "Fail.", [], lambda answer: 1.0, "anything", setup_fn=marking)
    return TrialServer({**leaky.build(), "fails": leaky.Leaky("fails", failing)}, tmp_path, reused=True)


def asked(server: TrialServer, request: Any) -> Any:
    answer = server.answer(request)
    assert isinstance(answer, Done)
    return answer.value


def test_what_a_failed_set_up_left_is_none_of_the_next_trial_s(server: TrialServer) -> None:
    for runtime_id in ("first", "third"):
        if runtime_id == "third":
            failed = server.answer(Open(TrialSpec("second", "fails")))
            assert isinstance(failed, Failed)
            assert "no such reagent" in failed.message
        assert isinstance(asked(server, Open(TrialSpec(runtime_id, "a"))), Opened)
        closed = asked(server, Close(runtime_id))
        assert isinstance(closed, Closed)
        assert closed.warnings == ()
    assert leaky.kept == ["left"]


def test_what_happens_between_open_and_close_is_said(server: TrialServer) -> None:
    asked(server, Open(TrialSpec("first", "a")))
    leaky.kept.append("left")
    (warning,) = asked(server, Close("first")).warnings
    assert warning.endswith("module globals tests.support.leaky.kept")
