"""The Claude Code program: where it is, and one run of it.

Guarantees
    * The program has ended when ``running`` has, cancelled or not, and its children with it.
    * It ends when this process does, however that ends: a shell holds it on a leash, which is its own input.
Assumption: POSIX; elsewhere there is no leash.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

from corral.errors import ConfigError, InfrastructureError
from corral.leash import Leash

TAIL = 4000
"""Characters of what it prints on its error output that are kept."""

_LEASH = """\
exec 3<&0
"$@" <"$CORRAL_PROMPT" & program=$!
{ read -r _ <&3; kill -9 $program; } & leash=$!
wait $program; status=$?
kill $leash 2>/dev/null
exit $status
"""


def find_program(path: str | os.PathLike[str] | None = None) -> str:
    """The program: as named, as the SDK's wheel carries it, or on the PATH. ConfigError if there is none."""
    if path is not None:
        found = shutil.which(os.fspath(path))
        if found is None:
            raise ConfigError(f"program: there is no Claude Code at {os.fspath(path)!r}")
        return found
    spec = find_spec("claude_agent_sdk")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (found := shutil.which(os.path.join(folder, "_bundled", "claude"))) is not None:
            return found
    if (found := shutil.which("claude")) is not None:
        return found
    raise ConfigError("ClaudeCodeAgent needs the Claude Code program: pip install 'corral[claude]'")


@dataclass
class Run:
    """A running program. Its error output goes to a file: a pipe that nobody reads would stop it."""

    process: Process
    errors: Path

    async def events(self) -> AsyncGenerator[dict[str, Any]]:
        """What it reports, event by event, to its end."""
        assert self.process.stdout is not None
        async with contextlib.aclosing(_lines(self.process.stdout)) as lines:
            async for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event

    @property
    def printed(self) -> str:
        """The tail of its error output."""
        return self.errors.read_text("utf-8", "replace")[-TAIL:]


@contextlib.asynccontextmanager
async def running(
    command: Sequence[str], prompt: str, *, cwd: Path, environment: Mapping[str, str]
) -> AsyncIterator[Run]:
    """Run the program on a prompt while the block runs. InfrastructureError if it cannot be started."""
    text, errors = cwd.parent / "prompt.txt", cwd.parent / "errors.txt"
    text.write_text(prompt, "utf-8", "replace")
    leashed = ["/bin/sh", "-c", _LEASH, "claude", *command] if os.name == "posix" else list(command)
    with Leash() as leash:
        try:
            with errors.open("wb") as file:
                process = await anyio.open_process(
                    leashed,
                    stdin=leash.end,
                    stderr=file,
                    cwd=cwd,
                    env={**environment, "CORRAL_PROMPT": str(text)},
                    start_new_session=True,
                )
        except OSError as error:
            raise InfrastructureError(f"Claude Code could not be started: {error}") from error
        leash.given()
        try:
            yield Run(process, errors)
        finally:
            with anyio.CancelScope(shield=True):
                _kill(process)
                await process.aclose()


def _kill(process: Process) -> None:
    """End the program's whole process group, even where its first process has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


async def _lines(stream: ByteReceiveStream) -> AsyncGenerator[str]:
    """Lines of any length."""
    rest = b""
    async for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
