"""``python -m corral.report``."""

from __future__ import annotations

import sys

from corral.report.command import main

if __name__ == "__main__":
    sys.exit(main())
