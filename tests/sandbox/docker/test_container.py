"""How a container is confined, and whose doing its end was."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from turngym.errors import SandboxError
from turngym.sandbox.docker.container import Container, Setup, Shape, host_config
from turngym.sandbox.limits import Limits

SETUP = Setup("sha256:0", "python3", None, "bridge", 1.5, 10_000, None)
SHAPE = Shape.of(Limits(memory_bytes=100 << 20, num_processes=8, disk_bytes=16 << 20, num_inodes=160))


class OneState:
    """A daemon that knows one container."""

    def __init__(self, state: dict[str, Any] | None) -> None:
        self._state = state

    def state(self, name: str) -> dict[str, Any] | None:
        return self._state


@pytest.fixture
async def threads() -> AsyncIterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


def container(state: dict[str, Any] | None, threads: ThreadPoolExecutor) -> Container:
    client: Any = OneState(state)
    return Container(client, threads, SETUP, SHAPE)


def test_what_the_daemon_is_told() -> None:
    config = host_config(SETUP, SHAPE)
    assert config["read_only"] is True
    assert (config["cap_drop"], config["cap_add"]) == (["ALL"], ["SETUID", "SETGID", "KILL"])
    assert config["security_opt"] == ["no-new-privileges"]
    assert config["mem_limit"] == config["memswap_limit"] == (100 + 24) << 20
    assert (config["pids_limit"], config["nano_cpus"]) == (9, 1_500_000_000)
    assert config["network_mode"] == "none"
    assert config["tmpfs"] == {
        "/box": "rw,nosuid,nodev,size=16777216,nr_inodes=161,exec,mode=0700,uid=10000,gid=10000",
        "/tmp": "rw,nosuid,nodev,size=1048576,nr_inodes=11,noexec,mode=1777",
        "/dev/shm": "rw,nosuid,nodev,size=1048576,nr_inodes=11,noexec,mode=1777",
    }
    networked = host_config(SETUP, Shape.of(Limits(allow_network=True)))
    assert networked["network_mode"] == "bridge"


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ({"Running": False, "OOMKilled": True, "ExitCode": 137}, "memory"),
        ({"Running": False, "OOMKilled": False, "ExitCode": 1}, "killed"),
    ],
)
async def test_what_programs_did(threads: ThreadPoolExecutor, state: dict[str, Any], why: str) -> None:
    assert await container(state, threads).why_dead() == why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "removed from outside"),
        ({"Running": False, "OOMKilled": False, "ExitCode": 137}, "from outside"),
        ({"Running": False, "OOMKilled": False, "ExitCode": 143}, "from outside"),
        ({"Running": False, "OOMKilled": False, "ExitCode": 0}, "connection to the container broke"),
        ({"Running": True}, "connection to the container broke"),
    ],
)
async def test_what_others_did(threads: ThreadPoolExecutor, state: dict[str, Any] | None, message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        await container(state, threads).why_dead()


async def test_what_we_did(threads: ThreadPoolExecutor) -> None:
    ours = container(None, threads)
    ours.is_unwanted = True
    with pytest.raises(SandboxError, match="was closed"):
        await ours.why_dead()
