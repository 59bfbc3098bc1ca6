"""The shell command: arguments, what is printed, exit statuses. No engine logic."""

from __future__ import annotations

import argparse
import inspect
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import Any

import anyio
from anyio.abc import TaskStatus

from corral.agents.scripted import check_think_time
from corral.crew import check_fits
from corral.errors import ConfigError, CorralError
from corral.header import check_session_id, new_session_id
from corral.journal import Journal
from corral.named import NamedBuilder, load_named
from corral.pool.config import WorkerPoolConfig, available_cpus
from corral.pool.options import add_backend_options, backend_settings
from corral.report.console import TerminalConsole
from corral.report.differences import Differing, differing
from corral.report.exports import check_report
from corral.report.files import print_document, stable, stable_bytes
from corral.report.rendering import print_result
from corral.report.result import BenchmarkResult
from corral.report.text import printable
from corral.runner import CorralRunner
from corral.shell import Parser, let_go_of_output, say, stopping_signals
from corral.types import TrialContext
from corral.unwrap import unwrapped

WETLAB = "corral.envs.wetlab:build_envs"
WETLAB_EXPERT = "corral.envs.wetlab.agents:expert_agent"
MODEL_AGENT = "corral.agents.factories:tool_calling"

EXIT_GRADED, EXIT_NOT_GRADED, EXIT_USAGE = 0, 1, 2
"""Every planned trial graded; some not, or the run failed; bad usage. A signal gives 128 plus its number."""

DIFFERENCES = 3
"""Of how many trials --compare-serial says how they differ."""

EPILOG = """\
exit status: 0 every planned trial was graded; 1 some were not, or the run failed; 2 bad usage or configuration;
130 interrupted (143 on SIGTERM): the same command with the same --session goes on where it stopped.
"""


