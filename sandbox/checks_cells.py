"""Checks of the cells of Python sessions; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator

from ..errors import SandboxDeadError, SandboxError
from .base import Sandbox, Session
from .checks_judge import differs
from .limits import Limits

_STUBBORN = """
import time
while True:
    try: time.sleep(100)
    except BaseException: pass
"""


async def check_cells(sandbox: Sandbox) -> AsyncIterator[str]:
    """What a cell defines stays; a cell's last expression, prints and errors are told."""
    cases: tuple[tuple[str, dict[str, object]], ...] = (
        ("x = 20", {"ended": "ok", "value": None, "error": None, "out": b"", "err": b"", "exit_code": None}),
        ("x + 1", {"ended": "ok", "value": "21"}),
        ("'text'", {"ended": "ok", "value": "'text'"}),
        ("None", {"ended": "ok", "value": None}),
        ("def f(n):\n    return n * x\nf(2)", {"ended": "ok", "value": "40"}),
        ("import sys\nprint('o'); print('e', file=sys.stderr); x", {"value": "20", "out": b"o\n", "err": b"e\n"}),
        ("import os; os.write(1, b'\\xff\\0'); None", {"ended": "ok", "out": b"\xff\0"}),
        ("os.system('echo child') and None", {"ended": "ok", "out": b"child\n"}),
        ("for i in range(3): print(i)", {"ended": "ok", "value": None, "out": b"0\n1\n2\n"}),
        ("class E:\n    def __repr__(self): return 'shown'\nE()", {"ended": "ok", "value": "shown"}),
        ("input()", {"ended": "error"}),
        ("import __main__; __main__.x", {"ended": "ok", "value": "20"}),
    )
    async with await sandbox.open_session() as session:
        for code, wanted in cases:
            result = await session.run_cell(code)
            for message in differs(f"cell {code!r}", result, is_alive=True, tier=sandbox.tier, **wanted):
                yield message
            if not session.is_alive:
                yield f"is_alive of the session is False after cell {code!r}"


