"""The least batch system: ``qsub`` and ``qdel`` as PBS names them, whose jobs run at once and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

SUBMIT = """\
#!/usr/bin/env bash
# Refuses what asks for the queue "closed"; else runs the script in a session of its own and prints its number: for the
# queue "slow" when it has run for a second.
if grep -q '^#PBS -q closed' "$1"; then echo "qsub: Unknown queue" >&2; exit 170; fi
logs=$(sed -n 's/^#PBS -e //p' "$1")
script="{folder}/$$.sh"
cp "$1" "$script"
setsid bash "$script" </dev/null >"$logs/job.o$$" 2>"$logs/job.e$$" &
echo $! >"{folder}/$$.pid"
if grep -q '^#PBS -q slow' "$1"; then sleep 1; fi
echo "$$.here"
"""

CANCEL = """\
#!/usr/bin/env bash
# As the real ones do: a signal to all of the job, at once.
kill -TERM -- "-$(cat "{folder}/${{1%.here}}.pid")"
"""


def install(folder: Path) -> None:
    """Put the programs into ``folder``, where each job leaves its script and process id too."""
    for name, text in (("qsub", SUBMIT), ("qdel", CANCEL)):
        program = folder / name
        program.write_text(text.replace("{folder}", str(folder)).replace("{{", "{").replace("}}", "}"))
        program.chmod(0o755)


def on_path(folder: Path) -> str:
    """A PATH that has them."""
    return f"{folder}:{os.environ['PATH']}"


def running(folder: Path) -> list[int]:
    """The process groups of jobs that run."""
    groups = {int(path.read_text()) for path in folder.glob("*.pid")}
    found = set()
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) in groups and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(os.getpgid(pid))
        except (psutil.Error, ProcessLookupError):
            continue
    return sorted(found)
