"""Checks of each limit: it ends what goes beyond it, and leaves alone what does not; each yields what is wrong."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from ..errors import ConfigError, ProgramError, TurnGymError, UnknownNameError
from .base import Sandbox
from .checks_host import marking, new_mark, still_running
from .checks_judge import differs, wrong_fields
from .job import MAX_CODE_BYTES
from .limits import Limits
from .results import ExecResult

_COUNT_FORKS = """
import os, time
count = 0
try:
    while count < 100:
        if os.fork() == 0:
            time.sleep(100)
        count += 1
except OSError: pass
print(count, flush=True)
os._exit(0)
"""
_COUNT_FILES = """
import os
count = 0
try:
    while count < 1000:
        os.dup(1)
        count += 1
except OSError: pass
print(count)
"""
_HUNGRY_CHILDREN = """
import os
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(b"1") * (60 << 20)
        os._exit(0)
try:
    while True: os.wait()
except ChildProcessError: pass
"""
_FILL = """
import os
size = 0
try:
    with open("f", "wb", 0) as file:
        while size < 1 << 28: size += file.write(bytes(1 << 16))
except OSError: pass
print(size)
"""
_COUNT_INODES = """
count = 0
try:
    while count < 5000:
        open(f"f{count}", "w").close()
        count += 1
