"""``python -m corral.pool``: run a benchmark on a pool. Workers import this file too, so it does nothing then."""

from __future__ import annotations

if __name__ == "__main__":
    from corral.shell import run

    raise SystemExit(run("corral.cli"))
