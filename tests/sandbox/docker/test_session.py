"""Sessions: cells that keep their state, files that come and go, and every way in which a session ends."""

import asyncio
import io
import tarfile

import pytest

from turngym.errors import ProgramError, SandboxDeadError, SandboxError, SandboxLostError
from turngym.sandbox.docker.backend import DockerSandbox
from turngym.sandbox.limits import Limits
from turngym.sandbox.results import FileInfo

from .conftest import docker, our_containers, wait_for

pytestmark = [pytest.mark.docker, pytest.mark.slow]


async def test_python_cells(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session(files={"data.txt": b"5"}) as session:
        first = await session.run_cell("import sys\nx = int(open('data.txt').read())\nprint('hi')\nx + 1")
        assert (first.ended, first.out, first.value, first.error, first.is_alive) == ("ok", b"hi\n", "6", None, True)
        failed = await session.run_cell("print('before', file=sys.stderr)\n1 / 0")
        assert (failed.ended, failed.err, failed.is_alive) == ("error", b"before\n", True)
        assert failed.error is not None
        assert failed.error.startswith('Traceback (most recent call last):\n  File "<cell 2>", line 2, in <module>\n')
        assert (await session.run_cell("x")).value == "5"
        cut = await session.run_cell("print('y' * 10**6)")
        assert (len(cut.out), cut.is_out_truncated) == (Limits().output_bytes, True)
        assert (await session.run_cell("input()")).ended == "error"
        assert (await session.run_cell("raise KeyboardInterrupt")).ended == "error"
        assert sandbox.num_sessions == 1
    assert sandbox.num_sessions == 0
    with pytest.raises(SandboxDeadError, match="it was closed"):
        await session.run_cell("x")
    await session.close()


async def test_shell_cells(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session("bash") as session:
        assert (await session.run_cell("cd /tmp; x=5; f() { echo f $x; }; declare -A m=([a]=b)")).exit_code == 0
        result = await session.run_cell("f; pwd; echo ${m[a]}; false")
        assert (result.ended, result.exit_code, result.out) == ("error", 1, b"f 5\n/tmp\nb\n")
        assert result.error == "exit code 1"
        assert (await session.run_cell("if then (")).exit_code != 0
        assert (await session.run_cell('cat; read y; echo "[$y] $x"')).out == b"[] 5\n"
        late = await session.run_cell("while :; do :; done", timeout_s=0.3)
        assert (late.ended, late.is_alive) == ("timeout", True)
        late = await session.run_cell("sleep 60; echo no", timeout_s=0.3)
        assert (late.ended, late.is_alive, late.out) == ("timeout", True, b"")
        assert (await session.run_cell("echo $x")).out == b"5\n"
        gone = await session.run_cell("exit 3")
        assert (gone.ended, gone.is_alive, gone.exit_code) == ("exited", False, 3)


async def test_late_cells(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session() as session:
        late = await session.run_cell("x = 1\nimport time\ntime.sleep(60)", timeout_s=0.3)
        assert (late.ended, late.is_alive) == ("timeout", True)
        assert (await session.run_cell("x")).value == "1"
        stubborn = "while True:\n    try: time.sleep(60)\n    except BaseException: pass"
        killed = await session.run_cell(stubborn, timeout_s=0.3)
        assert (killed.ended, killed.is_alive) == ("timeout", False)
        assert "by signal 9" in killed.error  # so the runner says, which has not fallen silent
        with pytest.raises(SandboxDeadError, match="timeout"):
            await session.run_cell("x")
    await wait_for(lambda: sandbox.num_sessions == 0)


async def test_interrupting(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session() as session:
        await session.interrupt()
        task = asyncio.create_task(session.run_cell("import time\nprint('x', flush=True)\ntime.sleep(60)"))
        await asyncio.sleep(0.3)
        with pytest.raises(SandboxError, match="another cell"):
            await session.run_cell("1")
        await session.interrupt()
        result = await task
        assert (result.ended, result.out, result.is_alive) == ("interrupted", b"x\n", True)
        assert (await session.run_cell("1 + 1")).value == "2"


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os._exit(0)", "exited"),
        ("import os; os.kill(os.getpid(), 9)", "exited"),
        ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
        ("while True: print('x' * 65536)", "output"),
        (
            "import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'junk' * 100)\n    except OSError: pass",
            "exited",
        ),
    ],
    ids=["exit", "kill", "memory", "flood", "forged reply"],
)
async def test_cells_that_end_their_interpreter(sandbox: DockerSandbox, code: str, ended: str) -> None:
    session = await sandbox.open_session(limits=Limits(memory_bytes=48 << 20, flood_bytes=1 << 20))
    result = await session.run_cell(code)
    assert (result.ended, result.is_alive) == (ended, False)
    for call in (session.run_cell("1"), session.run("1"), session.read_file("x"), session.snapshot()):
        with pytest.raises(SandboxDeadError):
            await call
    assert sandbox.num_sessions == 0


async def test_programs_beside_the_interpreter(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session() as session:
        await session.run_cell("x = 1\nopen('made', 'w').write('by a cell')")
        result = await session.run("print(open('made').read()); open('back', 'w').write('b')")
        assert (result.ended, result.out) == ("ok", b"by a cell\n")
        late = await session.run("sleep 60 & sleep 60", language="bash", timeout_s=0.3)
        assert (late.ended, late.exit_code) == ("timeout", None)
        count = (
            "sum('sleep' in open(f'/proc/{p}/comm').read() for p in __import__('os').listdir('/proc') if p.isdigit())"
        )
        assert (await session.run_cell(count)).value == "0"
        task = asyncio.create_task(session.run(argv=["sleep", "60"]))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.run_cell(count)).value == "0"
        assert (await session.run_cell("x, open('back').read()")).value == "(1, 'b')"


async def test_cancelling_a_cell_ends_the_session(sandbox: DockerSandbox) -> None:
    session = await sandbox.open_session()
    task = asyncio.create_task(session.run_cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandbox.num_sessions == 0
    with pytest.raises(SandboxDeadError, match="cancelled"):
        await session.run_cell("1")


async def test_files(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session(limits=Limits(disk_bytes=4 << 20)) as session:
        big = bytes(range(256)) * 8192
        await session.write_file("a/b/big", big)
        assert await session.read_file("/box/a/b/big", max_bytes=len(big)) == big
        with pytest.raises(ProgramError, match="at most 1,048,576"):
            await session.read_file("a/b/big")
        setup = "import os, socket; os.symlink('/etc/passwd', 'link'); os.symlink('a', 'up'); os.mkfifo('fifo')"
        await session.run_cell(setup + "; open(b'\\xff', 'w'); socket.socket(1).bind('sock')")
        for path in ("link", "up/b/big", "fifo", "a", "none", "sock"):
            with pytest.raises(ProgramError, match=repr(path)):
                await session.read_file(path)
        for path in ("link", "up/x", "fifo", "../x", "/etc/x"):
            with pytest.raises(ProgramError):
                await session.write_file(path, b"x")
        with pytest.raises(ProgramError, match="disk is full"):
            await session.write_file("more", bytes(4 << 20))
        await session.run_cell("os.remove('more')")
        assert await session.list_files() == [
            FileInfo("a", "folder", 0),
            FileInfo("a/b", "folder", 0),
            FileInfo("a/b/big", "file", len(big)),
            FileInfo("fifo", "other", 0),
            FileInfo("link", "link", 0),
            FileInfo("sock", "other", 0),
            FileInfo("up", "link", 0),
            FileInfo("\udcff", "file", 0),
        ]
        assert await session.list_files("a/b") == [FileInfo("a/b/big", "file", len(big))]
        with pytest.raises(ProgramError, match="more than 3"):
            await session.list_files(max_entries=3)
        assert (await session.run_cell("1")).value == "1"


async def test_snapshots(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session() as session:
        await session.write_file("d/f", b"content")
        await session.run_cell("import os; os.mkdir('empty'); os.symlink('/etc', 'l'); os.chmod('d/f', 0o755)")
        snapshot = await session.snapshot()
    with tarfile.open(fileobj=io.BytesIO(snapshot)) as tar:
        assert {member.name: member.mode for member in tar} == {"d": 0o755, "d/f": 0o755, "empty": 0o755}
    async with await sandbox.open_session(snapshot=snapshot, files={"more": b""}) as session:
        assert [file.path for file in await session.list_files()] == ["d", "d/f", "empty", "more"]
        assert (await session.run_cell("import os; open('d/f').read(), os.access('d/f', os.X_OK)")).value == (
            "('content', True)"
        )
        await session.run_cell("open('sparse', 'wb').truncate(64 << 20); open('x', 'w').write('x')")
        with pytest.raises(ProgramError, match="the disk has"):
            await session.snapshot()
    with pytest.raises(ProgramError, match="tar archive"):
        await sandbox.open_session(snapshot=b"junk" * 1000)
    assert sandbox.num_sessions == 0


async def test_a_session_cannot_fork_and_says_so(sandbox: DockerSandbox) -> None:
    async with await sandbox.open_session() as session:
        assert not session.can_fork
        with pytest.raises(SandboxError, match="cannot fork"):
            await session.fork()


async def test_closing_the_sandbox_ends_its_sessions(image: str) -> None:
    async with DockerSandbox(image, num_warm=1) as sandbox:
        session = await sandbox.open_session()
        task = asyncio.create_task(session.run_cell("import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
    with pytest.raises(SandboxError):
        await task
    assert our_containers() == []
    with pytest.raises(SandboxDeadError):
        await session.run_cell("1")
    await session.close()
    with pytest.raises(SandboxError, match="closed"):
        await sandbox.run("1")


async def test_a_session_whose_container_is_killed_from_outside_is_lost(sandbox: DockerSandbox) -> None:
    between, under = await sandbox.open_session(), await sandbox.open_session()
    await between.run_cell("x = 1")
    cell = asyncio.create_task(under.run_cell("print('begun', flush=True); import time; time.sleep(60)"))
    await wait_for(lambda: under._num_busy)
    await asyncio.sleep(0.3)
    for session in (between, under):
        docker("kill", session._container.name)
    with pytest.raises(SandboxLostError, match="outside"):
        await cell
    await wait_for(lambda: not between.is_alive)
    for session in (between, under):
        for call in (session.run_cell("1"), session.run("1"), session.read_file("x")):
            with pytest.raises(SandboxLostError, match="nothing of its own doing"):
                await call
        assert not session.is_alive
        await session.close()
        with pytest.raises(SandboxDeadError):
            await session.run_cell("1")
    await wait_for(lambda: sandbox.num_sessions == 0)


async def test_a_cell_whose_session_is_closed_has_no_outcome(sandbox: DockerSandbox) -> None:
    session = await sandbox.open_session()
    cell = asyncio.create_task(session.run_cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.3)
    await session.close()
    with pytest.raises(SandboxLostError, match="closed while a cell"):
        await cell
    with pytest.raises(SandboxDeadError):
        await session.run_cell("1")
