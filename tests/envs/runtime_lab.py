"""What a policy works with, on a trial runtime: no agent, router or runner."""

from __future__ import annotations

from typing import Any

from corral.runtime import TrialRuntime


class RuntimeLab:
    """Calls the trial's tools; a failed call raises RuntimeError."""

    def __init__(self, runtime: TrialRuntime) -> None:
        self._runtime = runtime

    def call(self, tool: str, /, **arguments: Any) -> Any:
        response = self._runtime.execute(tool, arguments)
        if not response.success:
            raise RuntimeError(response.error)
        return response.result
