"""The shell command over recorded sessions: show, compare, export, regrade. It reads their journals alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corral.errors import ConfigError, CorralError
from corral.named import NamedBuilder
from corral.plain import plain
from corral.pool.config import WorkerPoolConfig
from corral.report.comparison import compare
from corral.report.console import TerminalConsole
from corral.report.exports import FORMATS, export, kind_of
from corral.report.files import print_document
from corral.report.regrade import regrade
from corral.report.rendering import print_comparison, print_result
from corral.report.result import BenchmarkResult
from corral.report.sessions import find_session, open_session
from corral.report.task_results import trial_report
from corral.report.trial_text import print_trial
from corral.shell import Parser, let_go_of_output, say

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

SESSION = "a session's folder, its journal, or its id under --checkpoint-dir"


def parser() -> argparse.ArgumentParser:
    """The arguments of ``python -m corral.report``."""
    parse = Parser(
        prog="python -m corral.report",
        description="Look at recorded sessions, also while they run. Nothing is run again and no session is changed.",
        epilog="exit status: 0 done; 1 a session cannot be read or the file not be written; 2 bad usage; "
        "130 interrupted (143 on SIGTERM), and then nothing is recorded",
    )
    commands = parse.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _show(commands)
    _compare(commands)
    _export(commands)
    _regrade(commands)
    for command in commands.choices.values():
        command.add_argument("--checkpoint-dir", default="./benchmark_checkpoints", metavar="DIR", help="of sessions")
    return parse


def _show(commands: Any) -> None:
    command = commands.add_parser("show", help="the tasks and figures of a session, or one trial with its transcript")
    command.add_argument("session", metavar="SESSION", help=SESSION)
    command.add_argument(
        "trial", metavar="TASK#INDEX", nargs="?", help="a trial: its reason, transcript, and what its process printed"
    )
    command.add_argument("--json", action="store_true", help="print the report without its trials, or the trial's part")
    command.set_defaults(run=_run_show)


def _compare(commands: Any) -> None:
    command = commands.add_parser("compare", help="how a session differs from another, on the tasks that both have")
    command.add_argument("before", metavar="BEFORE", help=SESSION)
    command.add_argument("after", metavar="AFTER")
    command.add_argument("--json", action="store_true", help="print the comparison as JSON")
    command.set_defaults(run=_run_compare)


def _export(commands: Any) -> None:
    forms = "; ".join(f"{kind} ({form.suffix}): {form.what}" for kind, form in FORMATS.items())
    command = commands.add_parser("export", help="write a session to files", description=f"Formats: {forms}.")
    command.add_argument("session", metavar="SESSION", help=SESSION)
    command.add_argument("files", metavar="FILE", nargs="+", help="its ending says the format")
    command.add_argument("--format", choices=tuple(FORMATS), help="for files whose ending does not say it")
    command.set_defaults(run=_run_export)


def _regrade(commands: Any) -> None:
    command = commands.add_parser(
        "regrade", help="score the stored answers again, into a session of its own", description=_REGRADE
    )
    command.add_argument("session", metavar="SESSION", help=SESSION)
    command.add_argument("--envs", required=True, metavar="MODULE:BUILDER", help="environments with the new scorer")
    command.add_argument("--as", dest="name", metavar="ID", help="the new session (default: SESSION-regraded)")
    command.add_argument("--size", type=int, metavar="N", help="workers (default: the processors that may be used)")
    command.add_argument(
        "--trial-timeout", type=float, metavar="S", help="seconds that scoring may take (default: as in the run)"
    )
    command.add_argument("--memory-limit", metavar="SIZE", help="memory of one trial's processes, such as 2GiB")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=_run_regrade)


_REGRADE = (
    "Each stored answer is submitted to a fresh environment that has the recorded tool calls, on a pool of workers "
    "as in a run; no agent runs. "
    "Scorers that read workspace files or a live simulation cannot be served."
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = options.run
    try:
        run(options)
        sys.stdout.flush()
    except ConfigError as error:
        say(error)
        return EXIT_USAGE
    except BrokenPipeError:  # whoever reads has seen enough
        let_go_of_output()
    except OSError as error:
        let_go_of_output()
        say(f"standard output cannot be written: {error.strerror or error}")
        return EXIT_FAILED
    except CorralError as error:
        say(error)
        return EXIT_FAILED
    return EXIT_DONE


def _open(options: argparse.Namespace, session: str) -> BenchmarkResult:
    return open_session(session, checkpoint_dir=options.checkpoint_dir)


def _run_show(options: argparse.Namespace) -> None:
    result = _open(options, options.session)
    if options.trial is not None:
        _show_trial(result, options.trial, as_json=options.json)
    elif options.json:
        print_document(result.head())
    else:
        print_result(result, TerminalConsole(highlight=False))


def _show_trial(result: BenchmarkResult, name: str, *, as_json: bool) -> None:
    trial = next((trial for trial in result.trials if trial.trial_id == name), None)
    if trial is None:
        example = next((f", such as {trial.trial_id!r}" for trial in result.trials), "")
        raise ConfigError(f"session {result.session_id!r} has no record of a trial {name!r}: TASK#INDEX{example}")
    whole = result.whole(trial)
    if as_json:
        print_document(trial_report(whole))
    else:
        print_trial(whole, TerminalConsole(highlight=False))


def _run_compare(options: argparse.Namespace) -> None:
    comparison = compare(_open(options, options.before), _open(options, options.after))
    if options.json:
        print_document(plain(asdict(comparison)))
    else:
        print_comparison(comparison, TerminalConsole(highlight=False))


def _run_export(options: argparse.Namespace) -> None:
    kinds = [options.format or kind_of(path) for path in options.files]  # all are known before the first is written
    result = _open(options, options.session)
    for path, kind in zip(options.files, kinds, strict=True):
        try:
            written = export(result, path, kind)
        except OSError as error:
            raise CorralError(f"{path} cannot be written: {error.strerror or error}") from error
        sys.stdout.write(f"{written}\n")


def _run_regrade(options: argparse.Namespace) -> None:
    folder = find_session(options.session, options.checkpoint_dir)
    result = open_session(folder)
    target = folder.parent / (options.name or f"{folder.name}-regraded")
    pool = WorkerPoolConfig(size=options.size, memory_limit=options.memory_limit)
    progress = False if options.quiet else None
    limits = {"worker_pool": pool, "trial_timeout": options.trial_timeout}
    again = regrade(result, NamedBuilder(options.envs), Path(target), **limits, progress=progress)
    console = TerminalConsole(highlight=False)
    print_comparison(compare(result, again), console)
    console.print(f"Session: {target}", soft_wrap=True, markup=False)
