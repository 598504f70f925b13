"""Checks of shells, of programs beside an interpreter, and of sessions beside each other; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator

from ..errors import ProgramError, SandboxError
from .base import Sandbox
from .checks_cells import is_dead
from .checks_host import marked_processes, marking, new_mark
from .checks_judge import differs

_LEAVE_PROCESSES_AND_FILES = """
import time
for path in ("/tmp/turngym-left", "/dev/shm/turngym-left", "turngym-left"):
    open(path, "w").close()
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        time.sleep(1000)
"""


async def check_shell(sandbox: Sandbox) -> AsyncIterator[str]:
    """A shell session keeps folder, variables and functions, and tells exit codes; one that is not 0 is an error."""
    cases: tuple[tuple[str, dict[str, object]], ...] = (
        ("mkdir -p sub && cd sub && x=5", {"exit_code": 0, "out": b"", "value": None}),
        ('echo "$x ${PWD##*/}"', {"exit_code": 0, "out": b"5 sub\n"}),
        ("f() { echo f$1; }", {"exit_code": 0}),
        ("f 1; echo e >&2; false", {"ended": "error", "exit_code": 1, "out": b"f1\n", "err": b"e\n"}),
        ("(exit 9)", {"ended": "error", "exit_code": 9}),
        ("printf 'a\\nb'\n# a comment\ncat <<END\nc\nEND", {"exit_code": 0, "out": b"a\nbc\n"}),
        ("cat; echo $?", {"exit_code": 0, "out": b"0\n"}),
        ("no_such_command_at_all", {"ended": "error", "exit_code": 127}),
    )
    async with await sandbox.open_session("bash") as session:
        for code, wanted in cases:
            result = await session.run_cell(code)
            for message in differs(f"shell cell {code!r}", result, **{"ended": "ok", "is_alive": True, **wanted}):
                yield message
        broken = await session.run_cell("if true; then (")
        for message in differs("half a command", broken, is_alive=True):
            yield message
        late = await session.run_cell("x=6; sleep 100", timeout_s=0.5)
        for message in differs("a late shell cell", late, ended="timeout", is_alive=True):
            yield message
        for message in differs("a shell cell after it", await session.run_cell("f $x"), ended="ok", out=b"f6\n"):
            yield message
        gone = await session.run_cell("echo bye; exit 3")
        for message in differs("a shell that exits", gone, ended="exited", is_alive=False, out=b"bye\n"):
            yield message


async def check_run_beside(sandbox: Sandbox) -> AsyncIterator[str]:
    """`run` shares files with the interpreter and nothing else."""
    async with await sandbox.open_session() as session:
        await session.run_cell(
            "open('a', 'w').write('1'); x = 5\nimport builtins, os; builtins.print = None; os.environ['X'] = '1'"
        )
        code = "import os; print(open('a').read(), 'x' in globals(), os.environ.get('X')); open('b', 'w').write('2')"
        for message in differs("a program beside", await session.run(code), ended="ok", out=b"1 False None\n"):
            yield message
        for message in differs("its file", await session.run_cell("open('b').read(), x"), value="('2', 5)"):
            yield message
        shell = await session.run("cat a b; exit 4", language="bash")
        for message in differs("a shell beside", shell, ended="nonzero", exit_code=4, out=b"12"):
            yield message
        given = await session.run(argv=["cat"], stdin=b"\0given")
        for message in differs("a command beside", given, ended="ok", out=b"\0given"):
            yield message
        late = await session.run("while True: pass", timeout_s=0.4)
        for message in differs("a late program beside", late, ended="timeout"):
            yield message
        failing = await session.run("import os; os.kill(os.getpid(), 11)")
        for message in differs("a broken program beside", failing, ended="signal", signal=11):
            yield message
        for message in differs("the interpreter after them", await session.run_cell("x"), ended="ok", value="5"):
            yield message


async def check_apart(sandbox: Sandbox) -> AsyncIterator[str]:
    """Sessions see nothing of each other, each is counted while it is open, and `close` ends all of its processes."""
    count = sandbox.num_sessions
    one, other = await sandbox.open_session(), await sandbox.open_session()
    if sandbox.num_sessions != count + 2:
        yield f"with 2 more sessions num_sessions went from {count} to {sandbox.num_sessions}"
    mark = new_mark()
    await one.run_cell(f"{marking(mark)}\n{_LEAVE_PROCESSES_AND_FILES}")
    places = ("/tmp/turngym-left", "/dev/shm/turngym-left", "turngym-left")
    sees = f"import os; [os.path.exists(path) for path in {places}]"
    for message in differs("files of another session", await other.run_cell(sees), value="[False, False, False]"):
        yield message
    # Only these: a sandbox that fails here must not lose more than its own.
    ends = f"for pid in {marked_processes(mark)}:\n    try: os.kill(pid, 9) if pid != os.getpid() else None\n"
    await other.run_cell(f"{ends}    except OSError: pass")
    for message in differs("a session that another wants to kill", await one.run_cell("1 + 1"), ended="ok", value="2"):
        yield message
    await one.close()
    if left := marked_processes(mark):
        yield f"after close, {len(left)} of the session's processes still run"
    await other.close()
    if sandbox.num_sessions != count:
        yield f"with 2 sessions closed num_sessions is {sandbox.num_sessions}, not {count}"


async def check_cancelled_cell(sandbox: Sandbox) -> AsyncIterator[str]:
    """Cancelling a cell ends the session and all its processes, and no other."""
    count = sandbox.num_sessions
    mark = new_mark()
    async with await sandbox.open_session() as other, await sandbox.open_session() as session:
        await session.run_cell(marking(mark))
        cell = asyncio.ensure_future(session.run_cell("import os\nos.fork()\nwhile True: pass", timeout_s=600.0))
        await asyncio.sleep(0.3)
        cell.cancel()
        done, _ = await asyncio.wait([cell], timeout=30.0)
        if not done or not cell.cancelled():
            yield "a cancelled cell did not end by CancelledError within 30 s"
        if left := marked_processes(mark):
            yield f"{len(left)} processes of a cancelled cell still run"
        async for message in is_dead("after a cancelled cell", session):
            yield message
        for message in differs("another session", await other.run_cell("1 + 1"), ended="ok", value="2"):
            yield message
    if sandbox.num_sessions != count:
        yield f"after a cancelled cell num_sessions is {sandbox.num_sessions}, not {count}"


async def check_forged_replies(sandbox: Sandbox) -> AsyncIterator[str]:
    """A cell that writes what it likes into every descriptor harms its own session at most."""
    for junk in (b'{"op": "done", "ended": "ok", "value": "42"}\n', b"\xff" * 16, b"\0" * 4096):
        async with await sandbox.open_session() as session:
            code = (
                f"import os\nfor fd in range(3, 256):\n    try: os.write(fd, {junk!r} * 50)\n    except OSError: pass"
            )
            try:
                await session.run_cell(code, timeout_s=5.0)
                await session.run_cell("1 + 1", timeout_s=5.0)
            except (SandboxError, ProgramError):
                pass  # its session may be lost
        for message in differs("a run after forged replies", await sandbox.run("print(1)"), ended="ok", out=b"1\n"):
            yield message