except OSError: pass
print(count)
"""


async def check_wall_time(sandbox: Sandbox) -> AsyncIterator[str]:
    """At the wall limit a program is killed, and what it wrote is kept."""
    for what, code in (
        ("a sleeping program", "print('x', flush=True); import time; time.sleep(100)"),
        ("a computing program", "print('x', flush=True)\nwhile True: pass"),
        ("a stopped program", "print('x', flush=True); import os; os.kill(os.getpid(), 19)"),
    ):
        limits = Limits(wall_s=0.6)
        result = await sandbox.run(code, limits=limits)
        wanted = {"ended": "timeout", "exit_code": None, "out": b"x\n"}
        for message in [*differs(what, result, **wanted), *wrong_fields(result, limits, sandbox.tier)]:
            yield message


async def check_cpu_time(sandbox: Sandbox) -> AsyncIterator[str]:
    """At the CPU limit a program is killed; waiting does not count."""
    spent = await sandbox.run("while True: pass", limits=Limits(wall_s=20.0, cpu_s=1.0))
    for message in differs("a second of CPU time", spent, ended="timeout", exit_code=None):
        yield message
    if spent.wall_s > 15:
        yield f"a limit of 1 CPU second ended a loop after {spent.wall_s:.1f} s"
    waited = await sandbox.run("import time; time.sleep(1.3); print('x')", limits=Limits(wall_s=10.0, cpu_s=1.0))
    for message in differs("1.3 s of sleep under 1 s of CPU time", waited, ended="ok", out=b"x\n"):
        yield message


async def check_memory(sandbox: Sandbox) -> AsyncIterator[str]:
    """Memory beyond the limit is not had; memory below it is."""
    limits = Limits(memory_bytes=200 << 20)
    fits = await sandbox.run("x = bytearray(b'1') * (100 << 20); print(len(x) >> 20)", limits=limits)
    for message in differs("100 of 200 MiB", fits, ended="ok", out=b"100\n"):
        yield message
    beyond = await sandbox.run("x = []\nwhile True: x.append(bytearray(b'1') * (1 << 20))", limits=limits)
    if beyond.ended != "memory" and not (beyond.ended == "nonzero" and b"MemoryError" in beyond.err):
        yield f"memory without end ended as {beyond.ended!r}, not by MemoryError or as 'memory'; {beyond.err[-200:]!r}"
    # What the kernel kills among a program's children is no matter of the next program's.
    await sandbox.run(_HUNGRY_CHILDREN, limits=limits)
    for result in [await sandbox.run("raise SystemExit(1)", limits=limits) for _ in range(4)]:
        for message in differs("a program after hungry children", result, ended="nonzero", exit_code=1):
            yield message


async def check_counts(sandbox: Sandbox) -> AsyncIterator[str]:
    """Processes, open files, disk and inodes are bounded, each by its own limit."""
    disk, slack = 8 << 20, 1 << 20
    for what, code, limits, most, least in (
        ("processes", _COUNT_FORKS, Limits(num_processes=10), 10, 4),
        ("open files", _COUNT_FILES, Limits(num_open_files=40), 40, 20),
        ("bytes on disk", _FILL, Limits(disk_bytes=disk), disk, disk - slack),
        ("inodes", _COUNT_INODES, Limits(num_inodes=100), 100, 50),
    ):
        result = await sandbox.run(code, limits=limits)
        if not result.is_ok or not result.out.strip().isdigit():
            for message in differs(f"counting {what}", result, ended="ok"):
                yield message
        elif not least <= int(result.out) <= most:
            yield f"with a limit of {most} {what}, {int(result.out)} were had"


async def check_flood(sandbox: Sandbox) -> AsyncIterator[str]:
    """A program that writes without end is ended before its time is up; one that writes much is not."""
    limits = Limits(flood_bytes=2 << 20, wall_s=20.0)
    for stream in ("stdout", "stderr"):
        endless = await sandbox.run(f"import sys\nwhile True: sys.{stream}.write('x' * 10000)", limits=limits)
        for message in [
            *differs(f"endless {stream}", endless, ended="output"),
            *wrong_fields(endless, limits, sandbox.tier),
        ]:
            yield message
    much = await sandbox.run("import sys\nfor _ in range(100): sys.stdout.write('x' * 10000)", limits=limits)
    for message in differs("1 MB of output", much, ended="ok", is_out_truncated=True):
        yield message


async def check_cancellation(sandbox: Sandbox) -> AsyncIterator[str]:
    """A cancelled run ends at once with all its processes, and the next ones are answered."""
    mark = new_mark()
    code = (
        f"{marking(mark)}\nimport os\nos.fork(); os.setsid() if os.getpid() != os.getpgrp() else None\nwhile True: pass"
    )
    limits = Limits(wall_s=600.0)
    tasks = [asyncio.ensure_future(sandbox.run(code, limits=limits)) for _ in range(6)]  # some may still wait in line
    await asyncio.sleep(0.4)
    for task in tasks:
        task.cancel()
    done, late = await asyncio.wait(tasks, timeout=30.0)
    if late:
        yield f"{len(late)} of {len(tasks)} cancelled runs did not end within 30 s"
    if wrong := [task for task in done if not task.cancelled()]:
        yield f"{len(wrong)} cancelled runs ended otherwise than by CancelledError: {wrong[0].exception()!r}"
    if left := await still_running(mark):
        yield f"{len(left)} processes of cancelled runs still run"
    for result in await asyncio.gather(*(sandbox.run("print(1)") for _ in range(4))):
        for message in differs("a run after cancelled ones", result, ended="ok", out=b"1\n"):
            yield message


async def check_bad_input(sandbox: Sandbox) -> AsyncIterator[str]:
    """What cannot be run is refused with the right error, and says nothing about the sandbox."""
    run: Callable[..., Awaitable[ExecResult]] = sandbox.run  # what it is given is wrong on purpose
    cases: list[tuple[str, type[TurnGymError], dict[str, object]]] = [
        ("bytes as code", ProgramError, {"code": b"print(1)"}),
        ("no code", ProgramError, {}),
        ("empty code", ProgramError, {"code": ""}),
        ("white space as code", ProgramError, {"code": " \n\t"}),
        ("too long code", ProgramError, {"code": "#" * (MAX_CODE_BYTES + 1)}),
        ("half a letter in code", ProgramError, {"code": "x = '\ud800'"}),
        ("code and argv", ProgramError, {"code": "1", "argv": ["true"]}),
        ("empty argv", ProgramError, {"argv": []}),
        ("NUL in argv", ProgramError, {"argv": ["a\0b"]}),
        ("text as stdin", ProgramError, {"code": "1", "stdin": "x"}),
        ("text as a file", ProgramError, {"code": "1", "files": {"a": "x"}}),
        ("unknown language", UnknownNameError, {"code": "1", "language": "cobol-60"}),
    ]
    for path in ("../x", "/etc/x", "", "a/../../x", "a\0b", "/box/../x"):
        cases.append((f"path {path!r}", ProgramError, {"code": "1", "files": {path: b""}}))
    for what, kind, arguments in cases:
        outcome = await _outcome(run(**arguments))
        if not isinstance(outcome, kind):
            yield f"{what} wants {kind.__name__}, and came to {outcome!r:.200}"
    for name in ("wall_s", "memory_bytes", "num_processes", "output_bytes"):
        try:
            Limits(**{name: 0})  # type: ignore[arg-type]
            yield f"a {name} of 0 is taken"
        except ConfigError:
            pass
    for message in differs("a run after bad ones", await run("print(1)"), ended="ok", out=b"1\n"):
        yield message


async def _outcome(call: Awaitable[ExecResult]) -> ExecResult | Exception:
    try:
        return await call
    except Exception as error:  # whichever it is, it is what is looked at
        return error
