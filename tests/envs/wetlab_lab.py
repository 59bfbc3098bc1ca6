"""What a policy works with, straight on an environment: no agent, router or runner."""

from __future__ import annotations

import json
from typing import Any

from corral.envs.wetlab.environment import WetlabEnvironment


class BenchLab:
    """Calls the environment's tools and keeps what they answered."""

    def __init__(self, env: WetlabEnvironment):
        self.env = env
        self.tools = list(env.get_tools())
        self.log: list[tuple[str, Any]] = []

    def call(self, tool: str, /, **arguments: Any) -> Any:
        called = self.env.get_tools()[tool]
        result = json.loads(json.dumps(called.run(called.validate(arguments))))
        self.log.append((tool, result))
        return result
