"""The state of the whole process that a trial sees: global random generators and the current directory.

Guarantee: a trial draws the same numbers from ``random`` and ``numpy.random`` whether its process is its own
(``Owned``) or shared (``Lent``), whenever NumPy comes to be loaded; NumPy is never loaded from here.
Assumption: trials that are lent these do not run beside each other.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager, nullcontext
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

_NOTHING = nullcontext()


class Owned:
    """The process is the trial's alone: generators and directory are its own for good.

    Trials of one episode follow each other in one process, so the first one's directory is the one to go back to.
    """

    _home: ClassVar[str | None] = None

    def __init__(self, seed: int, workspace: Path) -> None:
        self._workspace = workspace
        if Owned._home is None:
            Owned._home = _here()
        random.seed(seed)
        self._numpy = _WhenLoaded(lambda numpy: numpy.seed(seed % 2**32))
        os.chdir(workspace)

    def during_call(self) -> AbstractContextManager[None]:
        """Nothing to do: it is all there already."""
        return _NOTHING

    def leave(self) -> None:
        """Go back to where the process was before its first trial, unless another trial has moved it already."""
        self._numpy.forget()
        here = _here()
        if here is None or here == str(self._workspace) or Path(here).is_relative_to(self._workspace.resolve()):
            os.chdir(Owned._home or self._workspace.parent)


def _here() -> str | None:
    """The current directory; None if a tool removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


class Lent:
    """The process is shared: generators and directory are the trial's for the time of each call, then given back."""

    def __init__(self, seed: int, workspace: Path, *, generators: bool, directory: bool) -> None:
        self._seed = seed
        self._workspace = workspace
        self._generators = generators
        self._directory = directory
        self._python: Any = None
        self._numpy: Any = None

    @contextmanager
    def during_call(self) -> Iterator[None]:
        """Lend them for one call."""
        with self._lent_generators() if self._generators else nullcontext():
            with chdir(self._workspace) if self._directory else nullcontext():
                yield

    def leave(self) -> None:
        """Nothing is held between calls."""

    @contextmanager
    def _lent_generators(self) -> Iterator[None]:
        before = random.getstate()
        numpy = sys.modules.get("numpy.random")
        numpy_before = numpy.get_state() if numpy is not None else None
        if self._python is None:
            random.seed(self._seed)
        else:
            random.setstate(self._python)
        waiting = _WhenLoaded(self._take_numpy)
        try:
            yield
        finally:
            waiting.forget()
            self._python = random.getstate()
            random.setstate(before)
            self._give_numpy_back(numpy_before)

    def _take_numpy(self, numpy: Any) -> None:
        if self._numpy is None:
            numpy.seed(self._seed % 2**32)
        else:
            numpy.set_state(self._numpy)

    def _give_numpy_back(self, before: Any) -> None:
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return
        self._numpy = numpy.get_state()
        if before is None:
            # Loaded by this call: others shall find it as a fresh import would have left it.
            numpy.seed()
        else:
            numpy.set_state(before)


class _WhenLoaded:
    """Calls ``then(numpy.random)``: at once if it is loaded, else right after whoever loads it first."""

    _NAME = "numpy.random"

    def __init__(self, then: Callable[[Any], None]) -> None:
        self._then = then
        loaded = sys.modules.get(self._NAME)
        if loaded is not None:
            then(loaded)
        else:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Wait no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Find NumPy's generators as usual, and be told when they are there."""
        if fullname != self._NAME:
            return None
        self.forget()
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_tell(module: ModuleType) -> None:
                execute(module)
                self._then(module)

            spec.loader.exec_module = execute_and_tell  # type: ignore[method-assign]
        return spec
