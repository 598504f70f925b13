"""Checks of a session's files, of snapshots and of forks; each yields what is wrong."""

import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Sequence

from ..errors import ForkRefusedError, ProgramError, SandboxError
from .base import Sandbox
from .checks_judge import differs
from .limits import Limits

_TRAPS = """
import os, socket
os.symlink("/etc/passwd", "link"); os.symlink("sub", "folder_link"); os.symlink("link", "link_to_link")
os.mkfifo("fifo")
os.mkdir("sub"); open("sub/inner", "w").write("inner")
open("plain", "w").write("plain")
open(b"odd\\xff\\n", "w").write("odd")
"""


async def _refused(what: str, call: Awaitable[object]) -> AsyncIterator[str]:
    try:
        came = await call
        yield f"{what} wants ProgramError, and came to {came!r:.100}"
    except ProgramError:
        pass
    except Exception as error:  # it is looked at
        yield f"{what} wants ProgramError, got {error!r:.200}"


_AGAINST_FORKS = {
    "a broken os.fork": "import os; os.fork = lambda: 1 / 0",
    "an end at the fork": "import os; os.register_at_fork(before=lambda: os._exit(0))",
    "an end of the forked": "import os; os.register_at_fork(after_in_child=lambda: os._exit(0))",
    "all processes in use": (
        "import threading, time\nfor _ in range(20):\n"
        "    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    except RuntimeError: break"
    ),
}


async def check_session_files(sandbox: Sandbox) -> AsyncIterator[str]:
    """Files are read, written and listed byte for byte, also those that were there at the start."""
    every = bytes(range(256)) * 100
    async with await sandbox.open_session(files={"start/a": every}) as session:
        if await session.read_file("start/a") != every:
            yield "a file given at the start reads otherwise"
        await session.write_file("new/deep/b", every)
        await session.write_file("new/deep/b", b"second")
        await session.write_file("/box/c", b"")
        cell = await session.run_cell("open('new/deep/b', 'rb').read(), open('c').read(), open('d', 'w').write('é')")
        for message in differs("files that were written", cell, value="(b'second', '', 1)"):
            yield message
        if (came := await session.read_file("d")) != "é".encode():
            yield f"a cell's file reads as {came!r:.100}"
        listed = [(info.path, info.kind, info.num_bytes) for info in await session.list_files("new")]
        if [(path.split("/")[-1], kind) for path, kind, _ in listed] != [("deep", "folder"), ("b", "file")]:
            yield f"a folder lists as {listed}"
        everything = await session.list_files()
        if [info.path for info in everything] != sorted(info.path for info in everything):
            yield "files are listed out of order"
        sizes = {info.path: info.num_bytes for info in everything if info.kind == "file"}
        if sizes != {"start/a": len(every), "new/deep/b": 6, "c": 0, "d": 2}:
            yield f"the sizes are listed as {sizes}"


async def check_session_traps(sandbox: Sandbox) -> AsyncIterator[str]:
    """Links, FIFOs, huge files and paths that lead out are refused, and odd names are told."""
    limits = Limits(disk_bytes=4 << 20, num_inodes=200)
    async with await sandbox.open_session(limits=limits) as session:
        made = await session.run_cell(_TRAPS)
        if made.ended != "ok" and "big" not in (made.error or ""):
            yield f"traps could not be set: {made.error!r:.300}"
        if made.ended == "ok":
            async for message in _refused("reading a file of 1 TiB", session.read_file("big")):
                yield message
        for path in ("link", "link_to_link", "folder_link/inner", "fifo", "sub", "missing", "../etc/passwd",
                     "/etc/passwd", "plain/x", "", "a\0b"):  # fmt: skip
            async for message in _refused(f"reading {path!r}", session.read_file(path)):
                yield message
        async for message in _refused("reading 5 bytes where 4 are allowed", session.read_file("plain", max_bytes=4)):
            yield message
        for path in ("link", "folder_link/new", "../x", "/etc/x", "plain/x", "sub", ""):
            async for message in _refused(f"writing {path!r}", session.write_file(path, b"x")):
                yield message
        async for message in _refused("writing more than the disk holds", session.write_file("full", bytes(8 << 20))):
            yield message
        for path in ("missing", "../..", "/etc", "folder_link", "plain"):
            async for message in _refused(f"listing {path!r}", session.list_files(path)):
                yield message
        async for message in _refused("listing more than allowed", session.list_files(max_entries=3)):
            yield message
        found = {info.path: info.kind for info in await session.list_files()}
        wanted = {"link": "link", "folder_link": "link", "fifo": "other", "sub": "folder", "sub/inner": "file"}
        odd = b"odd\xff\n".decode(errors="surrogateescape")
        for path, kind in {**wanted, odd: "file"}.items():
            if found.get(path) != kind:
                yield f"{path!r} is listed as {found.get(path)!r}, not {kind!r}"
        if any(path.startswith("folder_link/") for path in found):
            yield "the listing follows a link"
        for message in differs("a cell after traps", await session.run_cell("open('plain').read()"), value="'plain'"):
            yield message


