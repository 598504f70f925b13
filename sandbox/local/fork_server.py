"""The supervisor's end of the zygote: it is started, asked for jails, and ended."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ...errors import SandboxDeadError, SandboxError, SandboxUnavailableError
from . import plan
from .cgroups import Groups
from .handle import Channel, JailHandle, reply_of
from .root import SITE

ROOT_PREFIX: Final = "turngym-jail-"
_USER: Final = 61_000
"""What root becomes in the sandbox; no account has it by custom."""
_START_S: Final = 60.0
_FORK_S: Final = 20.0

_PROGRAM: Final = """
import sys, types
for name, folder in {packages!r}:
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
from turngym.sandbox.local.zygote import main
main({fd}, {settings!r})
"""


class NoNamespacesError(SandboxUnavailableError):
    """The kernel refuses the namespaces that a jail is made of; the weak tier does without."""


class Zygote:
    """One fork server.

    Args:
        preload: Modules that every program finds imported.
        packages: Modules that programs may import besides the standard library.
        groups: Where control groups can be made; None without.
        is_weak: Whether it does without namespaces.
    """

    def __init__(
        self, preload: Sequence[str], packages: Sequence[str], groups: Groups | None, *, is_weak: bool
    ) -> None:
        self._preload, self._packages = tuple(preload), tuple(packages)
        self._groups, self._is_weak = groups, is_weak
        self._channel: Channel | None = None

    async def start(self) -> int:
        """Start it; return the version of Landlock.

        Raises:
            SandboxUnavailableError: It cannot work here, with the kernel's reason.
        """
        binds = plan.package_binds((*self._preload, *self._packages))
        self._folder = _make_folder(0o755)
        settings = {
            "root": {"folder": self._folder, "binds": plan.binds() + binds, "hidden": plan.hidden()},
            "user": _USER,
            "preload": list(self._preload),
            "is_weak": self._is_weak,
            "site": SITE if binds else None,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._spawn(theirs.fileno(), settings, bool(binds))
        self._channel = Channel(ours, "the fork server of the local sandbox")
        try:
            async with asyncio.timeout(_START_S):
                ready = await self._channel.expect()
        except (SandboxDeadError, TimeoutError) as error:
            await self.close()
            raise SandboxError(f"the fork server of the local sandbox did not start: {error}") from error
        except asyncio.CancelledError:
            await self.close()
            raise
        if ready.body["op"] != "ready":
            await self.close()
            why = str(ready.body["why"])
            if ready.body["stage"] == "namespaces":
                raise NoNamespacesError(why)
            raise SandboxUnavailableError(f"the local sandbox cannot import what programs are to have: {why}")
        os.rmdir(self._folder)  # mounted over and left by then
        return int(ready.body["landlock"])

    @property
    def is_alive(self) -> bool:
        """Whether it was there when it was last heard of."""
        return self._channel is not None and self._channel.is_open

    async def again(self) -> "Zygote":
        """Return another like it, started."""
        zygote = Zygote(self._preload, self._packages, self._groups, is_weak=self._is_weak)
        await zygote.start()
        return zygote

    def _spawn(self, fd: int, settings: dict[str, Any], has_packages: bool) -> "subprocess.Popen[bytes]":
        here = Path(__file__).resolve().parent  # .../sandbox/local
        packages = [
            ("turngym", str(here.parent.parent)),
            ("turngym.sandbox", str(here.parent)),
            ("turngym.sandbox.local", str(here)),
        ]
        program = _PROGRAM.format(packages=packages, fd=fd, settings=settings)
        environment = {
            "PATH": plan.search_path(),
            "HOME": "/box",
            "TMPDIR": "/tmp",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "MALLOC_ARENA_MAX": "2",  # each arena takes address space, which is limited
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if has_packages:
            environment["PYTHONPATH"] = SITE
        return subprocess.Popen(
            [plan.interpreter(), "-I", "-S", "-B", "-X", "utf8", "-c", program],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            cwd="/",
        )

    async def fork(self, *, allow_network: bool) -> JailHandle:
        """Return a new jail, in its control group.

        Raises:
            SandboxError: The fork server is gone, or the kernel refused.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folder = self._weak_folder() if self._is_weak else None
        body = {
            "op": "jail",
            "allow_network": allow_network,
            "memory_is_counted": self._groups is not None,
            "folder": folder,
        }
        try:
            assert self._channel is not None, "started before"
            with theirs:
                reply = self._channel.ask(body, fds=[theirs.fileno()])
            async with asyncio.timeout(_FORK_S):
                forked = reply_of(await reply, "the fork server")
        except BaseException:
            ours.close()
            raise
        pid = int(forked.body["pid"])
        handle = JailHandle(ours, pid, forked.fds[0], None, folder)
        try:
            if self._groups is not None:
                handle.group = self._groups.make()
                handle.group.add(pid)
            async with asyncio.timeout(_FORK_S):
                up = reply_of(await handle.channel.expect(), "a new jail")
            handle.has_proc = bool(up.body["has_proc"])
        except BaseException as error:
            await handle.destroy()
            if isinstance(error, OSError) and not isinstance(error, TimeoutError):
                raise SandboxError(f"a new jail cannot have a control group: {error}") from error
            raise
        return handle

    def _weak_folder(self) -> str:
        folder = _make_folder(0o700)
        if os.getuid() == 0:
            os.chown(folder, _USER, _USER)
        return folder

    async def close(self) -> None:
        """End it; its jails end with it."""
        if self._channel is not None:
            self._channel.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._process.wait, 5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await loop.run_in_executor(None, self._process.wait, 5.0)
        if os.path.isdir(self._folder):
            os.rmdir(self._folder)


def _make_folder(mode: int) -> str:
    try:
        folder = tempfile.mkdtemp(prefix=f"{ROOT_PREFIX}{os.getpid()}-")
        os.chmod(folder, mode)
    except OSError as error:
        raise SandboxUnavailableError(
            f"the local sandbox needs an empty folder in {tempfile.gettempdir()!r} (TMPDIR): {error.strerror}"
        ) from error
    return folder


def sweep_folders() -> int:
    """Remove folders of supervisors that no longer live; return how many."""
    swept = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{ROOT_PREFIX}*-*"):
        pid = folder.name.removeprefix(ROOT_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(PermissionError):  # another user's
                shutil.rmtree(folder)
                swept += 1
    return swept
