"""CHILD SIDE: twenty clients that open trials, call a tool for ever, and are killed in the middle of it."""

from __future__ import annotations

import sys

import anyio

from corral import AsyncCorralRouter


async def _client(url: str, number: int) -> None:
    async with AsyncCorralRouter(url) as router:
        opened = await router.create_trial("abcd"[number % 4], f"doomed-{number}")
        trial = router.for_trial(opened["trial_runtime_id"], "a")
        print("open", flush=True)
        while True:
            await trial.execute_tool("a", "python", {"code": "import time; time.sleep(0.05)"})


async def _main(url: str) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(_client, url, number)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
