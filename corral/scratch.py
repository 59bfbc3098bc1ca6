"""Temporary folders that only this user can enter."""

from __future__ import annotations

import tempfile

from corral.errors import ConfigError


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder, removed with the object. ConfigError naming the places tried if none can be made."""
    try:
        return tempfile.TemporaryDirectory(prefix="corral-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ConfigError(
            f"no temporary folder can be made: {error}; set TMPDIR to a folder you can write to"
        ) from None
