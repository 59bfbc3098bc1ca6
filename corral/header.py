"""What a session was started with: the first line of its journal, and whether another run would be the same session.

A run that goes on with a session must want what that was recorded for; all that differs is told, in words.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from random import Random
from typing import Any, Self

from corral.errors import ConfigError, SessionMismatch
from corral.plain import plain
from corral.records import Record
from corral.types import shown


def check_session_id(session_id: object) -> str:
    """Return ``session_id`` if it can name a session, and so a directory anywhere; raise ConfigError otherwise."""
    if not isinstance(session_id, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", session_id):
        raise ConfigError(f"a session id is 1 to 100 letters, digits, '.', '_' or '-', not {shown(session_id)}")
    if session_id in (".", ".."):
        raise ConfigError(f"a session id cannot be {session_id!r}, which names a directory of its own")
    return session_id


def new_session_id(now: datetime, random: Random) -> str:
    """A readable id, such as ``20261129-194443-3f2a``."""
    return f"{now:%Y%m%d-%H%M%S}-{random.getrandbits(16):04x}"


@dataclass(frozen=True)
class Header:
    """What a session was started with."""

    session: str
    created: str
    """ISO 8601, with the offset from UTC."""
    versions: Record
    plan: Record
    """What is run: ``task_ids``, ``trials_per_task``, ``seed``, and what else must stay the same."""
    fingerprint: Record
    """What it is run with: ``model``, ``tasks`` (each one's digest), and what else must stay the same."""

    @classmethod
    def new(cls, session: str, plan: Record, fingerprint: Record, now: datetime) -> Self:
        """A header for a session that starts ``now``, by this Corral on this Python."""
        if now.tzinfo is None:
            now = now.astimezone()
        versions = {"corral": metadata.version("corral"), "python": platform.python_version()}
        return cls(check_session_id(session), now.isoformat(timespec="seconds"), versions, plan, fingerprint)


def check_same(header: Header, plan: Record, fingerprint: Record, *, recorded_trials: int = 0) -> None:
    """Raise SessionMismatch, with every difference in words, if a session was recorded for something else.

    More trials per task are allowed, fewer are not: ``recorded_trials`` is the number that the journal already holds
    of some task, for a session that was grown before. A ``seed`` of None, or one that is absent, means the recorded
    one. The order of ``task_ids`` does not matter.
    """
    differences = [
        *_compare_tasks(header.plan, plan),
        *_compare_trials(header.plan, plan, recorded_trials),
        *_compare_seeds(header.plan, plan),
        *_compare_rest("", header.plan, plan, skip={"task_ids", "trials_per_task", "seed"}),
        *_compare_digests(header.fingerprint, fingerprint),
        *_compare_rest("", header.fingerprint, fingerprint, skip={"tasks"}),
    ]
    if differences:
        raise SessionMismatch(header.session, differences)


def _compare_tasks(old: Record, new: Record) -> Iterator[str]:
    before, after = old.get("task_ids") or [], new.get("task_ids") or []
    if gone := [task for task in before if task not in set(after)]:
        yield f"tasks that it has and that are not asked for now: {_listed(gone)}"
    if added := [task for task in after if task not in set(before)]:
        yield f"tasks that are asked for now and that it does not have: {_listed(added)}"


def _compare_trials(old: Record, new: Record, recorded: int) -> Iterator[str]:
    before, after = max(old.get("trials_per_task") or 0, recorded), new.get("trials_per_task") or 0
    if after < before:
        yield f"it has {before} trials per task, and {after} are asked for now: a session can grow, not shrink"


def _compare_seeds(old: Record, new: Record) -> Iterator[str]:
    if new.get("seed") is not None and new["seed"] != old.get("seed"):
        yield f"its seed is {old.get('seed')}, and {new['seed']} is asked for now (leave the seed out to keep its own)"


def _compare_digests(old: Record, new: Record) -> Iterator[str]:
    before, after = old.get("tasks") or {}, new.get("tasks") or {}
    # A task that only one side has is a difference of the plan.
    if changed := [task for task in before if task in after and before[task] != after[task]]:
        yield f"the environment (its code, data, version or tools) has changed of: {_listed(changed)}"


def _compare_rest(prefix: str, old: Mapping[str, Any], new: Mapping[str, Any], *, skip: set[str]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        before, after = plain(old.get(name)), plain(new.get(name))
        if name in skip or before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _compare_rest(f"{prefix}{name}.", before, after, skip=set())
        else:
            yield f"{prefix}{name} was {before!r} and is {after!r} now"


def _listed(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown
