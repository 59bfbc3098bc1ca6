"""The ways in which users start a run: each is a process of its own, and ends by itself."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import ROOT, environment, python, script

IMPORTS = """\
import os
import anyio
from corral import CorralRunner, Environment, tool
from corral.agents import BaseAgent, ScriptedAgent
"""

ENVIRONMENT = '''
class Adder(Environment):
    concurrency = "process"

    def __init__(self, task_id, a, b):
        super().__init__(task_id)
        self.sum = a + b

    def get_task_prompt(self):
        return "Add."

    @tool
    def add(self) -> list:
        """The sum, and where it was made."""
        return [self.sum, os.getpid()]

    def score(self):
        return float(self.state.submitted_answer == self.sum)

def build():
    return {"small": Adder("small", 1, 2), "large": Adder("large", 100, 200)}

class Reader(BaseAgent):
    def run(self, interface, task_id, **_):
        total, pid = interface.execute_tool(task_id, "add", {}).result
        assert (pid != os.getpid()) == POOLED, "the tool ran in the wrong process"
        return total

def main():
    result = CorralRunner(build, agent_factory=lambda context: Reader()).bench(trials_per_task=2, worker_pool=POOLED)
    print(result.average_score(), result.coverage.graded, flush=True)
'''

GUARD = '\nif __name__ == "__main__":\n    main()\n'
EXPECTED = "1.0 4\n"


def text(*, pooled: bool = True, end: str = GUARD) -> str:
    return f"{IMPORTS}\nPOOLED = {pooled}\n{ENVIRONMENT}{end}"


@pytest.mark.parametrize("pooled", [False, True])
def test_a_guarded_script(pooled: bool, tmp_path: Path) -> None:
    """Environments and agents are defined in it, and so in ``__main__``."""
    assert script(text(pooled=pooled), tmp_path) == EXPECTED


def test_a_guarded_script_started_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "run.py").write_text(text())
    done = python("deep/run.py", folder=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_a_module_run_by_name(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "run.py").write_text(text())
    done = python("-m", "package.run", folder=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_an_unguarded_script_with_a_pool_ends_with_one_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(text(end="\nopen('runs', 'a').write('x')\nmain()\n"))
    done = python("run.py", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("Guard the script") == 1
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].strip() != ""
    assert "ConfigError" in done.stderr
    assert len((tmp_path / "runs").read_text()) <= 4
    assert list((tmp_path / "benchmark_checkpoints").glob("*")) == []


def test_an_unguarded_script_without_a_pool_just_runs(tmp_path: Path) -> None:
    assert script(text(pooled=False, end="\nmain()\n"), tmp_path) == EXPECTED


def test_from_standard_input(tmp_path: Path) -> None:
    done = python("-", folder=tmp_path, stdin=text(end="\nmain()\n"))
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_from_the_command_line(tmp_path: Path) -> None:
    done = python("-c", text(end="\nmain()\n"), folder=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_from_an_interactive_session(tmp_path: Path) -> None:
    """Line after line, as a user types it."""
    typed = text(end="\nmain()\n").replace("\n\n    ", "\n    ").replace("    @tool", "    @tool")
    done = python("-i", "-q", folder=tmp_path, stdin=typed)
    assert done.stdout == EXPECTED, done.stderr
    assert "Error" not in done.stderr
    assert done.returncode == 0


def test_from_a_notebook_like_kernel(tmp_path: Path) -> None:
    """Code by ``exec`` in ``__main__`` within a running event loop: bench is refused, and abench runs."""
    cell = text(end="").replace("def main():", "async def main():").replace(".bench(", ".abench(")
    cell = cell.replace("    result = Corral", "    result = await Corral")
    kernel = f"""
import asyncio
async def kernel():
    import __main__
    exec(compile({cell!r}, "<cell>", "exec"), __main__.__dict__)
    try:
        CorralRunner(build, agent_factory=lambda context: Reader()).bench()
    except RuntimeError as error:
        assert "abench" in str(error)
    await main()
if __name__ == "__main__":
    asyncio.run(kernel())
