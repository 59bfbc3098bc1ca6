"""WORKER SIDE. A trial process: serves the trials of one lease over a connection of its own, then ends.

It is either a fork of a loaded worker, or a new interpreter that loads the environments itself and waits, warm, until
its worker hands it a ticket. Either way it has run nothing before its first trial.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from corral.environment import Environment
from corral.errors import ConfigError, ErrorRecord, NotFound, ProtocolError, SerializationError, ToolError, TrialError
from corral.pool import guards, leaving
from corral.pool.link import Link
from corral.pool.main_script import MainScript, import_main
from corral.pool.messages import (
    Close,
    Closed,
    Done,
    Failed,
    Finish,
    LoadFailed,
    Message,
    Open,
    Opened,
    Perform,
    Refused,
)
from corral.pool.printed import Printed
from corral.runtime import TrialRuntime
from corral.types import TrialSpec

if TYPE_CHECKING:
    from corral.pool.traces import Traces

EXIT_BROKEN = 70
"""Exit code of a trial process that failed by Corral's own doing (EX_SOFTWARE of sysexits.h)."""


class TrialServer:
    """Answers requests about the trials of one lease, one at a time."""

    def __init__(self, environments: Mapping[str, Environment], work_root: Path, *, reused: bool) -> None:
        """``reused``: whether trials of other leases follow in this process."""
        self._environments = environments
        modules = {type(environment).__module__ for environment in environments.values()}
        self._packages = frozenset(name.partition(".")[0] for name in modules) - {"corral"}
        self._reused = reused
        self._traces: dict[str, Traces] = {}
        """What the process was like when a trial was opened."""
        self._seen: Traces | None = None
        """What it was like after the last one."""
        self._work_root = work_root
        self._printed = Printed()
        self._runtimes: dict[str, TrialRuntime] = {}
        self._used_before: dict[str, float] = {}
        """CPU seconds of the process when a trial was opened."""

    def answer(self, request: Message) -> Done | Failed | Refused:
        """Carry out one request. Whatever user code raises becomes data."""
        try:
            return Done(self._carry_out(request))
        except TrialError as error:
            return Failed.of(error)
        except NotFound as error:
            return Refused(str(error), (error.what, error.name))
        except ConfigError as error:
            return Refused(str(error))
        except BaseException as error:
            record = ErrorRecord.of(error)
            return Failed(ToolError.kind, f"the environment broke out of its call: {record}", record)

    def _carry_out(self, request: Message) -> Any:
        match request:
            case Open(spec):
                return self._open(spec)
            case Perform(runtime_id, action, arguments):
                try:
                    return self._find(runtime_id).perform(action, arguments)
                finally:
                    self._printed.called(runtime_id)
            case Close(runtime_id=runtime_id):
                return self._close(runtime_id)
            case _:
                raise ProtocolError(f"a trial process was sent a {type(request).__name__}")

    def _open(self, spec: TrialSpec) -> Opened:
        self._used_before[spec.runtime_id] = used_so_far()[1]
        log_start = self._printed.begin(spec.runtime_id)
        if self._reused:
            self._traces[spec.runtime_id] = self._look_again()
        try:
            runtime = TrialRuntime(self._environments[spec.task_id], spec, self._work_root, own_process=True)
        except TrialError as error:
            error.output = self._printed.end(spec.runtime_id)
            self._used_before.pop(spec.runtime_id)
            self._traces.pop(spec.runtime_id, None)
            self._seen = None  # nobody has said what it left behind: that is to be none of the next one's
            raise
        self._runtimes[spec.runtime_id] = runtime
        return Opened(str(runtime.workspace), log_start)

    def _close(self, runtime_id: str) -> Closed:
        warnings = self._find(runtime_id).close()
        del self._runtimes[runtime_id]
        if (traces := self._traces.pop(runtime_id, None)) is not None:
            now = self._seen = self._look(traces)
            warnings = [*warnings, *filter(None, [traces.left_until(now)])]
        peak, seconds = used_so_far()
        seconds -= self._used_before.pop(runtime_id)
        output = self._printed.end(runtime_id)
        return Closed(tuple(warnings), peak, seconds, output=output, log_end=self._printed.position())

    def _look_again(self) -> Traces:
        """What the process is like now; what it was like after the last trial, where nothing can have changed it."""
        seen = self._seen
        return seen if seen is not None and seen.settled and not self._runtimes else self._look(seen)

    def _look(self, last: Traces | None) -> Traces:
        from corral.pool.traces import Traces  # most processes serve one trial

        return Traces(self._packages, last)

    def _find(self, runtime_id: str) -> TrialRuntime:
        try:
            return self._runtimes[runtime_id]
        except KeyError:
            raise NotFound("trial", runtime_id) from None

    def close(self) -> None:
        """Close what is still open."""
        for runtime in self._runtimes.values():
            runtime.close()
        self._runtimes.clear()


def used_so_far() -> tuple[int, float]:
    """Peak RSS (bytes) and CPU seconds of this process and its ended children."""
    import resource

    unit = 1024 if sys.platform == "linux" else 1
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(u.ru_maxrss for u in usage) * unit, sum(u.ru_utime + u.ru_stime for u in usage)


def serve(link: Link, server: TrialServer) -> None:
    """Answer requests until the lease ends or the connection does."""
    while (request := link.receive()) is not None and not isinstance(request, Finish):
        answer = server.answer(request)
        try:
            link.send(answer)
        except SerializationError as error:
            link.send(Failed.of(error))
        if isinstance(request, Close) and request.last:
            break
    server.close()


def run(link: Link, server: TrialServer) -> NoReturn:
    """Serve one lease and end the process, never returning to what the process was before."""
    status = EXIT_BROKEN
    try:
        serve(link, server)
        leaving.leave()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def try_main(script: MainScript | None) -> LoadFailed | None:
    """Import the main script; what to report if it cannot be. Streams and signals are then as they were before."""
    try:
        import_main(script)
    except BaseException as error:
        return LoadFailed(ErrorRecord.of(error), refused=isinstance(error, ConfigError), of_main=True)
    finally:
        with contextlib.suppress(Exception):  # they may be anything now
            sys.stdout.flush()
            sys.stderr.flush()
        guards.reopen_streams()
        guards.ignore_terminal_signals()
    return None


def load_failed(error: BaseException) -> LoadFailed:
    """What to report of loading: the exception that it raised, not the one that says so."""
    record = error.record if isinstance(error, TrialError) else None
    cause = error.__cause__ or error
    return LoadFailed(record or ErrorRecord.of(error), refused=isinstance(cause, ConfigError))
