"""A daemon with an image that has Python, and ways to ask it what there really is."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.docker.reaper import LABEL


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def our_containers() -> list[str]:
    """Ask the daemon, not the ledger, for this process's containers."""
    listed = docker("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}").split()
    return [name for name in listed if name.startswith(f"turngym-{os.getpid()}-")]


async def wait_for(condition, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.fixture(scope="session")
def image() -> str:
    name = os.environ.get("TURNGYM_DOCKER_IMAGE", "python:3.12-slim")
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True).returncode:
        reason = f"needs the image {name}: docker pull {name}, or set TURNGYM_DOCKER_IMAGE to one that has Python"
        (pytest.fail if os.environ.get("TURNGYM_REQUIRE_DOCKER") else pytest.skip)(reason)
    return name


@pytest.fixture
async def sandbox(image: str) -> AsyncIterator[DockerSandbox]:
    async with DockerSandbox(image, num_workers=2, num_warm=1) as sandbox:
        yield sandbox
    assert our_containers() == []


class Proxy:
    """Stands between a client and the daemon; while it is down, the daemon is gone for that client."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._upstream = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        self._server: asyncio.Server | None = None
        self.writers: set[asyncio.StreamWriter] = set()

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    async def up(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    def down(self) -> None:
        if self._server:
            self._server.close()
            self.path.unlink(missing_ok=True)
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_unix_connection(self._upstream)
        self.writers |= {writer, their_writer}
        await asyncio.gather(self._copy(reader, their_writer), self._copy(their_reader, writer))
        self.writers -= {writer, their_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "docker.sock")
    yield proxy
    proxy.down()
    await wait_for(lambda: not proxy.writers)
