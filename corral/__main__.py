"""``python -m corral``: names the commands that there are."""

from __future__ import annotations

COMMANDS = """\
python -m corral.pool     run a benchmark on a pool of workers
python -m corral.server   serve environments over HTTP and MCP
python -m corral.report   look at recorded sessions
Each has --help.
"""

if __name__ == "__main__":
    import sys

    sys.stderr.write(COMMANDS)
    raise SystemExit(2)
