"""What is the local sandbox's own: tiers, the fork server, what programs find, and what is left when it dies."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from turngym.errors import ForkRefusedError, MissingPackageError, ProgramError, SandboxError, SandboxUnavailableError
from turngym.sandbox.limits import Limits
from turngym.sandbox.local import fork_server
from turngym.sandbox.local.backend import LocalSandbox
from turngym.sandbox.local.cgroups import Groups, start_time
from turngym.sandbox.local.fork_server import NoNamespacesError, Zygote

pytestmark = pytest.mark.slow

HELLO = "print('hello')"


@pytest.fixture
async def sandbox():
    async with LocalSandbox(num_workers=2) as sandbox:
        yield sandbox


def children() -> set[int]:
    """Return the pids of all descendants of this process."""
    found, pending = set(), [os.getpid()]
    while pending:
        pid = pending.pop()
        for thread in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                new = {int(word) for word in thread.read_text().split()}
            except OSError:
                continue
            pending += new
            found |= new
    return found


async def test_a_program_sees_nothing_of_its_supervisor(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET", "canary")
    result = await sandbox.run(
        "import os, sys\nprint(os.environ.get('SECRET'), os.getuid(), sorted(sys.modules) and "
        "[n for n in sys.modules if n.startswith('turngym')], os.path.exists('/work'), os.path.exists('/home'))\n"
        "exit(os.listdir('/root') != ['.pyenv'] if os.path.isdir('/root') else 0)"
    )
    assert result.out_text.split() == ["None", "1000", "[]", "False", "False"]


async def test_installed_packages_are_hidden_unless_they_are_asked_for():
    async with LocalSandbox(num_workers=1) as plain, LocalSandbox(num_workers=1, packages=["numpy"]) as with_numpy:
        code = "import numpy; print(numpy.arange(3).sum())"
        assert "No module named 'numpy'" in (await plain.run(code)).err_text
        assert (await with_numpy.run(code)).out == b"3\n"
        other = await with_numpy.run("import pytest")
        assert "No module named 'pytest'" in other.err_text
        beside = await with_numpy.run(argv=["python3", "-c", code])
        assert beside.out == b"3\n", beside


async def test_preloaded_modules_are_there_and_random_numbers_differ():
    async with LocalSandbox(num_workers=1, preload=["numpy"]) as sandbox:
        code = (
            "import sys; print('numpy' in sys.modules)\n"
            "import numpy, random; print(numpy.random.rand(), random.random())"
        )
        first, second = [(await sandbox.run(code)).out_text.split() for _ in range(2)]
        assert first[0] == second[0] == "True"
        assert first[1] != second[1]
        assert first[2] != second[2]


async def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(MissingPackageError, match="pip install no_such_package"):
        await LocalSandbox(packages=["no_such_package"]).start()


async def test_a_module_that_cannot_be_imported_is_no_reason_for_the_weak_tier(monkeypatch):
    monkeypatch.setattr("turngym.sandbox.local.plan.package_binds", lambda modules: [])
    with pytest.raises(SandboxUnavailableError, match="cannot import what programs are to have: ModuleNotFoundError"):
        await LocalSandbox(preload=["numpy"], allow_weak=True).start()


async def test_without_control_groups_memory_is_limited_by_looking(monkeypatch):
    monkeypatch.setattr(Groups, "find", classmethod(lambda cls: None))
    limits = Limits(memory_bytes=100 << 20, wall_s=15)  # less than the program sleeps
    code = textwrap.dedent(
        """
        import os, time
        for _ in range(4):
            if os.fork() == 0:
                held = bytearray(60 << 20)
                time.sleep(20)
                os._exit(0)
        time.sleep(20)
        """
    )
    async with LocalSandbox(num_workers=1) as sandbox:
        assert sandbox.tier == "local, no control groups"
        result = await sandbox.run(code, limits=limits)
        assert (result.ended, result.tier) == ("memory", sandbox.tier)
        assert (await sandbox.run(HELLO)).out == b"hello\n"


async def test_the_weak_tier_is_refused_unless_it_is_allowed(monkeypatch):
    start = Zygote.start

    async def start_without_namespaces(self):
        if not self._is_weak:
            raise NoNamespacesError("unshare(0x10000000): Operation not permitted")
        return await start(self)

    monkeypatch.setattr(Zygote, "start", start_without_namespaces)
    with pytest.raises(SandboxUnavailableError, match="Allow unprivileged"):
        await LocalSandbox().start()
    async with LocalSandbox(num_workers=1, allow_weak=True) as sandbox:
        assert sandbox.tier == "local, weak"
        result = await sandbox.run("import os; open('f', 'w').write('x'); print(os.listdir('.'), os.getuid())")
        assert (result.tier, result.ended) == ("local, weak", "ok"), result
        assert result.out_text.startswith("['f'] ")
        assert (await sandbox.run("import os; print(os.listdir('.'))")).out == b"[]\n"
        denied = await sandbox.run(f"open({str(Path(__file__))!r})")
        assert "Permission" in denied.err_text
        daemon = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(1000)\nprint('done')"
        before = children()
        assert (await sandbox.run(daemon)).out == b"done\n"
        assert children() <= before
        session = await sandbox.open_session()
        assert not session.can_fork
        assert (await session.run_cell("1 + 1")).value == "2"


async def test_a_jail_that_is_killed_is_a_failure_and_not_a_result(sandbox):
    running = asyncio.create_task(sandbox.run("import time; time.sleep(60)"))
    await asyncio.sleep(0.3)
    for jail in list(sandbox._all):
        os.kill(jail.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match="died under a program"):
        await running
    assert (await sandbox.run(HELLO)).out == b"hello\n"


async def test_a_fork_server_that_is_killed_is_replaced(sandbox):
    session = await sandbox.open_session()
    sandbox._zygote._process.kill()
    await asyncio.sleep(0.3)
    with pytest.raises(SandboxError):
        await session.run_cell("1")
    assert [(await sandbox.run(HELLO)).out for _ in range(3)] == [b"hello\n"] * 3
    await session.close()
    assert sandbox.num_sessions == 0


async def test_closing_leaves_nothing():
    before = children()
    sandbox = LocalSandbox(num_workers=2)
    await sandbox.start()
    groups = sandbox._groups
    session = await sandbox.open_session()
    await session.run_cell("import subprocess; p = subprocess.Popen(['sleep', '1000'])")
    assert len(children() - before) >= 4
    of_jails = [folder for jail in sandbox._all if jail.group for folder in jail.group._folders]
    assert all(folder.exists() for folder in of_jails)
    assert bool(of_jails) == (groups is not None)
    await sandbox.close()
    assert children() <= before
    assert not any(folder.exists() for folder in of_jails)


DIES = """
import asyncio, os, signal
from turngym.sandbox.local.backend import LocalSandbox

