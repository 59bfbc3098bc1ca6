"""A finished session as a run of MLflow or Weights & Biases: parameters, figures, and the page and report as files.

Both are extras (``corral[mlflow]``, ``corral[wandb]``) and are imported when they are asked for.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corral.errors import ConfigError
from corral.report.figures import flat_numbers
from corral.scratch import scratch_folder

if TYPE_CHECKING:
    from corral.report.result import BenchmarkResult

FILES = ("report.html", "trials.jsonl")


def log_to_mlflow(result: BenchmarkResult, experiment: str | None = None) -> str:
    """Log ``result`` as a run of MLflow, of the active experiment or of ``experiment``; the run's id."""
    mlflow = _import("mlflow")
    if experiment is not None:
        mlflow.set_experiment(experiment)
    with mlflow.start_run(run_name=_name(result)) as run, scratch_folder() as folder:
        mlflow.log_params(parameters(result))
        mlflow.log_metrics({name.replace("@", "_at_").replace("^", "_hat_"): n for name, n in figures(result).items()})
        for name in FILES:
            mlflow.log_artifact(str(result.export(Path(folder) / name)))
        return str(run.info.run_id)


def log_to_wandb(result: BenchmarkResult, project: str | None = None) -> str:
    """Log ``result`` as a run of Weights & Biases in ``project``; the run's id. WANDB_MODE=offline needs no account."""
    wandb = _import("wandb")
    with wandb.init(project=project, name=_name(result), config=parameters(result)) as run:
        run.summary.update(figures(result))
        with scratch_folder() as folder:
            for name in FILES:
                run.save(str(result.export(Path(folder) / name)), base_path=folder, policy="now")
            run_id = str(run.id)
            run.finish()  # before the folder goes: files are taken from it in the background
    return run_id


def parameters(result: BenchmarkResult) -> dict[str, Any]:
    """What the run was made with."""
    own = {"session": result.session_id, "model": result.model, "seed": result.seed, "trials": result.trials_per_task}
    return {name: value for name, value in {**own, **result.settings}.items() if value is not None}


def figures(result: BenchmarkResult) -> dict[str, float]:
    """The figures with their standard errors, coverage, tokens and the user's metrics, by flat names."""
    found: dict[str, float] = {"planned": result.coverage.planned, "graded": result.coverage.graded}
    statistics = result.statistics()
    named = {"average_score": statistics["average_score"], "success_rate": statistics["success_rate"]}
    named |= {f"pass@{k}": value for k, value in statistics["pass_at_k"].items()}
    named |= {f"pass^{k}": value for k, value in statistics["pass_hat_k"].items()}
    for name, value in named.items():
        if value is not None:
            found |= {
                name: value.value,
                f"{name}_se": value.standard_error,
                f"{name}_low": value.low,
                f"{name}_high": value.high,
            }
    found |= flat_numbers(result.total_token_usage(), "tokens.") | flat_numbers(result.metric_values, "metric.")
    return {name: number for name, number in found.items() if number == number}


def _name(result: BenchmarkResult) -> str:
    return result.run_name or result.session_id


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"this needs {name}: pip install 'corral[{name}]'") from None