async def check_snapshot(sandbox: Sandbox) -> AsyncIterator[str]:
    """A snapshot holds regular files and folders only, and a session starts from it."""
    async with await sandbox.open_session(files={"a/b": b"1"}) as session:
        await session.run_cell(
            "import os; os.symlink('/etc', 'l'); os.mkfifo('f'); os.mkdir('e'); open('c', 'w').write('2')"
        )
        taken = await session.snapshot()
        await session.run_cell("open('c', 'w').write('changed')")
    with tarfile.open(fileobj=io.BytesIO(taken)) as archive:
        members = {member.name.removeprefix("./"): member for member in archive if member.name not in (".", "./")}
    if set(members) != {"a", "a/b", "c", "e"}:
        yield f"a snapshot holds {sorted(members)}, not a, a/b, c and e"
    if odd := [name for name, member in members.items() if not (member.isreg() or member.isdir())]:
        yield f"a snapshot holds {odd}, which are no files or folders"
    async with await sandbox.open_session(snapshot=taken, files={"d": b"3"}) as session:
        code = "import os; open('a/b').read() + open('c').read() + open('d').read(), sorted(os.listdir())"
        wanted = "('123', ['a', 'c', 'd', 'e'])"
        for message in differs("a session from a snapshot", await session.run_cell(code), ended="ok", value=wanted):
            yield message
        for message in differs("writing there", await session.run_cell("open('c', 'a').write('x')"), value="1"):
            yield message


def _archive(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)
    return content.getvalue()


async def check_bad_snapshots(sandbox: Sandbox) -> AsyncIterator[str]:
    """An archive that is none, leads out, or holds anything but files and folders is refused; so is one too large."""
    count = sandbox.num_sessions
    bad: Sequence[tuple[str, bytes]] = (
        ("no archive", b"not an archive" * 100),
        ("a path that leads out", _archive("../x")),
        ("an absolute path", _archive("/etc/x")),
        ("a symbolic link", _archive("l", tarfile.SYMTYPE, "/etc")),
        ("a hard link", _archive("h", tarfile.LNKTYPE, "/etc/passwd")),
        ("a FIFO", _archive("f", tarfile.FIFOTYPE)),
        ("a device", _archive("d", tarfile.CHRTYPE)),
    )
    for what, archive in bad:
        async for message in _refused(f"a snapshot with {what}", sandbox.open_session(snapshot=archive)):
            yield message
    for what, files in (("a path out", {"../x": b""}), ("text", {"x": "text"}), ("an absolute path", {"/etc/x": b""})):
        opened = sandbox.open_session(files=files)  # type: ignore[arg-type]
        async for message in _refused(f"a session with {what} as its file", opened):
            yield message
    async with await sandbox.open_session(limits=Limits(disk_bytes=2 << 20)) as session:
        sparse = await session.run_cell("open('big', 'wb').truncate(1 << 40)")
        if sparse.ended == "ok":
            async for message in _refused("a snapshot of 1 TiB", session.snapshot()):
                yield message
        for code in ("", "  ", "x = '\ud800'"):
            async for message in _refused(f"cell {code!r}", session.run_cell(code)):
                yield message
        for message in differs("a cell after those", await session.run_cell("1 + 1"), value="2"):
            yield message
    if sandbox.num_sessions != count:
        yield f"refused sessions count: num_sessions is {sandbox.num_sessions}, not {count}"


