"""How nodes are started, as settings: each checked at once, and the text of a command line."""

from __future__ import annotations

from typing import Any

import pytest

from corral.errors import ConfigError
from corral.pool.dask.launch import BatchNodes, Launch, LocalNodes, SSHNodes, parse_launch


@pytest.mark.parametrize(
    ("text", "launch"),
    [
        ("local:3", LocalNodes(3)),
        ("ssh:node1", SSHNodes(("node1",))),
        ("ssh:node1, user@node2,node1", SSHNodes(("node1", "user@node2", "node1"))),
        ("slurm:8", BatchNodes("slurm", 8)),
        ("pbs:2,cores=16,memory=64GB,walltime=04:00:00,queue=long",
         BatchNodes("pbs", 2, cores=16, memory="64GB", walltime="04:00:00", queue="long")),
    ],
)  # fmt: skip
def test_the_text_of_a_launch(text: str, launch: Launch) -> None:
    assert parse_launch(text) == launch


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "local:N, ssh:HOST,... or BATCH_SYSTEM:N"),
        ("kubernetes:2", "not 'kubernetes:2'"),
        ("local", "does not say how many nodes: local:4"),
        ("local:", "does not say how many nodes"),
        ("local:two", "does not say how many nodes"),
        ("local:-1", "does not say how many nodes"),
        ("local:0", "the number of nodes must be a whole number of at least 1, not 0"),
        ("local:2,cores=3", "nodes on this machine have no 'cores=3'"),
        ("local:100000", "at most 512 nodes"),
        ("ssh:", "at least one host"),
        ("ssh:-oProxyCommand=x", "a host for ssh must be a name"),
        ("slurm:2,cores=many", "cores must be a whole number, not 'many'"),
        ("slurm:2,cores=0", "cores per job must be a whole number of at least 1"),
        ("slurm:2,gpus=1", "'gpus=1' is none of cores=..., memory=..."),
        ("slurm:2,queue=", "'queue=' is none of"),
    ],
)
def test_text_that_is_no_launch(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_launch(text)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "settings", "complaint"),
    [
        (LocalNodes, {"nodes": True}, "the number of nodes must be a whole number"),
        (LocalNodes, {"start_timeout": 0}, "start_timeout must be a positive number"),
        (LocalNodes, {"start_timeout": None}, "nodes that never come must be noticed"),
        (LocalNodes, {"python": ""}, "the python of nodes must be text"),
        (SSHNodes, {"hosts": ()}, "at least one host"),
        (SSHNodes, {"hosts": ("a b",)}, "a host for ssh must be a name"),
        (SSHNodes, {"hosts": "a", "environment": {"A B": "c"}}, "environment must be names with text"),
        (SSHNodes, {"hosts": "a", "environment": {"A": 3}}, "environment must be names with text"),
        (SSHNodes, {"hosts": "a", "environment": ["A=3"]}, "environment must be names with values"),
        (SSHNodes, {"hosts": "a", "options": {"Port": 22}}, "options of ssh must be names with text"),
        (BatchNodes, {"system": "lava", "nodes": 2}, "the batch system must be one of slurm, pbs"),
        (BatchNodes, {"system": "slurm", "nodes": 2, "cores": 0}, "cores per job"),
        (BatchNodes, {"system": "slurm", "nodes": 2, "memory": 4}, "memory must be text"),
        (BatchNodes, {"system": "slurm", "nodes": 2, "walltime": "1\n2"}, "walltime must be text"),
        (BatchNodes, {"system": "slurm", "nodes": 2, "folder": 3}, "folder must be the path of a folder"),
        (BatchNodes, {"system": "slurm", "nodes": 2, "options": {"cores": 2}}, "may not set cores: Corral does"),
    ],
)
def test_settings_that_cannot_be(kind: type[Launch], settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        kind(**settings)
    assert complaint in str(refused.value)


def test_hosts_that_come_again_have_names_of_their_own() -> None:
    assert SSHNodes(("a", "b", "a", "a")).names == ("a", "b", "a-2", "a-3")
    assert SSHNodes("node1").names == ("node1",)


def test_lines_of_shell_may_be_one() -> None:
    assert BatchNodes("slurm", 1, prologue="module load python").prologue == ("module load python",)