async def check_cell_errors(sandbox: Sandbox) -> AsyncIterator[str]:
    """A cell that fails says why, and the session goes on with all that it had."""
    cases = (
        ("kept = 1\n1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit"),
        ("raise KeyError('ключ')", "ключ"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("class V:\n    def __repr__(self): raise ValueError('no repr')\nV()", "no repr"),
        ("def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
        ("raise BaseException('all')", "all"),
    )
    async with await sandbox.open_session() as session:
        await session.run_cell("kept = 0")
        for code, said in cases:
            result = await session.run_cell(code)
            for message in differs(f"cell {code!r}", result, ended="error", is_alive=True, value=None):
                yield message
            if said not in (result.error or ""):
                yield f"cell {code!r} wants an error that says {said!r}, got {result.error!r:.300}"
        for message in differs("a cell after errors", await session.run_cell("kept"), value="1"):
            yield message


async def check_cell_timeout(sandbox: Sandbox) -> AsyncIterator[str]:
    """A cell that is late is interrupted with its state kept; one that does not come back ends the session."""
    async with await sandbox.open_session() as session:
        await session.run_cell("x, y = 5, 0")
        for code in ("y = 1\nwhile True: pass", "import time; y = 1; time.sleep(100)"):
            late = await session.run_cell(
                f"print('p', flush=True); {code}" if "\n" not in code else code, timeout_s=0.5
            )
            for message in differs(f"late cell {code!r}", late, ended="timeout", is_alive=True):
                yield message
            if not 0.45 <= late.wall_s < 30.0:
                yield f"a cell with 0.5 s to run took {late.wall_s:.2f} s"
            for message in differs("a cell after a late one", await session.run_cell("x, y"), value="(5, 1)"):
                yield message
        stubborn = await session.run_cell(_STUBBORN, timeout_s=0.4)
        for message in differs("a cell that catches everything", stubborn, ended="timeout", is_alive=False):
            yield message
        async for message in is_dead("after a cell that catches everything", session):
            yield message


async def check_interrupt(sandbox: Sandbox) -> AsyncIterator[str]:
    """`interrupt` ends the running cell alone; without one it does nothing."""
    async with await sandbox.open_session() as session:
        await session.interrupt()
        await session.run_cell("x = 5")
        for code in ("while True: pass", "import time; time.sleep(100)"):
            cell = asyncio.ensure_future(session.run_cell(code, timeout_s=20.0))
            await asyncio.sleep(0.4)
            try:
                await session.run_cell("1")
                yield "two cells ran at once; the second wants SandboxError"
            except SandboxDeadError as error:
                yield f"a second cell beside a running one wants SandboxError, got {error!r}"
            except SandboxError:
                pass
            await session.interrupt()
            for message in differs(f"interrupted cell {code!r}", await cell, ended="interrupted", is_alive=True):
                yield message
            await session.interrupt()
            for message in differs("a cell after an interrupt", await session.run_cell("x"), ended="ok", value="5"):
                yield message


async def check_cell_limits(sandbox: Sandbox) -> AsyncIterator[str]:
    """Output, memory and processes of cells are bounded; a cell may lose its session by them, and says so."""
    limits = Limits(memory_bytes=200 << 20, flood_bytes=2 << 20, output_bytes=1000, num_processes=16, wall_s=20.0)
    async with await sandbox.open_session(limits=limits) as session:
        much = await session.run_cell("print('x' * 100_000)")
        wanted = {"ended": "ok", "out": b"x" * 1000, "is_out_truncated": True, "is_err_truncated": False}
        for message in differs("a cell that prints 100 KB", much, **wanted):
            yield message
        for message in differs("the next cell's output", await session.run_cell("print('y')"), out=b"y\n"):
            yield message
        long = await session.run_cell("'z' * 10**7")
        if long.ended != "ok" or len(long.value or "") > 1 << 20:
            yield f"a value of 10 MB wants to be cut; it ended as {long.ended!r} with {len(long.value or '')} letters"
    for what, code, endings in (
        ("memory without end", "x = []\nwhile True: x.append(bytearray(b'1') * (1 << 20))", ("error", "memory")),
        ("output without end", "while True: print('x' * 10000)", ("output",)),
    ):
        async with await sandbox.open_session(limits=limits) as session:
            result = await session.run_cell(code)
            if result.ended not in endings:
                yield f"a cell of {what} wants {' or '.join(endings)}, got {result.ended!r}: {result.error!r:.200}"
            if result.is_alive:
                for message in differs(f"a cell after {what}", await session.run_cell("1 + 1"), value="2"):
                    yield message


async def check_interpreter_end(sandbox: Sandbox) -> AsyncIterator[str]:
    """A cell that ends its interpreter ends as exited, and then the session is dead, as after `close`."""
    for code in ("import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)", "import os; os.abort()"):
        session = await sandbox.open_session()
        result = await session.run_cell(f"print('last', flush=True); {code}")
        wanted = {"ended": "exited", "is_alive": False, "out": b"last\n", "value": None}
        for message in differs(f"cell {code!r}", result, **wanted):
            yield message
        async for message in is_dead(f"after {code!r}", session):
            yield message
        await session.close()
    session = await sandbox.open_session()
    await session.close()
    await session.close()
    async for message in is_dead("after close", session):
        yield message


async def is_dead(when: str, session: Session) -> AsyncIterator[str]:
    """Yield what a session still does that is closed or gone."""
    calls = (
        ("run_cell", session.run_cell("1")),
        ("run", session.run("print(1)")),
        ("read_file", session.read_file("x")),
        ("write_file", session.write_file("x", b"")),
        ("list_files", session.list_files()),
        ("snapshot", session.snapshot()),
    )
    if session.is_alive:
        yield f"is_alive is True {when}"
    for name, call in calls:
        try:
            await call
            yield f"{name} works {when}; wanted SandboxDeadError"
        except SandboxDeadError:
            pass
        except Exception as error:  # it is looked at
            yield f"{name} {when} wants SandboxDeadError, got {error!r:.200}"
