"""`turngym envs serve ID`: an environment as a server over HTTP, and over the Model Context Protocol (MCP)."""

import asyncio
import os
import secrets
from collections.abc import Sequence

from ...errors import MissingPackageError
from ..factory import EnvFactory
from ..task import Task
from .limits import ServeLimits
from .ports import bound_socket
from .wire import KEY_VARIABLE

BACKLOG = 2048
_GRACE_S = 10  # for requests that run when the server is told to stop


def serve_by_stdio(factory: EnvFactory, tasks: Sequence[Task] | None, limits: ServeLimits) -> int:
    """Speak MCP over standard input and output until the client ends it; return the exit code.

    Raises:
        MissingPackageError: A package is missing.
    """
    try:
        from .mcp_stdio import serve_stdio
    except ImportError as error:
        raise MissingPackageError(f"--stdio needs the package mcp: pip install 'turngym[mcp]' ({error})") from error
    from .service import EnvService

    asyncio.run(serve_stdio(EnvService(factory, limits, tasks)))
    return 0


def serve(
    factory: EnvFactory,
    tasks: Sequence[Task] | None,
    *,
    host: str,
    port: int,
    key: str | None,
    limits: ServeLimits,
    with_mcp: bool,
) -> int:
    """Serve until SIGINT or SIGTERM; return the exit code.

    Args:
        factory: Makes the environment.
        tasks: In place of its own.
        host: Where to listen; loopback unless told otherwise.
        port: 0 for any that is free.
        key: What clients must know; by default that of TURNGYM_ENV_KEY, or a new one, which is printed.
        limits: How the server guards itself.
        with_mcp: Also speak MCP, at `/mcp`.

    Raises:
        ConfigError: Nobody may listen there.
        MissingPackageError: A package is missing.
    """
    try:
        import uvicorn

        from .app import env_app
    except ImportError as error:
        raise MissingPackageError(
            f"serving needs starlette and uvicorn: pip install 'turngym[serve]' ({error})"
        ) from error
    from .service import EnvService

    service = EnvService(factory, limits, tasks)
    mount = None
    if with_mcp:
        try:
            from .mcp_mount import McpMount
        except ImportError as error:
            raise MissingPackageError(f"--mcp needs the package mcp: pip install 'turngym[mcp]' ({error})") from error
        mount = McpMount(service)
    given = key or os.environ.get(KEY_VARIABLE)
    secret = given or secrets.token_urlsafe(24)
    config = uvicorn.Config(
        env_app(service, secret, mount), log_level="warning", access_log=False, timeout_graceful_shutdown=_GRACE_S
    )
    with bound_socket(host, port) as listener:
        listener.listen(BACKLOG)
        bound_host, bound_port = listener.getsockname()[:2]
        place = f"http://{f'[{bound_host}]' if ':' in bound_host else bound_host}:{bound_port}"
        print(f"serving {factory.spec} at {place}; Ctrl-C ends it", flush=True)
        if mount is not None:
            print(f"MCP at {place}/mcp", flush=True)
        if not given:
            print(f"key {secret}", flush=True)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # the server has ended by then, and passes on what it was told
            print("stopped", flush=True)
    return 0
