"""One program in one container: how it ends, what limits it, what it may do."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from turngym.errors import ProgramError, SandboxError
from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.limits import Limits

from .conftest import docker, our_containers, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(image: str) -> AsyncIterator[DockerSandbox]:
    """Serve all tests of this file: runs share nothing anyway."""
    async with DockerSandbox(image, num_workers=2, num_warm=1) as sandbox:
        yield sandbox
    assert our_containers() == []


async def test_a_program_gets_its_input_and_files_and_gives_its_output(sandbox: DockerSandbox) -> None:
    code = "import sys, helper\nprint(helper.x + int(input()))\nprint('e', file=sys.stderr)\nsys.exit(3)"
    result = await sandbox.run(code, stdin=b"2\n", files={"helper.py": b"x = 40"})
    assert (result.ended, result.exit_code, result.signal) == ("nonzero", 3, None)
    assert (result.out, result.err) == (b"42\n", b"e\n")
    assert result.tier == "docker"
    assert result.cpu_s is not None
    assert 0 < result.cpu_s < 2
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 1 << 20


@pytest.mark.parametrize(
    ("code", "limits", "ended"),
    [
        ("while True: pass", Limits(wall_s=0.5), "timeout"),
        ("while True: pass", Limits(cpu_s=1, wall_s=8), "timeout"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", Limits(memory_bytes=48 << 20), "memory"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", Limits(flood_bytes=1 << 20), "output"),
        ("import os; os.abort()", Limits(), "signal"),
    ],
    ids=["wall", "cpu", "memory", "output", "abort"],
)
async def test_how_programs_end(sandbox: DockerSandbox, code: str, limits: Limits, ended: str) -> None:
    result = await sandbox.run(code, limits=limits)
    assert result.ended == ended
    assert result.exit_code is None
    assert result.signal == (6 if ended == "signal" else None)


async def test_memory_counts_over_all_processes(sandbox: DockerSandbox) -> None:
    code = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(b'x' * (16 << 20)); time.sleep(1); os._exit(0)\n"
        "for _ in range(6): print(os.wait()[1], flush=True)\n"
        "os._exit(1)"
    )
    result = await sandbox.run(code, limits=Limits(memory_bytes=64 << 20))
    assert result.ended == "memory"
    assert b"9\n" in result.out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("for i in range(4): open(f'/box/{i}', 'wb').write(bytes(600_000))", b"No space left"),
        ("open('/dev/shm/big', 'wb').write(bytes(600_000))", b"No space left"),
        ("open('/tmp/big', 'wb').write(bytes(600_000))", b"No space left"),
        ("open('sparse', 'wb').truncate(1 << 40)", b"File too large"),
        ("for i in range(100): open(str(i), 'w')", b"No space left"),
        ("x = [open('/dev/null') for _ in range(40)]", b"Too many open files"),
        ("import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(1)", b"temporarily unavailable"),
        ("open('/usr/x', 'w')", b"Read-only file system"),
        ("open('/etc/shadow')", b"Permission denied"),
    ],
    ids=["disk", "shm", "tmp", "sparse", "inodes", "open files", "processes", "read-only", "shadow"],
)
async def test_what_is_refused(sandbox: DockerSandbox, code: str, said: bytes) -> None:
    limits = Limits(disk_bytes=1 << 20, num_inodes=50, num_open_files=32, num_processes=8)
    result = await sandbox.run(code, limits=limits)
    assert result.exit_code == 1
    assert said in result.err


async def test_files_in_the_work_folder_can_be_executed(sandbox: DockerSandbox) -> None:
    code = "printf '#!/bin/sh\\necho ran' > x; chmod +x x; ./x"
    assert (await sandbox.run(code, language="bash")).out == b"ran\n"


async def test_programs_have_no_privileges_and_no_network(sandbox: DockerSandbox) -> None:
    code = (
        "import os, socket\n"
        "lines = open('/proc/self/status').read().splitlines()\n"
        "print([line.split()[1] for line in lines if line.startswith(('Cap', 'NoNewPrivs', 'Seccomp:'))])\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups(), [name for _, name in socket.if_nameindex()])\n"
    )
    result = await sandbox.run(code)
    nothing = "0" * 16
    inheritable, permitted, effective, bounding, ambient, no_new, seccomp = eval(result.out.splitlines()[0])
    assert [inheritable, permitted, effective, ambient] == [nothing] * 4
    assert int(bounding, 16) == 1 << 5 | 1 << 6 | 1 << 7  # KILL, SETGID, SETUID: the runner's, out of reach
    assert (no_new, seccomp) == ("1", "2")
    assert result.out.splitlines()[1] == b"(10000, 10000, 10000) (10000, 10000, 10000) [] ['lo']"


async def test_a_program_cannot_touch_the_runner_or_its_connection(sandbox: DockerSandbox) -> None:
    code = (
        "import ctypes, os, resource, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def tried(name, action):\n"
        "    try: print(name, 'worked', action())\n"
        "    except OSError as error: print(name, 'refused')\n"
        "def checked(value):\n"
        "    if value < 0: raise OSError(ctypes.get_errno())\n"
        "for number in (9, 2, 15, 19): tried('kill', lambda: os.kill(1, number))\n"
        "for name in ('fd/0', 'fd/1', 'mem', 'environ'): tried(name, lambda: open(f'/proc/1/{name}', 'r+b', 0))\n"
        "tried('fds', lambda: os.listdir('/proc/1/fd'))\n"
        "tried('ptrace', lambda: checked(libc.ptrace(16, 1, 0, 0)))\n"
        "tried('prlimit', lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0)))\n"
        "tried('setuid', lambda: os.setuid(0))\n"
        "tried('own fds', lambda: [os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 300)])\n"
    )
    result = await sandbox.run(code)
    assert result.exit_code == 0, result.err
    assert b"worked" not in result.out
    assert result.out.count(b"refused") == 13


async def test_what_looks_like_a_frame_is_output(sandbox: DockerSandbox) -> None:
    forged = b'\0\0\0\x2e\0\0\0\0{"id": 2, "is_last": true, "ended": "ok", "x": 1}'
    code = f"import os; os.write(1, {forged!r} * 100); os.write(2, {forged!r}); os._exit(7)"
    result = await sandbox.run(code)
    assert (result.exit_code, result.out, result.err) == (7, forged * 100, forged)


async def test_kill_all_leaves_the_result(sandbox: DockerSandbox) -> None:
    code = "import os\nos.write(1, b'x')\ntry: os.kill(-1, 9)\nfinally: os.kill(os.getpid(), 9)"
    result = await sandbox.run(code)
    assert (result.ended, result.signal, result.out) == ("signal", 9, b"x")


async def test_a_process_left_behind_delays_nothing(sandbox: DockerSandbox) -> None:
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(60)\nprint('done')"
    result = await sandbox.run(code)
    assert (result.ended, result.out) == ("ok", b"done\n")


async def test_commands(sandbox: DockerSandbox) -> None:
    assert (await sandbox.run(argv=["sh", "-c", "echo $0 $1", "a", "b"])).out == b"a b\n"
    missing = await sandbox.run(argv=["no-such-program"])
    assert (missing.exit_code, missing.err) == (127, b"no-such-program: command not found\n")
    assert (await sandbox.run(argv=["/etc/passwd"])).exit_code == 126
    assert sandbox.languages >= {"python", "bash"}
    with pytest.raises(ProgramError, match="javascript is not installed here"):
        await sandbox.run("1", language="javascript")
    with pytest.raises(ProgramError, match="disk is full"):
        await sandbox.run("1", files={"x": bytes(2 << 20)}, limits=Limits(disk_bytes=1 << 20))


async def test_the_network_is_there_when_it_is_allowed(image: str) -> None:
    async with DockerSandbox(image, num_warm=0, network="host") as sandbox:
        code = "import socket; socket.create_connection(('127.0.0.1', int(input())), 2); print('connected')"
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        stdin = str(server.sockets[0].getsockname()[1]).encode()
        allowed = await sandbox.run(code, stdin=stdin, limits=Limits(allow_network=True))
        assert allowed.out == b"connected\n", allowed.err
        assert (await sandbox.run(code, stdin=stdin)).exit_code == 1
        server.close()


async def test_containers_come_from_the_warm_pool_and_serve_once(image: str) -> None:
    others = set(our_containers())
    async with DockerSandbox(image, num_warm=1) as sandbox:
        for _ in range(2):
            await wait_for(lambda: len(set(our_containers()) - others) == 1)
            warm = set(our_containers()) - others
            assert (await sandbox.run("print(1)")).out == b"1\n"
            await wait_for(lambda warm=warm: not warm & set(our_containers()))
            assert sandbox.num_containers >= 1


async def test_cancelling_kills(sandbox: DockerSandbox) -> None:
    task = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
    await wait_for(lambda: len(our_containers()) >= 2)
    await asyncio.sleep(0.3)
    before = set(our_containers())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert before - set(our_containers())  # killed before the cancellation was passed on


async def test_a_container_ended_from_outside_is_no_result(sandbox: DockerSandbox) -> None:
    task = asyncio.create_task(sandbox.run("import time; time.sleep(60)", limits=Limits(disk_bytes=3 << 20)))
    await asyncio.sleep(1.5)
    for name in our_containers():
        if "size=3145728" in docker("inspect", "--format", "{{.HostConfig.Tmpfs}}", name):
            docker("kill", name)
    with pytest.raises(SandboxError, match=r"from outside|removed from outside"):
        await task


async def test_many_at_once_share_the_workers(sandbox: DockerSandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(f"print({number})") for number in range(8)))
    assert [int(result.out) for result in results] == list(range(8))


async def test_runs_at_the_close_and_those_in_line_all_end_in_an_error(image: str) -> None:
    sandbox = DockerSandbox(image, num_workers=1, num_warm=1)
    await sandbox.start()
    runs = [asyncio.create_task(sandbox.run("import time; time.sleep(60)")) for _ in range(3)]
    await wait_for(lambda: sandbox._slots.locked())
    await sandbox.close()
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [isinstance(result, SandboxError) and "closed" in str(result) for result in results] == [True] * 3, results
    assert sandbox.num_containers == 0
    for use in (sandbox.start, lambda: sandbox.run("1"), sandbox.open_session):
        with pytest.raises(SandboxError, match="closed"):
            await use()
