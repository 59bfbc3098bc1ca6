"""BOTH SIDES. The user's main script: the supervisor says what it is, workers import it.

Environments and builders may be defined in it, and modules may be set up by it, so it is imported in every interpreter
that loads the environments; as ``__mp_main__``, so that what it guards with ``if __name__ == "__main__":`` does not run
there. The module is found under both names, as with ``multiprocessing`` and anyio: what was pickled by name is found.
It finds the arguments that it was started with, too, there and when what is built in it looks for them later.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
import tokenize
from types import ModuleType

from corral.errors import ConfigError
from corral.lean import dataclass

_importing = False
_refusal: ConfigError | None = None


@dataclass(frozen=True, slots=True)
class MainScript:
    """What ``python SCRIPT`` or ``python -m MODULE`` was started with."""

    path: str
    module: str | None = None
    """Its name, of a module: imported by name, it may use relative imports."""
    arguments: tuple[str, ...] = ()
    """What it was given: ``sys.argv[1:]``."""

    @classmethod
    def of_this_process(cls) -> MainScript | None:
        """None where no file is the main script: an interactive session, ``-c``, standard input, a notebook."""
        main = sys.modules.get("__main__")
        path = getattr(main, "__file__", None)
        if not isinstance(path, str) or not os.path.isfile(path):
            return None
        spec = getattr(main, "__spec__", None)
        name = getattr(spec, "name", None) if getattr(spec, "origin", None) == path else None
        return cls(os.path.abspath(path), None if name == "__main__" else name, tuple(map(str, sys.argv[1:])))


def places_of_modules() -> list[str]:
    """``sys.path`` without what is no text: Python passes over that, and others may be unable to read it."""
    places: list[object] = [*sys.path]
    return [place for place in places if isinstance(place, str)]


def taken_from_corral(script: MainScript) -> set[str]:
    """The modules of Corral's from which a script takes something at its top, as it will wherever it is imported.

    Empty where that cannot be told. What the script guards, it takes in this process only.
    """
    try:
        with tokenize.open(script.path) as file:
            statements = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return set()
    imports = [each for each in statements if isinstance(each, ast.Import | ast.ImportFrom)]
    names = [alias.asname or alias.name for each in imports for alias in each.names]
    values = [getattr(sys.modules["__main__"], name, None) for name in names]
    homes = {value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") for value in values}
    return {home for home in homes if isinstance(home, str) and home.split(".")[0] == "corral" and home in sys.modules}


def import_main(script: MainScript | None) -> None:
    """Import the main script. Without one, the main module is an empty one.

    Raises what the script raises; where that came of a run that it was refused, the refusal, whatever it made of that.
    """
    global _importing
    main = sys.modules["__main__"] = ModuleType("__mp_main__")  # there meanwhile: some modules import it
    if script is not None:
        _importing = True
        sys.argv = [script.path, *script.arguments]
        try:
            main.__dict__.update(_run(script))
        except BaseException:
            if _refusal is not None:
                raise _refusal from None
            raise
        finally:
            _importing = False
    sys.modules["__mp_main__"] = main


def _run(script: MainScript) -> dict[str, object]:
    if script.module is not None:
        return runpy.run_module(script.module, run_name="__mp_main__", alter_sys=True)
    return runpy.run_path(script.path, run_name="__mp_main__")


def refuse_while_importing(refusal: ConfigError) -> None:
    """Raise ``refusal`` if the main script is being imported here: what it starts, each worker would start again.

    By a worker of Corral's, or by one that the script's own use of ``anyio.to_process`` made.
    """
    global _refusal
    if _importing or (sys.orig_argv[-2:] == ["-m", "anyio.to_process"] and "__main__" not in sys.modules):
        _refusal = refusal
        raise refusal