"""
    assert script(kernel, tmp_path) == EXPECTED


@pytest.mark.parametrize("start", ["anyio.run(amain, backend='trio')", "anyio.run(amain)", "asyncio.run(amain())",
                                   "trio.run(amain)"])  # fmt: skip
def test_under_any_event_loop(start: str, tmp_path: Path) -> None:
    body = text(end="").replace("def main():", "async def amain():").replace(".bench(", ".abench(")
    body = body.replace("    result = Corral", "    result = await Corral")
    assert script(f'{body}\nif __name__ == "__main__":\n    import asyncio, trio\n    {start}\n', tmp_path) == EXPECTED


def test_a_lambda_as_builder(tmp_path: Path) -> None:
    assert script(text().replace("CorralRunner(build,", "CorralRunner(lambda: build(),"), tmp_path) == EXPECTED


def test_a_mapping_instead_of_a_builder(tmp_path: Path) -> None:
    assert script(text().replace("CorralRunner(build,", "CorralRunner(build(),"), tmp_path) == EXPECTED


def test_a_command_without_a_suffix(tmp_path: Path) -> None:
    """As pip installs them: its main module is a file that is no ``.py``, and what it runs is in a package."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "command.py").write_text(text(end=""))
    command = tmp_path / "bench-all"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom tools.command import main\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    variables = environment(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    done = subprocess.run(
        [str(command)], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_a_session_of_a_script_goes_on_with_a_pool_that_was_begun_without(tmp_path: Path) -> None:
    """The environments' digest is the same wherever it is made."""
    for pooled in (False, True, False):
        named = text(pooled=pooled).replace("worker_pool=POOLED", "worker_pool=POOLED, session_id='s'")
        assert script(named, tmp_path) == EXPECTED


def test_what_workers_print_does_not_mix_with_what_the_script_prints(tmp_path: Path) -> None:
    chatty = text().replace("        return [self.sum", "        print('chatter')\n        return [self.sum")
    assert script(chatty, tmp_path) == EXPECTED


# ---- libraries that have processes, or a main module, of their own ----

WITH_JOBLIB = """
def square(number):
    return number * number

class Crowd(Adder):
    @tool
    def squares(self) -> list:
        "Made by two processes, which start two each."
        import joblib
        def row(first):
            return joblib.Parallel(n_jobs=2)(joblib.delayed(square)(first + n) for n in range(3))
        return joblib.Parallel(n_jobs=2)(joblib.delayed(row)(first) for first in range(2))

def crowds():
    return {"crowd": Crowd("crowd", 1, 2)}

class Counter(BaseAgent):
    def run(self, interface, task_id, **_):
        rows = interface.execute_tool(task_id, "squares", {}).result
        return 3 if rows == [[0, 1, 4], [1, 4, 9]] else rows

def main():
    runner = CorralRunner(crowds, agent_factory=lambda context: Counter())
    result = runner.bench(trials_per_task=4, max_concurrency=2, max_concurrency_per_task=2, worker_pool=2)
    print(result.average_score(), result.coverage.graded, flush=True)
"""


def in_shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if "loky" in path.name or "joblib" in path.name}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="joblib keeps its semaphores where this test cannot look")
def test_tools_that_use_joblib(tmp_path: Path) -> None:
    """Nested, as ends badly elsewhere. No process is left, and nothing in shared memory, which is short."""
    before = in_shared_memory()
    assert script(f"{IMPORTS}\nPOOLED = True\n{ENVIRONMENT}{WITH_JOBLIB}{GUARD}", tmp_path) == EXPECTED
    assert in_shared_memory() - before == set()


DILL = """
import dill

class Pickler(Adder):
    @tool
    def remade(self) -> list:
        "What dill makes of a function, and where."
        number = self.sum
        return [dill.loads(dill.dumps(lambda: number + 1))(), os.getpid()]

def build():
    return {"small": Pickler("small", 1, 2), "large": Pickler("large", 100, 200)}

class Reader(BaseAgent):
    def run(self, interface, task_id, **_):
        total, pid = interface.execute_tool(task_id, "remade", {}).result
        assert pid != os.getpid()
        return total - 1
"""


@pytest.mark.parametrize("name", ["bench-all", "bench-all.py"])
@pytest.mark.parametrize("inside", [False, True], ids=["in a package", "in the command"])
def test_environments_that_use_dill(inside: bool, name: str, tmp_path: Path) -> None:
    """It imports the main module, and looks at it: so there has to be one, and in time."""
    body = f"{text(end='')}{DILL}"
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").touch()
    (tmp_path / "tools" / "command.py").write_text("" if inside else body)
    start = body if inside else "import sys\nfrom tools.command import main\n"
    (tmp_path / name).write_text(f"{start}\nif __name__ == '__main__':\n    main()\n")
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    done = python(name, folder=tmp_path, variables={"PYTHONPATH": path})
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)


def test_a_session_in_the_shell_that_uses_dill(tmp_path: Path) -> None:
    done = python("-c", text(end=f"{DILL}\nmain()\n"), folder=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (EXPECTED, "", 0)
