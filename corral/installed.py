"""What is installed and what is the user's own, by where its file is."""

from __future__ import annotations

import os
import site
import sysconfig

_PLACES = tuple({
    *(os.path.realpath(path) + os.sep for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))),
    *(os.path.realpath(path) + os.sep for path in [*site.getsitepackages(), site.getusersitepackages()]),
})  # fmt: skip


def is_installed(file: str) -> bool:
    """Whether a module's file belongs to the standard library or to an installed package."""
    return os.path.realpath(file).startswith(_PLACES)
