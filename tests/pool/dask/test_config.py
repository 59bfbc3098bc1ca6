"""Settings of a pool on nodes: what is refused, at once, and in which words. Nothing of Dask is loaded for it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from corral.errors import ConfigError
from corral.pool import Certificates, DaskConfig, LocalNodes, WorkerPoolConfig
from corral.pool.dask import backend
from corral.pool.dask.messages import Greeting
from corral.pool.options import add_backend_options, backend_settings


@pytest.mark.parametrize(
    "address",
    ["tls://head:8786", "tls://10.0.0.7:8786", "tcp://127.0.0.1:8786", "127.0.0.1:8786", "tcp://[::1]:8786",
     "tcp://localhost:8786"],
)  # fmt: skip
def test_an_address_is_encrypted_or_of_this_machine(address: str) -> None:
    assert DaskConfig(address).scheduler == address


@pytest.mark.parametrize("address", ["tcp://head:8786", "head:8786", "tcp://10.0.0.7:8786", "ws://head:8786"])
def test_a_plain_address_elsewhere_is_refused_with_the_reason(address: str) -> None:
    with pytest.raises(ConfigError, match=r"is refused: by plain .* anybody on the way could read and forge"):
        DaskConfig(address)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheduler": ""}, "scheduler must be an address"),
        ({"scheduler": "tls://"}, "scheduler must be an address"),
        ({"scheduler": "tls://head:port"}, "scheduler must be an address"),
        ({"scheduler": "tls://head:8786", "launch": LocalNodes(1)}, "not both"),
        ({"launch": "local:2"}, "launch must be LocalNodes, SSHNodes or BatchNodes"),
        ({"certificates": "ca.pem"}, "certificates must be Certificates"),
        ({"slots_per_node": 0}, "slots_per_node"),
        ({"lease": 1.0}, "lease must be at least 5 s"),
        ({"lease": None}, "lease must be a number of seconds"),
        ({"node_timeout": float("nan")}, "node_timeout"),
        ({"prefix": "nice -n 10"}, "prefix must be a tuple of words"),
        ({"interpreter": 3}, "interpreter must be the path of a Python"),
        ({"environment": {"A": 1}}, "environment must hold text by name"),
    ],
)
def test_each_setting_is_checked_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        DaskConfig(**settings)


def test_certificates_are_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ca_file: there is no file"):
        Certificates(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")


def test_a_config_of_nodes_is_for_the_backend_that_has_some() -> None:
    with pytest.raises(ConfigError, match='a DaskConfig is for backend="dask"'):
        WorkerPoolConfig(dask=DaskConfig())
    with pytest.raises(ConfigError, match='backend must be "local" or "dask"'):
        WorkerPoolConfig(backend="ray")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scheduler", "tls://head:8786"], "--scheduler is for --backend dask"),
        (["--backend", "dask", "--scheduler", "tcp://head:8786"], "is refused"),
        (["--backend", "dask", "--scheduler", "tls://head:8786", "--tls-cert", "c"], "are given together"),
        (["--backend", "dask", "--launch", "kubernetes:3"], "nodes are started by"),
    ],
)
def test_arguments_that_do_not_fit_together(arguments: list[str], said: str) -> None:
    parser = argparse.ArgumentParser()
    add_backend_options(parser)
    with pytest.raises(ConfigError, match=said):
        backend_settings(parser.parse_args(arguments))


def test_a_greeting_of_a_later_version_can_be_read() -> None:
    greeting = Greeting("f00", 7, "host", 4, "3.14.1", "9.0", "4.0")
    line = greeting.to_line().replace(b"{", b'{"more": 1, ', 1)
    assert Greeting.from_line(line) == greeting


def test_nodes_are_told_the_places_of_modules_that_python_looks_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at, passed_over = tmp_path / "looked-at", tmp_path / "passed-over"
    looked_at.mkdir()
    passed_over.mkdir()
    monkeypatch.setattr(sys, "path", [passed_over, str(looked_at), 7, os.fsencode(passed_over)])
    assert backend._own_path() == (str(looked_at),)