async def main():
    sandbox = LocalSandbox(num_workers=1)
    session = await sandbox.open_session()
    await session.run_cell("import os; os.system('sleep 1000 &')")
    print(sandbox._zygote._process.pid, *[jail.pid for jail in sandbox._all], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_a_killed_supervisor_leaves_is_swept():
    done = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, timeout=60)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) >= 2, done.stderr
    for _ in range(50):
        if not any(start_time(pid) for pid in pids):
            break
        await asyncio.sleep(0.1)
    assert not any(start_time(pid) for pid in pids)
    leftover = Path(f"/tmp/{fork_server.ROOT_PREFIX}999999999-x")
    leftover.mkdir(exist_ok=True)
    async with LocalSandbox(num_workers=1) as sandbox:
        assert not leftover.exists()
        if sandbox._groups is not None:
            for parent in sandbox._groups._parents:
                alive = [path for path in parent.glob("turngym-*-*-*") if start_time(int(path.name.split("-")[1]))]
                assert list(parent.glob("turngym-*-*-*")) == alive


async def test_a_temporary_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(SandboxUnavailableError, match=r"^the local sandbox needs .*missing' \(TMPDIR\): No such file"):
        await LocalSandbox().start()


async def test_a_start_that_fails_or_is_cancelled_leaves_nothing(monkeypatch):
    async def refuse(*_, **__):
        raise SandboxError("no jail today")

    before = children()
    with monkeypatch.context() as patch:
        patch.setattr(Zygote, "fork", refuse)
        with pytest.raises(SandboxError, match="no jail today"):
            await LocalSandbox(num_workers=1).start()
    starting = asyncio.create_task(LocalSandbox(num_workers=1).start())
    await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert children() <= before


async def test_sessions_are_limited_in_number():
    async with LocalSandbox(num_workers=1, max_sessions=2) as sandbox:
        sessions = [await sandbox.open_session() for _ in range(2)]
        with pytest.raises(SandboxError, match="2 sessions are open already"):
            await sandbox.open_session()
        await sessions[0].close()
        await (await sandbox.open_session()).close()