def parser() -> argparse.ArgumentParser:
    """The arguments of ``python -m corral.pool``."""
    parse = Parser(
        prog="python -m corral.pool",
        description="Run a benchmark on a pool of worker interpreters. Without --envs: the wetlab benchmark, by its "
        "scripted expert.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parse.add_argument
    add("--size", type=int, metavar="N", help="workers (default: the processors that may be used)")
    add("--envs", metavar="MODULE:BUILDER", help="a function that returns {task_id: Environment}")
    add("--agent", metavar="MODULE:FACTORY", help="a function of a TrialContext that returns an agent")
    add("--model", metavar="PROVIDER/NAME",
        help="a model: given to the factory as its second argument, else of a tool-calling agent")  # fmt: skip
    add("--api-base", metavar="URL", help="where the model is, if not at its provider's own address")
    add("--tasks", metavar="ID,...", help="only these tasks")
    add("--trials", type=int, metavar="N", help="trials per task (default: 1; 2 for the built-in benchmark)")
    add("--k", metavar="1,3", help="the k of pass@k and pass^k (default: 1 and the number of trials)")
    add("--max-concurrency", type=int, metavar="N", help="trials at once (default: --size)")
    add("--per-task", type=int, metavar="N", help="trials of one task at once (default: --max-concurrency)")
    add("--retries", type=int, default=1, metavar="N", help="further attempts after a failure of the machinery (1)")
    add("--trial-timeout", type=float, metavar="S", help="seconds that a trial may take")
    add("--tool-timeout", type=float, metavar="S", help="seconds that a tool call may take")
    add("--memory-limit", metavar="SIZE", help="memory of one trial's processes, such as 2GiB")
    add("--reuse", choices=("trial", "worker"), default="trial", help="fresh process state per trial (default), or not")
    add_backend_options(parse)
    add("--session", metavar="ID", help="name the session; a recorded one goes on where it stopped")
    add("--seed", type=int, metavar="N", help="the session's seed (default: drawn, or the recorded one)")
    add("--checkpoint-dir", default="./benchmark_checkpoints", metavar="DIR", help="where sessions are recorded")
    add("--retry-errors", action="store_true", help="run recorded trials that were not graded again")
    add("--think-time", type=float, default=0.0, metavar="S",
        help="seconds that the scripted agents wait at each step, as a model would take to answer")  # fmt: skip
    add("--compare-serial", action="store_true",
        help="run the same plan again with no pool, one trial at a time, and compare")  # fmt: skip
    add("--report", metavar="FILE",
        help="where the report goes; its ending says the format, such as .html or .json "
        "(default: report.json in the session's folder)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document on standard output, and nothing else there")
    add("--quiet", action="store_true", help="no progress and no tables: one line at the end")
    return parse


@dataclass(frozen=True)
class _Order:
    """What the arguments amount to."""

    runner: CorralRunner
    bench: dict[str, Any]
    pool: WorkerPoolConfig
    session: str
    report: Path
    options: argparse.Namespace
    recorded: bool
    """Whether the session, or the serial one beside it, has results of an earlier run."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = parser().parse_args(arguments)
    stop = _Stop()
    order = None
    try:
        order = _order(options)
        return anyio.run(_run, order, stop)
    except ConfigError as error:
        say(error)
        return EXIT_USAGE
    except (CorralError, _ReportFailed) as error:
        say(error)
        return EXIT_NOT_GRADED
    except (KeyboardInterrupt, _Interrupted) as stopped:
        number = stop.signal or signal.Signals(getattr(stopped, "number", signal.SIGINT))
        say(_stopped(number, order))
        return 128 + number


def _stopped(number: signal.Signals, order: _Order | None) -> str:
    kept = f"; what was finished is kept. The same command with --session {order.session} goes on." if order else ""
    return f"stopped by {number.name}{kept}"


def _order(options: argparse.Namespace) -> _Order:
    pool = WorkerPoolConfig(
        size=options.size if options.size is not None else available_cpus(),
        memory_limit=options.memory_limit,
        reuse=options.reuse,
        **backend_settings(options),
    )
    at_once = options.max_concurrency if options.max_concurrency is not None else pool.workers
    for name in ("session", "checkpoint_dir", "model", "report", "envs", "agent"):
        if getattr(options, name) == "":
            raise ConfigError(f"--{name.replace('_', '-')} is empty")
    named = None if options.session is None else check_session_id(options.session)
    session = named or new_session_id(datetime.now().astimezone(), SystemRandom())
    runner = CorralRunner(
        NamedBuilder(options.envs or WETLAB),
        agent_factory=_agent_factory(options),
        checkpoint_dir=options.checkpoint_dir,
    )
    bench = {
        "task_ids": _listed(options.tasks),
        "trials_per_task": _trials(options),
        "k_values": _numbers(options.k),
        "max_concurrency": at_once,
        "max_concurrency_per_task": options.per_task if options.per_task is not None else at_once,
        "retry_errors": options.retry_errors,
        "retries": options.retries,
        "trial_timeout": options.trial_timeout,
        "tool_timeout": options.tool_timeout,
        "progress": not options.quiet,
    }
    report = Path(options.report) if options.report else Path(options.checkpoint_dir) / session / "report.json"
    if options.report:
        _check_place(report)
    check_report(report)
    folder = Path(options.checkpoint_dir)
    recorded = any(Journal.exists(folder / name) for name in (session, f"{session}-serial"))
    return _Order(runner, bench, pool, session, report, options, recorded)


def _trials(options: argparse.Namespace) -> int:
    if options.trials is None:
        return 2 if options.envs is None else 1
    return int(options.trials)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--k must be whole numbers with commas between them, such as 1,3, not {text!r}") from None


def _agent_factory(options: argparse.Namespace) -> Callable[[TrialContext], Any]:
    if options.agent is None and options.model is None and options.envs is not None:
        raise ConfigError(
            "--envs needs --agent MODULE:FACTORY or --model: the scripted expert knows only the wetlab benchmark"
        )
    if options.api_base is not None and options.model is None:
        raise ConfigError("--api-base needs --model PROVIDER/NAME: the model that is there")
    think_time = check_think_time(options.think_time)
    factory = load_named(options.agent or (MODEL_AGENT if options.model else WETLAB_EXPERT), "--agent")
    if not callable(factory):
        raise ConfigError(f"--agent: {options.agent} is no function")

    where = {} if options.api_base is None else {"api_base": options.api_base}
    model = () if options.model is None else (options.model,)
    check_fits(factory, f"--agent: {options.agent or MODEL_AGENT}", "context", *model, **where)

    def ready(agent: Any) -> Any:
        if think_time:
            if not hasattr(agent, "think_time"):
                raise ConfigError("--think-time is for scripted agents only")
            agent.think_time = think_time
        return agent

    def make(context: TrialContext) -> Any:
        return ready(factory(context, *model, **where))

    async def make_on_loop(context: TrialContext) -> Any:
        return ready(await factory(context, *model, **where))

    return make_on_loop if inspect.iscoroutinefunction(factory) else make


def _check_place(report: Path) -> None:
    """Refuse a report that could not be written, before the run and not after it."""
    if report.is_dir():
        raise ConfigError(f"--report {report} is a folder: name a file")
    if not report.parent.is_dir():
        raise ConfigError(f"--report {report}: there is no folder {report.parent}")
    try:  # nothing tells as surely as trying
        if report.exists():
            report.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=report.parent).close()
    except OSError as error:
        raise ConfigError(f"--report {report} cannot be written: {error.strerror}") from None


class _ReportFailed(Exception):
    """The run went well, but what it gave could not be written."""


class _Interrupted(Exception):
    """A signal asked the run to stop, and it has."""


class _Stop:
    """The first signal cancels the run, a second one ends the process at once: the workers then end by themselves."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    async def watch(self, scope: anyio.CancelScope, order: _Order, *, task_status: TaskStatus[None]) -> None:
        """Until cancelled. Once it has started, no signal breaks into a line of the run."""
        with anyio.open_signal_receiver(*stopping_signals()) as signals:
            task_status.started()
            async for number in signals:
                if self.signal is not None:
                    say(_stopped(self.signal, order))
                    sys.stderr.flush()
                    os._exit(128 + number)
                self.signal = signal.Signals(number)
                scope.cancel()


async def _run(order: _Order, stop: _Stop) -> int:
    status = EXIT_NOT_GRADED
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as run:  # the watch goes on while the run is taken down: a second signal counts
                await tasks.start(stop.watch, run, order)
                status = await _bench(order)
            tasks.cancel_scope.cancel()
    if stop.signal is not None:
        raise _Interrupted
    return status


async def _bench(order: _Order) -> int:
    options = order.options
    result = await order.runner.abench(
        **order.bench, worker_pool=order.pool, session_id=order.session, seed=options.seed
    )
    try:
        result.generate_report(order.report)
    except OSError as error:
        raise _ReportFailed(f"the report cannot be written to {order.report}: {error.strerror}") from error
    serial = await _serial(order, result) if options.compare_serial else None
    try:
        _print(order, result, serial)
        sys.stdout.flush()
    except OSError as error:
        let_go_of_output()
        if not isinstance(error, BrokenPipeError):  # whoever reads has seen enough
            written = f"the report is in {order.report}"
            raise _ReportFailed(f"standard output cannot be written: {error.strerror}; {written}") from error
    return EXIT_GRADED if result.coverage.complete else EXIT_NOT_GRADED


async def _serial(order: _Order, result: BenchmarkResult) -> BenchmarkResult:
    once = {**order.bench, "max_concurrency": 1, "max_concurrency_per_task": 1}
    return await order.runner.abench(**once, session_id=f"{order.session}-serial", seed=result.seed)


def _print(order: _Order, result: BenchmarkResult, serial: BenchmarkResult | None) -> None:
    options = order.options
    if options.json:
        print_document(_document(order, result, serial))
        return
    console = TerminalConsole(highlight=False)
    if options.quiet:
        console.print(_one_line(result), soft_wrap=True, markup=False)
    else:
        print_result(result, console)
        console.print(f"Report: {order.report}", soft_wrap=True, markup=False)
    if serial is not None:
        compared = _comparison(order, result, serial)
        console.print(_compared(compared, result), soft_wrap=True)
        for line in _differences(compared):
            console.print(f"  {line}", soft_wrap=True, markup=False)


def _compared(compared: Mapping[str, Any], result: BenchmarkResult) -> str:
    reports = "the reports are equal, timings aside" if compared["equal"] else "the reports DIFFER, not in timings only"
    if compared["speed_up"] is None:
        return f"Serially, with no pool: {reports}. (Trials were recorded before, so the times tell nothing.)"
    return (
        f"Serially, with no pool: {compared['wall_s']:.1f} s against {result.wall_seconds:.1f} s, "
        f"{compared['speed_up']:.2f} x; {reports}."
    )


def _differences(compared: Mapping[str, Any]) -> Iterator[str]:
    """Where the two runs differ: their first trials that do."""
    for one in compared["differences"]:
        also = f"; {', '.join(one['also'])} too" if one["also"] else ""
        yield printable(f"{one['what']}: {one['field']} is {one['here']}, serially {one['there']}{also}")
    if more := compared["differing"] - len(compared["differences"]):
        yield f"and {more} more"


def _one_line(result: BenchmarkResult) -> str:
    coverage = result.coverage
    line = f"{coverage.graded} of {coverage.planned} trials graded, average score {result.average_score():.3f}"
    cause = result.first_cause()
    return f"{line}; session {result.session_id}" + (f"; first cause: {printable(cause)}" if cause else "")


def _comparison(order: _Order, result: BenchmarkResult, serial: BenchmarkResult) -> dict[str, Any]:
    took, alone = result.wall_seconds or math.nan, serial.wall_seconds or math.nan
    equal = stable_bytes(result) == stable_bytes(serial)
    found: list[Differing] = [] if equal else list(differing(stable(result), stable(serial)))
    return {
        "wall_s": alone,
        "speed_up": None if order.recorded else alone / took,
        "equal": equal,
        "differing": len(found),
        "differences": [asdict(one) for one in found[:DIFFERENCES]],
    }


def _document(order: _Order, result: BenchmarkResult, serial: BenchmarkResult | None) -> dict[str, Any]:
    coverage = result.coverage
    pool: Any = result.pool
    document = {
        "session": result.session_id,
        "planned": coverage.planned,
        "graded": coverage.graded,
        "not_graded": coverage.not_graded,
        "average_score": result.average_score(),
        "pass_at_k": {str(k): result.pass_at_k(k) for k in result.k_values},
        "pass_hat_k": {str(k): result.pass_hat_k(k) for k in result.k_values},
        "wall_s": result.wall_seconds,
        "seed": result.seed,
        "report": str(order.report),
        "supervisor_pid": os.getpid(),
        "pool": {
            "size": pool.size,
            "restarts": pool.restarts,
            "fresh": pool.fresh,
            "workers": [{"slot": w.slot, "pid": w.pid, "trials": w.trials, "node": w.node} for w in pool.workers],
            "nodes": [{"name": node.name, "lost": node.lost} for node in pool.nodes],
        },
        "tasks": {task_id: {"scores": task.scores} for task_id, task in result.task_results.items()},
    }
    if serial is not None:
        document["compare_serial"] = _comparison(order, result, serial)
    return document
