"""The environment server: isolated trial runtimes over HTTP and MCP, with the worker pool behind it.

``run_server`` serves until it is told to stop; ``create_benchmark_server`` gives the ASGI application. From the shell::

    python -m corral.server MODULE:BUILDER --port 8000 --pool-size 8

What serves is loaded in here when it is called: workers import this file, and stay small.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from corral.credentials import secret
from corral.errors import ConfigError, CorralError
from corral.listening import Address, listening
from corral.named import NamedBuilder
from corral.pool.config import WorkerPoolConfig, parse_bytes
from corral.pool.entry import refuse_in_worker
from corral.pool.options import add_backend_options, backend_settings
from corral.shell import Parser, say
from corral.source import EnvironmentsOrBuilder, EnvironmentSource
from corral.types import check_count, check_path, check_seconds, shown

if TYPE_CHECKING:
    from corral.app import EnvironmentServer

EXIT_STOPPED, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
NO_TOKEN = (
    "host {host!r} can be reached from other machines, and whoever reaches the server runs tools here: "
    "give a token (CORRAL_TOKEN in the environment, or token=...), or listen on 127.0.0.1"
)


def create_benchmark_server(
    environments: EnvironmentsOrBuilder | None = None,
    *,
    build_envs: EnvironmentsOrBuilder | None = None,
    worker_pool: Any = None,
    token: str | None = None,
    idle_timeout: float = 1800.0,
    tool_timeout: float | None = None,
    configure_timeout: float | None = None,
    setup_timeout: float | None = None,
    max_body: int | str = "16MiB",
    max_result: int | str = "64MiB",
    allowed_hosts: tuple[str, ...] = (),
) -> EnvironmentServer:
    """The ASGI application that serves environments: a mapping, or ``build_envs``, a function that returns one.

    Args:
        environments: ``{task_id: Environment}``, or a builder, as ``build_envs``.
        build_envs: a function without arguments that returns the mapping.
        worker_pool: None (with ``build_envs`` and a process-class environment: one of the machine's size), False, True,
            a number of workers, or a WorkerPoolConfig.
        token: what clients must show; by default that of CORRAL_TOKEN; without any, whoever reaches it is served.
        idle_timeout: seconds without a call after which a trial is closed: its client has gone.
        tool_timeout: seconds that one tool call may take.
        configure_timeout: seconds that ``configure_additional_apps`` may take.
        setup_timeout: seconds that building a trial's environment may take.
        max_body: the largest request, in bytes or as text.
        max_result: the largest answer.
        allowed_hosts: further names by which clients may call a server without a token; "*" for any.

    Raises ConfigError for arguments that cannot be used. Nothing is started before the application's lifespan.
    """
    source, is_builder = _source(environments, build_envs)
    _need_packages()
    from corral.app import EnvironmentServer, ServerSettings
    from corral.service import ServiceLimits

    tool, configure = check_seconds(tool_timeout, "tool_timeout"), check_seconds(configure_timeout, "configure_timeout")
    limits = ServiceLimits(tool, configure, setup_timeout=check_seconds(setup_timeout, "setup_timeout"))
    settings = ServerSettings(
        worker_pool=_pool(worker_pool, is_builder=is_builder),
        pool_if_needed=worker_pool is None,
        limits=limits,
        idle_timeout=_seconds(idle_timeout, "idle_timeout"),
        token=_token(token),
        allowed_hosts=_names(allowed_hosts),
        max_body=parse_bytes(max_body, "max_body"),
        max_result=parse_bytes(max_result, "max_result"),
    )
    return EnvironmentServer(source, settings)


def run_server(
    environments: EnvironmentsOrBuilder | None = None,
    *,
    build_envs: EnvironmentsOrBuilder | None = None,
    worker_pool: Any = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    uds: str | os.PathLike[str] | None = None,
    token: str | None = None,
    drain_timeout: float = 30.0,
    quiet: bool = False,
    **options: Any,
) -> None:
    """Serve environments until SIGTERM or SIGINT. See ``create_benchmark_server`` for the other arguments.

    Args:
        environments: see there, as ``build_envs``, ``worker_pool``, ``token`` and the ``options``.
        build_envs: see there.
        worker_pool: see there.
        host: where to listen. Any but this machine's own needs a token.
        port: 0 picks a free one; the line that is printed says which.
        uds: listen on a Unix socket at this path instead.
        token: see there.
        drain_timeout: seconds that running calls get to end after the signal.
        quiet: do not print the line with the address.
        options: see there.

    Raises ConfigError if it cannot be set up or the port is taken, EnvStartError if the environments cannot be loaded.
    """
    refuse_in_worker("an environment server was")
    named: Any = host
    if not isinstance(named, str) or not named:
        raise ConfigError(f"host must be a name or an address, not {shown(host)}")
    if check_count(port, "port", least=0) > 65535:
        raise ConfigError(f"port must be at most 65535, not {port}")
    seconds = _seconds(drain_timeout, "drain_timeout")
    wanted = Address(host, port, check_path(uds, "uds") if uds is not None else None)
    if not wanted.is_local and _token(token) is None:
        raise ConfigError(NO_TOKEN.format(host=host))
    with listening(wanted) as (sock, address):  # before anything heavy is loaded: a taken port is told at once
        app = create_benchmark_server(
            environments, build_envs=build_envs, worker_pool=worker_pool, token=token,
            **{"allowed_hosts": (host,)} | options,
        )  # fmt: skip
        from corral.serving import serve

        serve(app, sock, address, drain_timeout=seconds, quiet=quiet)


def _need_packages() -> None:
    try:
        import corral.app  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"an environment server needs more packages: pip install 'corral[server]' ({error})"
        ) from None


def _source(environments: Any, build_envs: Any) -> tuple[EnvironmentSource, bool]:
    if (environments is None) == (build_envs is None):
        raise ConfigError("give environments ({task_id: Environment}) or build_envs (a function that returns them)")
    source = EnvironmentSource(environments if environments is not None else build_envs)
    return source, source.is_builder


def _pool(worker_pool: Any, *, is_builder: bool) -> WorkerPoolConfig | None:
    if worker_pool is None:
        return WorkerPoolConfig() if is_builder else None
    if worker_pool is False or worker_pool is True:
        return WorkerPoolConfig() if worker_pool else None
    if isinstance(worker_pool, WorkerPoolConfig):
        return worker_pool
    return WorkerPoolConfig(size=check_count(worker_pool, "worker_pool"))


def _names(allowed_hosts: Any) -> tuple[str, ...]:
    if isinstance(allowed_hosts, str) or not isinstance(allowed_hosts, Iterable):
        raise ConfigError(f"allowed_hosts must be a list of names, not {shown(allowed_hosts)}")
    return tuple(map(str, allowed_hosts))


def _token(given: object) -> str | None:
    token: object = given if given is not None else os.environ.get("CORRAL_TOKEN") or None
    return secret(token, "token") if token is not None else None


def _seconds(value: object, name: str) -> float:
    seconds = check_seconds(value, name)
    if seconds is None:
        raise ConfigError(f"{name} must be a number of seconds")
    return seconds


# ---- the shell's way in ----


def parser() -> argparse.ArgumentParser:
    """The arguments of ``python -m corral.server``."""
    parse = Parser(
        prog="python -m corral.server",
        description="Serve environments over HTTP and MCP, with a worker pool behind them.",
        epilog="exit status: 0 stopped by SIGTERM or Ctrl-C; 1 the environments could not be loaded; 2 bad usage, or "
        "the port is taken. Clients show the token in CORRAL_TOKEN, where that is set.",
    )
    add = parse.add_argument
    add("envs", metavar="MODULE:BUILDER", help="a function that returns {task_id: Environment}")
    add("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1; any other needs CORRAL_TOKEN)")
    add("--port", type=int, default=8000, help="0 picks a free one (default: 8000)")
    add("--uds", metavar="PATH", help="listen on a Unix socket instead")
    add("--pool-size", type=int, metavar="N", help="workers (default: the processors that may be used)")
    add("--no-pool", action="store_true", help="no workers: process-class trials run here, one at a time")
    add("--memory-limit", metavar="SIZE", help="memory of one trial's processes, such as 2GiB")
    add("--reuse", choices=("trial", "worker"), default="trial", help="fresh process state per trial (default), or not")
    add_backend_options(parse)
    add("--idle-timeout", type=float, default=1800.0, metavar="S", help="close trials that nobody uses (1800)")
    add("--drain-timeout", type=float, default=30.0, metavar="S", help="for running calls when it is stopped (30)")
    add("--tool-timeout", type=float, metavar="S", help="seconds that a tool call may take")
    add("--configure-timeout", type=float, metavar="S", help="seconds that configuring may take")
    add("--setup-timeout", type=float, metavar="S", help="seconds that building a trial's environment may take")
    add("--max-body", default="16MiB", metavar="SIZE", help="the largest request (16MiB)")
    add("--max-result", default="64MiB", metavar="SIZE", help="the largest answer (64MiB)")
    return parse


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = parser().parse_args(arguments)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        run_server(
            build_envs=NamedBuilder(options.envs), worker_pool=_pool_option(options), host=options.host,
            port=options.port, uds=options.uds, drain_timeout=options.drain_timeout,
            idle_timeout=options.idle_timeout, tool_timeout=options.tool_timeout,
            configure_timeout=options.configure_timeout, setup_timeout=options.setup_timeout,
            max_body=options.max_body, max_result=options.max_result,
        )  # fmt: skip
    except ConfigError as error:
        say(error)
        return EXIT_USAGE
    except CorralError as error:
        say(error)
        return EXIT_FAILED
    return EXIT_STOPPED


def _pool_option(options: argparse.Namespace) -> WorkerPoolConfig | bool | None:
    if options.no_pool:
        return False
    backend = backend_settings(options)
    if not backend and options.pool_size is None and options.memory_limit is None and options.reuse == "trial":
        return None
    return WorkerPoolConfig(size=options.pool_size, memory_limit=options.memory_limit, reuse=options.reuse, **backend)


if __name__ == "__main__":
    from corral.shell import run

    raise SystemExit(run("corral.server"))
