"""``python -m corral.report``."""

from __future__ import annotations

if __name__ == "__main__":
    from corral.shell import run

    raise SystemExit(run("corral.report.command"))
