"""Trials whose transcripts, states and outputs stay in their session's journal, until one is asked for whole.

Guarantee: memory holds about 2 kB for each trial, whatever its agent said.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from corral.errors import JournalError, ProtocolError
from corral.journal import Journal, Place
from corral.records import Line, Record, decode, from_record
from corral.report.figures import seconds_of_calls
from corral.types import TaskTrialResult, TrialKey


def light(record: Record) -> Record:
    """A record without what only a transcript needs."""
    state = record.get("state")
    seconds = seconds_of_calls(state.get("tool_calls")) if isinstance(state, dict) else 0.0
    attempts = [{**attempt, "traceback": "", "output": ""} for attempt in record.get("attempts") or ()]
    return {
        **record,
        "messages": [],
        "attempts": attempts,
        "state": {"tool_calls": [{"duration": seconds}]} if seconds else {},
    }


def light_trial(trial: TaskTrialResult) -> TaskTrialResult:
    """The same of a trial."""
    seconds = seconds_of_calls(trial.state.get("tool_calls"))
    return replace(
        trial,
        messages=[],
        attempts=tuple(replace(attempt, traceback="", output="") for attempt in trial.attempts),
        state={"tool_calls": [{"duration": seconds}]} if seconds else {},
    )


@dataclass
class Shelf:
    """Where in the journal at ``path`` each trial's record stands."""

    path: Path
    places: dict[TrialKey, Place] = field(default_factory=dict)

    def whole(self, trial: TaskTrialResult) -> TaskTrialResult:
        """The trial with all that was recorded of it. JournalError if the journal cannot be read, or was changed."""
        return read_trial(self.path, trial.key, self.places[trial.key])


class ShelvingJournal:
    """A journal that notes on a shelf where each record went."""

    def __init__(self, journal: Journal, shelf: Shelf) -> None:
        self._journal = journal
        self._shelf = shelf

    def append(self, lines: list[Line]) -> None:
        """See Journal."""
        for line, place in zip(lines, self._journal.append(lines), strict=True):
            self._shelf.places[line.key] = place


def read_trial(path: Path, key: TrialKey, place: Place) -> TaskTrialResult:
    """The trial whose record stands at ``place``."""
    try:
        with path.open("rb") as file:
            file.seek(place.offset)
            record = decode(file.read(place.length))
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    if record is None:
        raise JournalError(f"{path} was changed while it was read: the record of {key} is not where it was")
    trial = from_record(record)
    if trial.key != key:
        raise ProtocolError(f"{path} has {trial.key} where {key} should be")
    return trial
