"""The default sandbox: jails from a fork server, used again for program after program, without a daemon."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from ...errors import ProgramError, SandboxError, SandboxUnavailableError
from ..base import Sandbox
from ..job import Job, check_files
from ..languages import LANGUAGES
from ..limits import Limits
from ..results import ExecResult
from ..tar_check import check_tar
from .cgroups import Groups
from .fork_server import NoNamespacesError, Zygote, sweep_folders
from .handle import JailHandle
from .plan import search_path
from .program import run_program
from .session import LocalSession
from .starting import start_interpreter

_USES: Final = 2_000
"""A jail is replaced after so many programs, as a precaution."""

TIERS: Final = {
    "local": "namespaces, seccomp, Landlock, control groups",
    "local, no Landlock": "namespaces, seccomp and control groups; this kernel has no Landlock",
    "local, no control groups": "as full, but memory and processes of a program are limited one by one and by looking",
    "local, no /proc": "as full, but programs find /proc empty, and sessions cannot be forked",
    "local, weak": "seccomp, Landlock and limits of each process only: programs see the processes of the machine, "
    "and share its disk",
}
"""What this backend's tiers mean; several shortcomings are named one after the other."""


class LocalSandbox(Sandbox):
    """Namespaces, seccomp, Landlock and control groups around forks of one warm interpreter.

    Args:
        num_workers: One-shot programs at a time; by default as many as there are cores. Sessions come on top.
        preload: Modules that programs find imported (numpy, sympy), with the packages that they need.
        packages: Modules that programs may import besides the standard library and those.
        max_sessions: Sessions at a time; more are refused.
        allow_weak: Also work where namespaces are not to be had.
    """

    name = "local"
    tiers = TIERS

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        preload: Sequence[str] = (),
        packages: Sequence[str] = (),
        max_sessions: int = 1_000,
        allow_weak: bool = False,
    ) -> None:
        self._num_workers = num_workers or os.cpu_count() or 1
        self._preload, self._packages = tuple(preload), tuple(packages)
        self._max_sessions, self._allow_weak = max_sessions, allow_weak
        self._workers = asyncio.Semaphore(self._num_workers)
        self._starting, self._replacing = asyncio.Lock(), asyncio.Lock()
        self._zygote: Zygote | None = None
        self._groups: Groups | None = None
        self._idle: dict[bool, list[JailHandle]] = defaultdict(list)
        self._all: set[JailHandle] = set()
        self._sessions: set[LocalSession] = set()
        self._tier = ""
        self._languages: frozenset[str] = frozenset()
        self._has_proc = True
        self._is_closed = False
        self._births: set[asyncio.Task[JailHandle]] = set()

    @property
    def tier(self) -> str:
        """One of `TIERS`, or several shortcomings joined."""
        return self._tier

    @property
    def languages(self) -> frozenset[str]:
        """Those whose programs are found in the jail's PATH."""
        return self._languages

    @property
    def num_sessions(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    async def start(self) -> None:
        """Sweep what dead supervisors left, start the fork server and a first jail, and find the tier."""
        if self._tier and not self._is_closed:
            return
        async with self._starting:
            self._check_open()
            if self._tier:
                return
            sweep_folders()
            self._groups = Groups.find()
            if self._groups is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._groups.sweep)
            is_weak, landlock = await self._start_zygote()
            try:
                first = await self._new_jail(allow_network=False)
            except BaseException:  # or the next start would leave this fork server behind
                await self._end_all()
                raise
            self._has_proc = first.has_proc
            self._idle[False].append(first)
            self._languages = _found_languages()
            self._tier = self._name_tier(is_weak, landlock)

    async def _start_zygote(self) -> tuple[bool, int]:
        zygote = Zygote(self._preload, self._packages, self._groups, is_weak=False)
        try:
            landlock = await zygote.start()
        except NoNamespacesError as error:
            if not self._allow_weak:
                raise SandboxUnavailableError(
                    f"the local sandbox cannot make namespaces here ({error}). Allow unprivileged user namespaces "
                    "(sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a container: "
                    "--security-opt seccomp=unconfined), use the docker backend, or allow the weak tier "
                    "(allow_weak=True) if the programs can be trusted that far"
                ) from error
            zygote = Zygote(self._preload, self._packages, self._groups, is_weak=True)
            landlock = await zygote.start()
            self._zygote = zygote
            return True, landlock
        self._zygote = zygote
        return False, landlock

    def _name_tier(self, is_weak: bool, landlock: int) -> str:
        if is_weak:
            return "local, weak" if landlock else "local, weak, no Landlock"
        missing = [
            name
            for name, is_there in (
                ("no Landlock", landlock),
                ("no control groups", self._groups is not None),
                ("no /proc", self._has_proc),
            )
            if not is_there
        ]
        return ", ".join(["local", *missing])

    async def close(self) -> None:
        """End all runs and sessions, the jails and the fork server; from its beginning on nothing new is started."""
        self._is_closed = True
        async with self._starting:
            await self._end_all()
            self._tier = ""

    async def _end_all(self) -> None:
        for session in list(self._sessions):
            await session.close()
        if self._births:  # who waits for one is told that it is closed
            await asyncio.wait(self._births)
        for jail in list(self._all):
            await self._destroy(jail)
        self._idle.clear()
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError("the local sandbox is closed; make another")

    async def _run(self, job: Job) -> ExecResult:
        async with self._workers:
            self._check_open()  # it may have been closed while this waited
            jail = await self._take(job.limits.allow_network)
            is_clean = False
            try:
                result = await run_program(jail, job, self._tier)
                is_clean = True
            except ProgramError:  # it was refused before anything ran
                is_clean = True
                raise
            finally:
                await self._give_back(jail, job.limits.allow_network, is_clean=is_clean)
            return result

    async def open_session(
        self,
        language: Literal["python", "bash"] = "python",
        *,
        files: Mapping[str, bytes] | None = None,
        snapshot: bytes | None = None,
        limits: Limits | None = None,
    ) -> LocalSession:
        """Open a session in a jail of its own; see `Sandbox.open_session`."""
        placed = check_files(files)
        limits = limits or Limits()
        if snapshot is not None:
            check_tar(snapshot, max_bytes=limits.disk_bytes, max_members=limits.num_inodes)
        await self.start()
        if self.num_sessions >= self._max_sessions:
            raise SandboxError(f"{self.num_sessions} sessions are open already, as many as max_sessions allows")
        jail = await self._take(limits.allow_network)
        try:
            interpreter = await start_interpreter(jail, language, placed, snapshot, limits)
            self._check_open()
        except BaseException:
            await self._give_back(jail, limits.allow_network, is_clean=False)
            raise
        return LocalSession(self, jail, 0, interpreter, limits)

    def add(self, session: LocalSession) -> None:
        """Enter a session into the ledger."""
        self._sessions.add(session)

    async def remove(self, session: LocalSession, jail: JailHandle, *, is_clean: bool, is_last: bool) -> None:
        """Take a session out of the ledger, and its jail back with the last one."""
        self._sessions.discard(session)
        if is_last:
            await self._give_back(jail, session.limits.allow_network, is_clean=is_clean)

    async def _take(self, allow_network: bool) -> JailHandle:
        idle = self._idle[allow_network]
        while idle:
            jail = idle.pop()
            if jail.channel.is_open:
                return jail
            await self._destroy(jail)
        return await self._new_jail(allow_network=allow_network)

    async def _give_back(self, jail: JailHandle, allow_network: bool, *, is_clean: bool) -> None:
        jail.num_uses += 1
        idle = self._idle[allow_network]
        is_wanted = not self._is_closed and len(idle) < self._num_workers and jail.num_uses < _USES
        if is_clean and is_wanted and jail.channel.is_open:
            idle.append(jail)
        else:
            await self._destroy(jail)

    async def _new_jail(self, *, allow_network: bool) -> JailHandle:
        self._check_open()
        birth = asyncio.create_task(self._bear(allow_network))
        self._births.add(birth)
        birth.add_done_callback(self._births.discard)
        return await birth

    async def _bear(self, allow_network: bool) -> JailHandle:
        async with self._replacing:
            zygote = self._zygote
            assert zygote is not None, "the sandbox is open, and so was started"
            if not zygote.is_alive:  # its jails ended with it; a new one takes over
                self._check_open()
                await zygote.close()
                zygote = self._zygote = await zygote.again()
        jail = await zygote.fork(allow_network=allow_network)
        self._all.add(jail)
        self._check_open()
        return jail

    async def _destroy(self, jail: JailHandle) -> None:
        if jail in self._all:
            self._all.discard(jail)
            await asyncio.shield(jail.destroy())


def _found_languages() -> frozenset[str]:
    folders = search_path().split(":")
    return frozenset(
        name
        for name in LANGUAGES
        if all(any(os.access(f"{folder}/{word}", os.X_OK) for folder in folders) for word in LANGUAGES[name].needs)
    )
