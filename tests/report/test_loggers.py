"""What loggers are given, with stand-ins for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral.errors import ConfigError
from corral.report.loggers import figures, log_to_mlflow, log_to_wandb, parameters
from tests.support.sessions import everything


def test_figures_are_flat_finite_numbers() -> None:
    found = figures(everything())
    assert found["pass@1"] == everything().pass_at_k(1)
    assert found["average_score_se"] == everything().average_score_estimate().standard_error
    assert (found["planned"], found["graded"], found["tokens.details.cached"]) == (9, 7, 360)
    assert parameters(everything()) == {
        "session": "night", "model": "demo/one", "seed": 5, "trials": 3, "max_concurrency": 3,
    }  # fmt: skip


def test_mlflow_gets_names_that_it_takes_and_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {"files": []}

    @contextmanager
    def start_run(run_name: str) -> Iterator[Any]:
        told["name"] = run_name
        yield SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    stand_in = SimpleNamespace(
        start_run=start_run,
        set_experiment=lambda name: told.update(experiment=name),
        log_params=lambda values: told.update(parameters=values),
        log_metrics=lambda values: told.update(figures=values),
        log_artifact=lambda path: told["files"].append((Path(path).name, Path(path).stat().st_size > 100)),
    )
    monkeypatch.setitem(sys.modules, "mlflow", stand_in)
    assert log_to_mlflow(everything(), "nightly") == "r1"
    assert (told["name"], told["experiment"]) == ("a <night>", "nightly")
    assert "pass_at_1" in told["figures"]
    assert not [name for name in told["figures"] if set(name) & {"@", "^"}]
    assert told["files"] == [("report.html", True), ("trials.jsonl", True)]


@pytest.mark.parametrize(("log", "name"), [(log_to_mlflow, "mlflow"), (log_to_wandb, "wandb")])
def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, log: Any, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'corral\[{name}\]'"):
        log(everything())
