"""SUPERVISOR SIDE. Dask's client of a cluster that is there, or that is launched for it, and why there is none."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from corral.errors import ConfigError, EnvStartError
from corral.pool.dask.config import DaskConfig
from corral.pool.dask.launch import LocalNodes

CONNECT_PATIENCE = 30.0
"""Seconds for reaching the scheduler."""


@contextlib.asynccontextmanager
async def connected(config: DaskConfig) -> AsyncIterator[Any]:
    """A client of the cluster, which is launched if need be; on an asyncio loop. What it raises, ``told`` explains."""
    from distributed import Client

    async with contextlib.AsyncExitStack() as stack:
        security = security_of(config)
        address = config.scheduler
        if address is None:
            from corral.pool.dask.cluster import launched

            cluster = await stack.enter_async_context(launched(config.launch or LocalNodes(), security))
            address, security = cluster.address, cluster.security
        client = Client(address, security=security, asynchronous=True, set_as_default=False, timeout=CONNECT_PATIENCE)
        stack.push_async_callback(_close, client)  # first: it may be given up while it connects
        await client
        yield client


async def _close(client: Any) -> None:
    await client.close()


def security_of(config: DaskConfig) -> Any:
    """How connections are encrypted: with the user's certificates; None: with those of Dask's configuration."""
    if (given := config.certificates) is None:
        return None
    from distributed import Security

    files = {"tls_ca_file": given.ca_file, "tls_client_cert": given.cert, "tls_client_key": given.key}
    files |= {"tls_scheduler_cert": given.cert, "tls_scheduler_key": given.key}
    files |= {"tls_worker_cert": given.cert, "tls_worker_key": given.key}
    return Security(require_encryption=True, **{name: str(path) for name, path in files.items()})


def told(error: BaseException, config: DaskConfig) -> BaseException:
    """An error of opening, as users are to see it."""
    if isinstance(error, ImportError):
        return ConfigError(f"backend=\"dask\" needs {error.name or 'distributed'}: pip install 'corral[dask]'")
    if isinstance(error, ConfigError | EnvStartError):
        return error
    if isinstance(error, TypeError) and "TLS" in str(error):
        return ConfigError(
            f"the scheduler at {config.scheduler} speaks TLS: give its certificates, "
            "DaskConfig(certificates=Certificates(ca_file, cert, key)), or set them in Dask's configuration"
        )
    if isinstance(error, OSError):
        return ConfigError(f"the scheduler at {config.scheduler} cannot be reached: {error}")
    return error
