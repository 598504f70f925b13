"""The sandboxes that graders and environments are tested with, and real HTTP servers."""

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from turngym.sandbox.base import Sandbox
from turngym.sandbox.registration import SANDBOXES, shared_sandbox

from .unsafe_sandbox import UnsafeSandbox


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    """The local sandbox, which environments in the same test use too."""
    found = await shared_sandbox("local")
    yield found
    num_left = found.num_sessions
    await found.close()
    assert num_left == 0


@pytest.fixture
async def unsafe(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[UnsafeSandbox]:
    """A sandbox that counts and fails on request; environments get it as `unsafe`."""
    found = UnsafeSandbox()
    monkeypatch.setitem(SANDBOXES._entries, "unsafe", lambda: found)
    yield found
    found.failing = {}
    await found.close()


@pytest.fixture
def live() -> Iterator[Callable[[Any], str]]:
    """Serve an ASGI application on this machine, in a thread of its own, and return its URL."""
    import uvicorn

    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def start(app: Any) -> str:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread, listener))
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until, "the server does not start"
            time.sleep(0.005)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for server, thread, listener in running:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
