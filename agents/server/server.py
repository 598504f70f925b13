"""The server as an executor runs it: on its own event loop, on a port of this machine, one session an episode."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator
from urllib.parse import quote

from ...envs.serving.ports import bound_socket
from ...errors import ConfigError, DeadlineError, MissingPackageError
from ..base import Generator, Sampling
from ..chat import ChatAgent
from .branches import SessionRecord
from .session import Session

try:
    import uvicorn

    from .app import server_app
except ImportError as missing:
    raise MissingPackageError(
        f"the server needs starlette and uvicorn: pip install 'turngym[serve]' ({missing})"
    ) from missing

_BACKLOG = 4096
_START_S = 60.0
_KEEP_ALIVE_S = 3600  # a connection that is closed just as its client comes back with a tool's result loses a request
_GRACE_S = 5


class Server:
    """Serves the sessions that are open.

    Args:
        agent: Starts their conversations.
        model: The name that `/v1/models` gives; requests may name any.
        host: Where to listen; this machine only, unless told otherwise.
        port: 0 for any that is free.
        key: What clients must send; by default a new one.
    """

    def __init__(
        self,
        agent: ChatAgent,
        *,
        model: str = "policy",
        host: str = "127.0.0.1",
        port: int = 0,
        key: str | None = None,
    ) -> None:
        self.agent = agent
        self.key = key or secrets.token_urlsafe(24)
        self._host = host
        self._port = port
        self._sessions: dict[str, Session] = {}
        app = server_app(agent, self._sessions, key=self.key, model=model)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            proxy_headers=False,
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._uvicorn = _OnLoop(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; returns once requests are answered.

        Raises:
            ConfigError: Nobody may listen there.
        """
        listener = bound_socket(self._host, self._port)
        self._port = listener.getsockname()[1]
        self._task = asyncio.create_task(self._serve(listener))
        try:
            async with asyncio.timeout(_START_S):
                while not self._uvicorn.started and not self._task.done():
                    await asyncio.sleep(0.001)
        except TimeoutError as error:
            raise DeadlineError(f"the server did not start within {_START_S:g} s") from error
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Close all sessions and stop listening; may be called twice."""
        for name in list(self._sessions):
            await self.close(name)
        if self._task is not None:
            self._uvicorn.should_exit = True
            await self._task

    @property
    def url(self) -> str:
        """Where it listens."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def session_url(self, name: str) -> str:
        """Return what a client takes as its base URL."""
        return f"{self.url}/s/{quote(name, safe='')}/v1"

    def open(
        self,
        name: str,
        generator: Generator,
        sampling: Sampling,
        *,
        keeps_sampling: bool = False,
        timeout_s: float = 600.0,
    ) -> Session:
        """Open a session; see `Session` for what it takes.

        Raises:
            ConfigError: There is one of this name, or it is none.
        """
        if not name or "/" in name or name in self._sessions:
            raise ConfigError(f"a session wants a name of its own and without a slash, got {name!r}")
        session = Session(
            self.agent, generator, sampling, name=name, keeps_sampling=keeps_sampling, timeout_s=timeout_s
        )
        self._sessions[name] = session
        return session

    async def close(self, name: str) -> SessionRecord:
        """End a session: cancel what runs, refuse what comes, and return what was sampled."""
        session = self._sessions.pop(name)
        await session.close()
        return session.record()

    async def _serve(self, listener: socket.socket) -> None:
        with listener:
            await self._uvicorn.serve(sockets=[listener])


class _OnLoop(uvicorn.Server):
    """Leaves signals to the process that it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
