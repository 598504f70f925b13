"""How the local sandbox names ends that lie at the edge: nothing that a program does makes a failure of the sandbox."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from turngym.errors import ForkRefusedError, SandboxDeadError, SandboxLostError
from turngym.sandbox.limits import Limits
from turngym.sandbox.local.backend import LocalSandbox


@pytest.fixture
async def sandbox():
    async with LocalSandbox(num_workers=1) as sandbox:
        yield sandbox


@pytest.mark.slow
@pytest.mark.parametrize("wall_s", [1e-6, 1e-4, 1e-3, 3e-3])
async def test_a_limit_that_is_over_before_the_program_begins_is_a_timeout(sandbox, wall_s):
    for _ in range(5):
        result = await sandbox.run("import time; time.sleep(5)", limits=Limits(wall_s=wall_s))
        assert (result.ended, result.exit_code) == ("timeout", None)


@pytest.mark.slow
async def test_a_shell_that_reads_no_cell_is_killed_at_the_timeout(sandbox):
    async with await sandbox.open_session("bash", limits=Limits(wall_s=0.2)) as session:
        await session.run_cell("(sleep 0.1; kill -STOP $$) &")
        await asyncio.sleep(0.3)
        long = f": {'a' * 3_000_000}"  # more than the socket holds
        cell = await asyncio.wait_for(session.run_cell(long), 60)
    assert (cell.ended, cell.is_alive) == ("timeout", False)
    async with await sandbox.open_session("bash") as session:  # on a socket of the same number
        assert (await session.run_cell("echo ok")).out == b"ok\n"


@pytest.mark.slow
async def test_a_jail_rests_when_its_interpreter_has_ended_between_two_cells(sandbox):
    async with await sandbox.open_session() as session:
        await session.run_cell("import os, threading; threading.Timer(0.05, os._exit, (0,)).start()")
        await asyncio.sleep(0.2)
        before = ticks(session._jail.pid)
        await asyncio.sleep(0.3)
        assert ticks(session._jail.pid) - before <= 3
        with pytest.raises(SandboxDeadError):
            await session.run_cell("1")


async def test_memory_that_ran_out_in_a_session_is_not_held_against_the_next_program(sandbox):
    fills = "import os\nfd = os.memfd_create('x')\nfor _ in range(128): os.write(fd, bytes(1 << 20))"
    limits = Limits(memory_bytes=64 << 20, disk_bytes=256 << 20)
    async with await sandbox.open_session(limits=limits) as session:
        assert (await session.run_cell(fills)).ended == "memory"
    result = await sandbox.run("raise SystemExit(3)", limits=limits)
    assert (result.ended, result.exit_code) == ("nonzero", 3)


@pytest.mark.slow
async def test_a_cell_that_lets_the_kernel_kill_its_jail_for_memory_has_run_out_of_memory(sandbox):
    code = """
import os
with open('/proc/self/oom_score_adj', 'w') as file:
    file.write('0')
fd = os.memfd_create('x', 0)
os.set_inheritable(fd, True)
for _ in range(40):
    os.write(fd, bytes(1 << 20))
if os.fork() == 0:
    os.execvp('sh', ['sh', '-c', f'for i in 1 2 3 4; do head -c 30000000 /dev/zero >&{fd}; done'])
os.wait()
"""
    for _ in range(4):  # most often it is the jail's init that is killed
        async with await sandbox.open_session(limits=Limits(memory_bytes=64 << 20, disk_bytes=256 << 20)) as session:
            cell = await session.run_cell(code)
            assert cell.ended in ("memory", "ok")
    assert (await sandbox.run("print(1)")).is_ok


@pytest.mark.slow
async def test_a_program_beside_a_cell_that_has_its_jail_killed_for_memory_is_no_failure(sandbox):
    code = """
import os, time
with open('/proc/self/oom_score_adj', 'w') as file:
    file.write('0')
fd = os.memfd_create('x', 0)
os.set_inheritable(fd, True)
for _ in range(40):
    os.write(fd, bytes(1 << 20))
if os.fork() == 0:
    os.execvp('sh', ['sh', '-c', f'sleep 0.2; for i in 1 2 3 4; do head -c 30000000 /dev/zero >&{fd}; done'])
"""
    ends = set()
    for _ in range(4):
        async with await sandbox.open_session(limits=Limits(memory_bytes=64 << 20, disk_bytes=256 << 20)) as session:
            await session.run_cell(code)
            ends.add((await session.run("import time; time.sleep(0.5)")).ended)
    assert ends <= {"memory", "ok"}


async def test_no_note_is_left_in_the_times_and_flags_of_folders(sandbox):
    writes = """
import array, fcntl, os, time
time.sleep(0.02)
for path in ('/box', '/tmp', '/dev/shm'):
    os.utime(path, (111, 222))
    fcntl.ioctl(os.open(path, 0), 0x40086602, array.array('i', [0x40]))  # FS_IOC_SETFLAGS: no dump
"""
    reads = """
import array, fcntl, os
for path in ('/box', '/tmp', '/dev/shm'):
    flags = array.array('i', [0])
    fcntl.ioctl(os.open(path, 0), 0x80086601, flags)
    assert (os.stat(path).st_mtime != 222, flags[0]) == (True, 0)
