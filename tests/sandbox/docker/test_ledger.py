"""What the sandbox says that there is, and what the daemon says: they agree, whatever fails in between."""

import asyncio
import signal
import subprocess
import sys

import pytest

from turngym.errors import SandboxError
from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.docker.client import DockerClient
from turngym.sandbox.docker.reaper import LABEL

from .conftest import Proxy, docker, our_containers, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.slow]

_SUPERVISOR = """
import asyncio, os, sys
from turngym.sandbox.docker.backend import DockerSandbox
async def main():
    sandbox = DockerSandbox(sys.argv[1], num_warm=1)
    session = await sandbox.open_session()
    print(os.getpid(), flush=True)
    await session.run_cell("import time; time.sleep(600)", timeout_s=600)
asyncio.run(main())
"""


@pytest.mark.parametrize("num_failures", [1, 3])
async def test_failed_removals_are_counted_and_tried_again(
    sandbox: DockerSandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, num_failures: int
) -> None:
    remove, failures = DockerClient.remove, iter(range(num_failures))

    def failing(self: DockerClient, name: str) -> None:
        if next(failures, None) is not None:
            raise SandboxError("the daemon has other worries")
        remove(self, name)

    session = await sandbox.open_session()
    await wait_for(lambda: len(our_containers()) == 2)
    monkeypatch.setattr(DockerClient, "remove", failing)
    await session.close()
    assert sandbox.num_sessions == 1  # closed, but its container is still there
    assert sandbox.num_containers == len(our_containers()) == 2
    assert list(sandbox.unremoved.values()) == ["the daemon has other worries"]
    assert "other worries" in caplog.text
    await wait_for(lambda: sandbox.num_sessions == 0)
    assert sandbox.num_failed_removals == num_failures
    assert sandbox.unremoved == {}
    assert sandbox.num_containers == len(our_containers()) == 1


async def test_what_cannot_be_removed_is_named_at_the_end(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = DockerSandbox(image, num_warm=0)
    await sandbox.open_session()
    (name,) = our_containers()
    monkeypatch.setattr("turngym.sandbox.docker.pool._CLOSE_TIMEOUT_S", 1.0)

    def failing(self: DockerClient, name: str) -> None:
        raise SandboxError("never")

    with monkeypatch.context() as patch:
        patch.setattr(DockerClient, "remove", failing)
        with pytest.raises(SandboxError, match=rf"1 containers could not be removed: {name} \(never\)"):
            await sandbox.close()
    assert sandbox.num_containers == 1
    docker("rm", "--force", name)


async def test_a_daemon_that_goes_and_comes_back(image: str, proxy: Proxy) -> None:
    await proxy.up()
    async with DockerSandbox(image, num_warm=1, docker_host=proxy.host) as sandbox:
        sessions = [await sandbox.open_session() for _ in range(2)]
        cell = asyncio.create_task(sessions[0].run_cell("import time; time.sleep(60)"))
        run = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
        await asyncio.sleep(1.0)
        proxy.down()
        for task in (cell, run):  # no result, and so no reward
            with pytest.raises(SandboxError):
                await task
        with pytest.raises(SandboxError, match="Docker daemon"):
            await sandbox.open_session()
        assert sandbox.num_sessions == 2
        assert sandbox.num_failed_removals >= 2
        await proxy.up()
        await wait_for(lambda: sandbox.num_sessions == 0 and not sandbox.unremoved)
        assert (await sandbox.run("print(1)")).out == b"1\n"
    assert our_containers() == []


async def test_containers_of_a_dead_supervisor_are_reaped(image: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", _SUPERVISOR, image], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = process.stdout.readline().strip()

    def theirs() -> list[str]:
        listed = docker("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}").split()
        return [name for name in listed if name.startswith(f"turngym-{pid}-")]

    await wait_for(lambda: len(theirs()) == 2)
    async with DockerSandbox(image, num_warm=0):
        assert len(theirs()) == 2  # its owner lives
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(theirs()) == 2
    async with DockerSandbox(image, num_warm=0):
        assert theirs() == []


async def test_episodes_cancelled_at_any_time_leave_nothing(sandbox: DockerSandbox) -> None:
    async def episode() -> None:
        async with await sandbox.open_session() as session:
            await session.run_cell("1")

    tasks = []
    for number in range(10):
        tasks.append(asyncio.create_task(episode()))
        await asyncio.sleep(0.03 * number)
        tasks[-1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await wait_for(lambda: sandbox.num_sessions == 0 and sandbox.num_containers == 1)
    assert len(our_containers()) == 1


@pytest.mark.soak
async def test_a_hundred_episodes_leave_nothing(sandbox: DockerSandbox) -> None:
    async def episode(number: int) -> str | None:
        async with await sandbox.open_session() as session:
            await session.write_file("x", str(number).encode())
            return (await session.run_cell("open('x').read()")).value

    values = await asyncio.gather(*(episode(number) for number in range(100)))
    assert values == [repr(str(number)) for number in range(100)]
    await wait_for(lambda: sandbox.num_containers == 1)
    assert len(our_containers()) == 1