async def check_fork(sandbox: Sandbox) -> AsyncIterator[str]:
    """A fork has the same state and files, and from then on its own; it lives without what it came from."""
    count = sandbox.num_sessions
    session = await sandbox.open_session(files={"a": b"0"})
    if not session.can_fork:
        try:
            await session.fork()
            yield "a session forked whose can_fork says that it cannot"
        except SandboxError:
            pass
        await session.close()
        return
    await session.run_cell("x = [1]; f = open('held', 'w+'); f.write('h'); f.flush()\nimport random; random.seed(3)")
    other = await session.fork()
    if sandbox.num_sessions != count + 2:
        yield f"a fork counts as {sandbox.num_sessions - count - 1} sessions"
    await session.run_cell("x.append(2); open('a', 'w').write('one'); open('only_here', 'w').close()")
    await other.run_cell("x.append(3); open('a', 'w').write('other')")
    see = "import os; x, open('a').read(), sorted(os.listdir())"
    for who, wanted in (
        (session, "([1, 2], 'one', ['a', 'held', 'only_here'])"),
        (other, "([1, 3], 'other', ['a', 'held'])"),
    ):
        for message in differs("a session after its fork", await who.run_cell(see), ended="ok", value=wanted):
            yield message
    third = await other.fork()
    await other.run_cell("x.append(4)")
    await session.close()
    await other.close()
    for message in differs(
        "a fork of a closed fork", await third.run_cell(see), value="([1, 3], 'other', ['a', 'held'])"
    ):
        yield message
    for message in differs("a program beside a fork", await third.run("print(open('a').read())"), out=b"other\n"):
        yield message
    late = await third.run_cell("while True: pass", timeout_s=0.4)
    for message in differs("a late cell of a fork", late, ended="timeout", is_alive=True):
        yield message
    fourth = await third.fork()
    for message in differs("the fourth", await fourth.run_cell("print(len(x)); x[1]"), value="3", out=b"2\n"):
        yield message
    await third.close()
    await fourth.close()
    if sandbox.num_sessions != count:
        yield f"with all forks closed num_sessions is {sandbox.num_sessions}, not {count}"


async def check_fork_of_much(sandbox: Sandbox) -> AsyncIterator[str]:
    """A session that holds 100 MB forks, shares nothing that is written, and several forks live at once."""
    async with await sandbox.open_session(limits=Limits(memory_bytes=1 << 30)) as session:
        if not session.can_fork:
            return
        await session.run_cell("big = bytearray(b'1') * 100_000_000")
        forks = [await session.fork() for _ in range(3)]
        for index, fork in enumerate(forks):
            code = f"big[0] = {index}; big[-1], len(big), big[0]"
            for message in differs("a fork of 100 MB", await fork.run_cell(code), value=f"(49, 100000000, {index})"):
                yield message
        for message in differs("what it came from", await session.run_cell("big[0], big[-1]"), value="(49, 49)"):
            yield message
        for fork in forks:
            await fork.close()


async def check_fork_refused(sandbox: Sandbox) -> AsyncIterator[str]:
    """What cells do against a fork is their own fault: it works all the same, or it is a ForkRefusedError."""
    limits = Limits(num_processes=8)
    for what, code in _AGAINST_FORKS.items():
        async with await sandbox.open_session(limits=limits) as session:
            if not session.can_fork:
                return
            await session.run_cell(f"x = 5\n{code}")
            try:
                async with await session.fork() as fork:
                    for message in differs(f"a fork after {what}", await fork.run_cell("x"), value="5"):
                        yield message
            except ForkRefusedError:
                pass
            except SandboxError as error:
                yield f"a fork after {what} wants to work or ForkRefusedError, got {error!r:.200}"
        for message in differs(f"a run after {what}", await sandbox.run("print(1)"), ended="ok", out=b"1\n"):
            yield message
