"""What comes of each fault in each phase: what docs/faults.md says, and what the tests hold the pool to.

``python -m tests.support.fault_table`` prints the page.
"""

from __future__ import annotations

LIMITS = {
    "start_timeout": 4.0, "setup_timeout": 1.5, "tool_timeout": 1.5, "trial_timeout": 3.0, "close_timeout": 1.0,
}  # fmt: skip
"""Seconds, in the tests."""

PHASES = {
    "spawn": "start_timeout",
    "load": "start_timeout",
    "fork": "start_timeout",
    "hello": "start_timeout",
    "set-up": "setup_timeout",
    "tool": "tool_timeout",
    "scoring": "trial_timeout",
    "close": "close_timeout",
    "between leases": "start_timeout",
}
"""Where user code runs, and the limit that ends it there."""

START_PHASES = ("spawn", "load")

_AGAIN, _OK, _WARNED, _NEW = "started again", "graded", "graded, a warning", "a new process"
_LOST = "worker_died: connection lost"


def _row(
    start: str, fork: str, hello: str, setup: str, tool: str, scoring: str, close: str, between: str
) -> dict[str, str]:
    return dict(zip(PHASES, (start, start, fork, hello, setup, tool, scoring, close, between), strict=True))


def _death(status: int) -> dict[str, str]:
    died = f"worker_died: {status}"
    return _row(_AGAIN, _OK, _OK, died, died, died, _WARNED, _NEW)


def _hang(between: str = _NEW) -> dict[str, str]:
    return _row(_AGAIN, _OK, _OK, "env_start", "tool_timeout", "scoring", _WARNED, between)


_BY_FAULT = {
    "raises": _row(_AGAIN, _OK, _OK, "env_start", "graded, a failed call", "scoring", _WARNED, _WARNED),
    "raises what cannot be rebuilt": _row(
        _AGAIN, _OK, _OK, "env_start", "graded, a failed call", "scoring", _WARNED, _WARNED
    ),
    "sys.exit(3)": _row(_AGAIN, _OK, _OK, "env_start", "tool", "scoring", _WARNED, _WARNED),
    "os._exit(9)": _death(9),
    "SIGSEGV": _death(-11),
    "SIGKILL": _death(-9),
    "SIGSTOP": _hang(),
    "hangs in Python": _hang(_WARNED),
    "hangs and holds the GIL": _hang(),
    "fills the memory": _row(_AGAIN, _OK, _OK, "memory", "memory", "memory", _WARNED, _NEW),
    "garbage on descriptors 1 and 2": _row(_OK, _OK, _OK, _OK, _OK, _OK, _OK, _WARNED),
    "10 MB on standard error": _row(_OK, _OK, _OK, _OK, _OK, _OK, _OK, _WARNED),
    "a result that cannot be sent": _row(_OK, _OK, _OK, _OK, "serialization", "scoring", _OK, _WARNED),
    "closes all descriptors": _row(_AGAIN, _OK, _OK, _LOST, _LOST, _LOST, _WARNED, _NEW),
    "leaves a grandchild": _row(_OK, _OK, _OK, _OK, _OK, _OK, _OK, _WARNED),
}

OUTCOMES = {phase: {fault: row[phase] for fault, row in _BY_FAULT.items()} for phase in PHASES}
"""By phase and fault."""

_HEAD = """\
# Faults

What comes of a fault, by where it strikes (`retries=0`, a pool of one, a time limit on everything). Each outcome is
there within its limit plus 5 seconds, and the next trial on the same slot is graded, at its first attempt: tests let
every one of these faults strike in every place. `tests/support/fault_table.py` is the source of this page.

| word | meaning |
| --- | --- |
| `env_start`, ... | the trial's `failure` ([failures](failures.md)); `worker_died` with exit code, or minus signal |
| graded | nothing happened to the trial; "a failed call": its agent was told; "a warning": its record says so |
| started again | no trial is charged: the slot's worker is started once more |
| a new process | no trial is charged: the next one gets a new process (`reuse="worker"`) |

| place | what runs there | its limit |
| --- | --- | --- |
| spawn | the main script, imported by a new worker | `start_timeout` |
| load | the builder of the environments | `start_timeout` |
| fork | handlers of `os.register_at_fork`, in a trial process that was made ahead of time | `start_timeout` |
| hello | what the main script left in the way of such a process, as it connects | `start_timeout` |
| set-up | `setup_fn` | `setup_timeout` |
| tool | a tool | `tool_timeout` |
| scoring | `score` | `trial_timeout` |
| close | `close` | `close_timeout` |
| between leases | a thread that a trial left behind (the warning), with `reuse="worker"` | 5 s |

A pool whose first worker cannot be started, however often, ends the run with an `EnvStartError` before any trial.

"""


def page() -> str:
    """docs/faults.md."""
    rows = [f"| {fault} | {' | '.join(_cell(row[phase]) for phase in PHASES)} |" for fault, row in _BY_FAULT.items()]
    return _HEAD + "\n".join([f"| | {' | '.join(PHASES)} |", "| --- |" + " --- |" * len(PHASES), *rows]) + "\n"


def _cell(outcome: str) -> str:
    kind, colon, rest = outcome.partition(":")
    plain = outcome.startswith(("graded", "started", "a new"))
    return outcome if plain else f"`{kind}`{colon and ','}{rest}"


if __name__ == "__main__":
    print(page(), end="")
