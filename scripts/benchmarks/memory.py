"""What a worker, a trial process and the supervisor hold, beside bare interpreters.

RSS counts pages that processes share in full for each of them; PSS gives each its share; USS is what ending the process
would free. Workers are idle when they are measured, and each has a process that
waits for the next trial.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

import anyio

from benchmarks.fresh import ENVIRONMENTS, is_installed
from benchmarks.measuring import Memory, count, descendants
from benchmarks.pools import serving
from benchmarks.report import Report, progress
from benchmarks.start import WARM

BASE = "bare interpreter with anyio, cloudpickle, pydantic"
BARE = {
    "bare interpreter": "",
    "bare interpreter with anyio, cloudpickle": "import anyio, cloudpickle",
    BASE: "import anyio, cloudpickle, pydantic",
    f"{BASE}, a model": "import anyio, cloudpickle, pydantic\nclass Model(pydantic.BaseModel):\n    text: str",
}
"""Most of pydantic is loaded with the first model."""
LOADED = {name: f"{BASE}, and {name} built" for name in ENVIRONMENTS if name != "light"}
"""The same with an environment: what that needs is none of Corral's."""
SUPERVISOR = (
    "import anyio\n"
    "from benchmarks.environments import build_work\n"
    "from benchmarks.pools import serving\n"
    "async def main():\n"
    "    async with serving(build_work, 1):\n"
    "        print(flush=True)\n"
    "        await anyio.to_thread.run_sync(input)\n"
    "anyio.run(main)"
)
COLUMNS = {"process": "text", "RSS": "B", "PSS": "B", "USS": "B", "/ bare": "x"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--environments", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--size", type=count, default=8, help="of the pool that is measured as a whole")


def run(options: argparse.Namespace) -> Report:
    report = Report("memory", vars(options))
    found = {name: memory_of(code + "\nprint(flush=True); input()") for name, code in BARE.items()}
    for name, what in LOADED.items():
        if name in options.environments and is_installed(name):
            code = f"environments = __import__('benchmarks.environments', fromlist=['x']).build_{name}()"
            found[what] = memory_of(f"{BARE[BASE]}\n{code}\nprint(flush=True); input()")
    found["supervisor with a pool of 1"] = memory_of(SUPERVISOR)
    targets: dict[str, Memory] = {}
    for name in options.environments:
        for fresh in ("fork", "spawn"):
            if not is_installed(name):
                progress(f"{name}: not installed")
                continue
            progress(f"{name}, {fresh}")
            worker = anyio.run(workers, found, name, fresh, options.size)
            if fresh == "fork":
                targets[name] = worker
    base = found[BASE].rss
    rows = [{"process": name, **_columns(memory), "/ bare": memory.rss / base} for name, memory in found.items()]
    report.table("What processes hold", COLUMNS, rows, f"/ bare: RSS, to a {BASE}")
    for name, memory in targets.items():
        what = LOADED.get(name, BASE)
        report.target(f"RSS of an idle worker, {name}, to a {what}", memory.rss / found[what].rss, 1.2)
    return report


def _columns(memory: Memory) -> dict[str, int]:
    return {name.upper(): value for name, value in asdict(memory).items()}


def memory_of(code: str) -> Memory:
    """Of an interpreter that has run so far that it prints a line, and then waits for one."""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    memory = Memory.of(process.pid)
    process.communicate(b"\n")
    return memory


async def workers(found: dict[str, Memory], name: str, fresh: str, size: int) -> Memory:
    """Adds what is there with a pool of 1, and of ``size``; gives what the one idle worker holds."""
    build = ENVIRONMENTS[name]
    what = f"{name}, {fresh}"
    async with serving(build, 1, fresh=fresh) as served:
        task_id = next(iter(served.pool.catalogue))
        await anyio.sleep(WARM)  # the process that waits for a trial is there then, and shares the worker's pages
        worker = found[f"worker idle, {what}"] = Memory.of(served.pids()[0])
        if waiting := descendants(served.pids()[0]):
            found[f"  the process that waits, {what}"] = Memory.of_all(waiting)
        trial = await served.open(task_id)
        await trial.prompt()
        pid, process = served.pids()
        found[f"  the worker, a trial open, {what}"] = Memory.of(pid)
        if process is not None:
            found[f"  the trial process, {what}"] = Memory.of(process)
        await trial.close()
    if size > 1:
        async with serving(build, size, fresh=fresh) as served:
            await served.all_ready()
            await anyio.sleep(WARM)
            found[f"a pool of {size} idle, all its processes, {what}"] = Memory.of_all(_below(served.pids_of_all()))
    return worker


def _below(pids: Sequence[int]) -> list[int]:
    return [pid for top in pids for pid in (top, *descendants(top))]