async def test_forks_of_forks_go_on_when_their_parents_are_closed(sandbox):
    session = await sandbox.open_session()
    await session.run_cell("n = 0; open('f', 'w').write('0')")
    line = [session]
    for depth in range(1, 6):
        line.append(await line[-1].fork())
        await line[-1].run_cell(f"n += {depth}; open('f', 'a').write('{depth}')")
    for earlier in line[:-1]:
        await earlier.close()
    result = await line[-1].run_cell("import os; n, open('f').read(), os.getuid()")
    assert result.value == "(15, '012345', 1000)"
    beside = await line[-1].run("print(open('f').read())")
    assert beside.out == b"012345\n"
    await line[-1].close()
    assert sandbox.num_sessions == 0


async def test_living_forks_count_against_the_sessions_processes(sandbox):
    session = await sandbox.open_session(limits=Limits(num_processes=2))
    await session.run_cell("x = 6")
    fork = await session.fork()
    with pytest.raises(ForkRefusedError, match="did not fork"):
        await session.fork()
    assert (await session.run_cell("x * 7")).value == "42"
    await fork.close()
    assert (await (await session.fork()).run_cell("x")).value == "6"


async def test_an_interpreter_that_does_not_fork_refuses(sandbox, monkeypatch):
    monkeypatch.setattr("turngym.sandbox.local.starting.FORK_S", 0.5)
    session = await sandbox.open_session()
    await session.run_cell("import os\nos.fork = lambda: 1 / 0")
    with pytest.raises(ForkRefusedError, match="did not fork"):
        await session.fork()
    assert (await sandbox.run(HELLO)).out == b"hello\n"
    await session.close()


async def test_no_process_leaves_for_namespaces_of_its_own_unless_it_is_expected(sandbox):
    session = await sandbox.open_session()
    code = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x10020000), ctypes.get_errno()"
    assert (await session.run_cell(code)).value == "(-1, 1)"
    fork = await session.fork()
    assert (await fork.run_cell(code)).value == "(-1, 1)"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "", "a/../../b", "a\0b"])
async def test_paths_out_of_the_work_folder_are_refused(sandbox, path):
    with pytest.raises(ProgramError, match="below the sandbox's /box"):
        await sandbox.run(HELLO, files={path: b""})


async def test_a_path_that_no_file_can_have_is_refused(sandbox):
    with pytest.raises(ProgramError, match="written as UTF-8"):
        await sandbox.run(HELLO, files={"a\ud800": b""})
    async with await sandbox.open_session() as session, await session.fork() as fork:
        for path in ("\ud800", "\u00e4" * 3000):
            with pytest.raises(ProgramError):
                await fork.read_file(path)
        await session.run_cell(r"open(b'\xff', 'w').write('x')")
        (found,) = await session.list_files()
        assert await session.read_file(found.path) == b"x"


REPORTS = """
import asyncio, os
from turngym.sandbox.local.backend import LocalSandbox

async def main():
    async with LocalSandbox(num_workers=1) as sandbox:
        result = await sandbox.run("import os; print(os.getuid(), len(os.listdir('/proc')))")
        session = await sandbox.open_session()
        value = (await session.run_cell("open('f', 'w').write('x'); 6 * 7")).value
        print(os.getuid(), sandbox.tier, result.ended, result.out_text.split(), value, session.can_fork, sep="|")

asyncio.run(main())
"""


def report_of(command: list[str], python: str) -> list[str]:
    path = f"{Path(__file__).parents[3] / 'src'}:{Path(pytest.__file__).parents[1]}"
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    done = subprocess.run(
        [*command, python, "-c", REPORTS], capture_output=True, text=True, timeout=60, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_needs_no_root():
    probe = subprocess.run(["/usr/bin/python3", "-c", "import sys; print(sys.version_info >= (3, 11))"], stdout=-1)
    if probe.stdout.strip() != b"True":
        pytest.skip("an ordinary user finds no /usr/bin/python3 of version 3.11 or newer here")
    become = ["setpriv", "--reuid=61234", "--regid=61234", "--clear-groups"]
    uid, tier, ended, seen, value, can_fork = report_of(become, "/usr/bin/python3")
    assert (uid, tier, ended, value, can_fork) == ("61234", "local, no control groups", "ok", "42", "True")
    assert seen.startswith("['1000', ")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can hide a part of /proc")
def test_where_proc_is_hidden_in_part_programs_find_it_empty():
    """As in a container, whose /proc has parts covered: the kernel then refuses a new one."""
    cover = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc/sys && exec "$@"', "sh"]
    uid, tier, ended, seen, value, can_fork = report_of(cover, sys.executable)
    assert (uid, ended, value, can_fork) == ("0", "ok", "42", "False")
    assert tier == "local, no /proc"
    assert seen == "['1000', '0']"