"""
    wrote = await sandbox.run(writes)
    assert wrote.is_ok or "Inappropriate ioctl" in wrote.err_text  # an older kernel's
    assert (await sandbox.run(reads)).err_text == "" or not wrote.is_ok


async def test_files_that_a_program_leaves_do_not_count_against_the_next_one(sandbox):
    fills = "open('/dev/shm/x', 'wb').write(bytes(60 << 20))"
    assert (await sandbox.run(fills)).is_ok
    assert (await sandbox.run("print(1)", limits=Limits(memory_bytes=16 << 20))).is_ok
    async with await sandbox.open_session() as session:
        await session.run_cell(fills)
    assert (await sandbox.run("print(1)", limits=Limits(memory_bytes=16 << 20))).is_ok


async def test_a_fork_that_failed_leaves_no_leave_for_namespaces(sandbox):
    unshare = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x10020000), ctypes.get_errno()"
    async with await sandbox.open_session() as session:
        await session.run_cell("import os; os.fork, os.waitpid = lambda: 1, lambda *_: None")
        with pytest.raises(ForkRefusedError, match="did not fork"):
            await session.fork()
        assert (await session.run_cell(unshare)).value == "(-1, 1)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "python",
            "import socket, threading\ncontrol = socket.socket(fileno=3)\n"
            "def answer():\n    while True: control.send(b'{}')\n"
            "threading.Timer(0.1, answer).start()",
        ),
        # Where bash keeps what is closed to the cell.
        ("bash", "(sleep 0.1; for fd in 10 11 12 13; do printf '0\\0' >&$fd; done) &"),
    ],
)
async def test_an_interpreter_that_answers_unasked_is_taken_for_gone(sandbox, language, code):
    async with await sandbox.open_session(language) as session:
        await session.run_cell(code)
        await asyncio.sleep(0.3)
        with pytest.raises(SandboxDeadError):
            await session.run_cell("echo = 1")


def ticks(pid: int) -> int:
    """Return the CPU time that a process has used, in hundredths of a second."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


@pytest.mark.slow
@pytest.mark.parametrize(
    "holds",
    [
        "os.register_at_fork(before=lambda: time.sleep(60))",
        "os.register_at_fork(after_in_child=lambda: time.sleep(60))",
        # It says that a process has left for namespaces of its own, and none has.
        "import socket\nfork = os.fork\ndef fakes():\n    import gc\n    for fd in range(4, 20):\n"
        '        try: socket.socket(fileno=os.dup(fd)).send(b\'{"op": "left"}\')\n        except OSError: pass\n'
        "    return 1\nos.fork = fakes",
    ],
    ids=["before", "in the child", "forged"],
)
async def test_a_fork_that_is_held_up_or_forged_is_refused_and_harms_nobody(sandbox, monkeypatch, holds):
    monkeypatch.setattr("turngym.sandbox.local.starting.FORK_S", 0.3)
    async with await sandbox.open_session() as session:
        await session.run_cell(f"import os, time\n{holds}")
        with pytest.raises(ForkRefusedError, match="did not fork"):
            await session.fork()
    assert (await sandbox.run("print(1)")).is_ok
    assert sandbox.num_sessions == 0


async def test_a_jail_that_is_killed_while_it_forks_is_lost(sandbox):
    async with await sandbox.open_session() as session:
        await session.run_cell("import os, time\nos.register_at_fork(before=lambda: time.sleep(60))")
        forking = asyncio.create_task(session.fork())
        async with asyncio.timeout(60):
            while not session._jail.forking.locked():
                await asyncio.sleep(0.01)
        os.kill(session._jail.pid, signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await forking
    assert (await sandbox.run("print(1)")).is_ok


async def test_a_cell_whose_session_is_closed_has_no_outcome(sandbox):
    session = await sandbox.open_session()
    cell = asyncio.create_task(session.run_cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.1)
    await session.close()
    with pytest.raises(SandboxLostError, match="closed while a cell"):
        await cell
    with pytest.raises(SandboxDeadError):
        await session.run_cell("1")


async def test_a_fork_that_ends_after_it_has_its_files_leaves_no_branch(sandbox):
    async with await sandbox.open_session() as session:
        await session.run_cell("import os\nopen('/tmp/left', 'w').close()\nos.chdir = lambda *_: os._exit(0)")
        jail = session._jail
        for _ in range(2):
            with pytest.raises(ForkRefusedError, match="did not fork"):
                await session.fork()
        assert (await session.run_cell("1 + 1")).value == "2"
        assert jail.group is None or jail.group.is_limited(Limits.memory_bytes, Limits.num_processes)
    assert sandbox._idle[False] == [jail]  # it is used again, and clean
    stays = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(600)\nopen('/tmp/left', 'w').close()"
    looks = "import os; print(os.listdir('/tmp'), sum(name.isdigit() for name in os.listdir('/proc')))"
    assert (await sandbox.run(stays)).is_ok
    assert (await sandbox.run(looks)).out == b"[] 2\n"  # the init and itself


async def test_all_that_is_asked_of_a_lost_session_at_once_says_so(sandbox):
    session = await sandbox.open_session()
    await session.run_cell("x = 1")
    cell = asyncio.create_task(session.run_cell("import time; time.sleep(60)"))
    await asyncio.sleep(0.1)
    os.kill(session._jail.pid, signal.SIGKILL)
    others = [session.read_file("x"), session.run("1"), session.list_files(), session.write_file("y", b"")]
    results = await asyncio.gather(cell, *others, return_exceptions=True)
    assert [type(result) for result in results] == [SandboxLostError] * 5, results
    await session.close()
    with pytest.raises(SandboxDeadError):
        await session.run_cell("1")
