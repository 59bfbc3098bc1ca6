"""Where a pool's workers run, as arguments of a command: the same for every command that has a pool."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from corral.errors import ConfigError
from corral.pool.config import Backend
from corral.pool.dask.config import Certificates, DaskConfig
from corral.pool.dask.launch import parse_launch

_CERTIFICATES = ("tls_ca_file", "tls_cert", "tls_key")


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    add = parser.add_argument
    add("--backend", choices=get_args(Backend), default="local", help="where workers run: here (default), or on nodes")
    add("--scheduler", metavar="ADDRESS", help="of a Dask cluster that runs, such as tls://head:8786")
    add("--launch", metavar="HOW", help="start the nodes: local:2, ssh:host1,host2, slurm:8,cores=16,memory=64GB")
    add("--tls-ca-file", metavar="PEM", help="the cluster's certificates (default: those of Dask's configuration)")
    add("--tls-cert", metavar="PEM", help="of this process")
    add("--tls-key", metavar="PEM", help="of this process")


def backend_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What WorkerPoolConfig takes of them. ConfigError for what does not fit together."""
    given = [name for name in ("scheduler", "launch", *_CERTIFICATES) if getattr(options, name) is not None]
    if options.backend == "local":
        if given:
            raise ConfigError(f"--{given[0].replace('_', '-')} is for --backend dask")
        return {}
    files = [getattr(options, name) for name in _CERTIFICATES]
    if any(files) and not all(files):
        raise ConfigError("--tls-ca-file, --tls-cert and --tls-key are given together")
    dask = DaskConfig(
        scheduler=options.scheduler,
        launch=parse_launch(options.launch) if options.launch is not None else None,
        certificates=Certificates(*files) if all(files) else None,
    )
    return {"backend": "dask", "dask": dask}
