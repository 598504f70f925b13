"""One container: how it is confined, how it comes up, and why it went down."""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from ...errors import ProgramError, SandboxError, SandboxLostError, SandboxUnavailableError
from ..job import WORK_FOLDER
from ..limits import Limits
from .client import DockerClient
from .program import BOOTSTRAP, runner_source
from .reaper import LABEL, this_process
from .stream import Channel

T = TypeVar("T")

_RUNNER_BYTES = 24 << 20  # memory of the runner itself, on top of what programs may use
_RUNNER_PROCESSES = 1
_MIN_OPEN_FILES = 1024
_START_TIMEOUT_S = 60.0
_PING_TIMEOUT_S = 5.0
_NOT_BY_PROGRAMS = (0, 137, 143)  # the supervisor left; SIGKILL and SIGTERM, which no program can send to process 1
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Setup:
    """What all containers of a sandbox have in common."""

    image: str
    python: str
    runtime: str | None
    network: str
    num_cpus: float
    uid: int
    copy_from: str | None


@dataclass(frozen=True)
class Shape:
    """What a container is made with, and so cannot be changed later."""

    memory_bytes: int
    num_processes: int
    num_open_files: int
    disk_bytes: int
    num_inodes: int
    allow_network: bool

    @classmethod
    def of(cls, limits: Limits) -> "Shape":
        """Return the shape that these limits need."""
        return cls(
            limits.memory_bytes,
            limits.num_processes,
            max(limits.num_open_files, _MIN_OPEN_FILES),
            limits.disk_bytes,
            limits.num_inodes,
            limits.allow_network,
        )


def host_config(setup: Setup, shape: Shape) -> dict[str, Any]:  # Any: the daemon's JSON
    """Return how a container is confined, as the SDK takes it."""
    owned = f"uid={setup.uid},gid={setup.uid}"
    memory_bytes = shape.memory_bytes + _RUNNER_BYTES

    def tmpfs(share: int, options: str) -> str:
        num_bytes = max(shape.disk_bytes // share, 4096)
        return f"rw,nosuid,nodev,size={num_bytes},nr_inodes={shape.num_inodes // share + 1},{options}"

    return {
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL"],  # the runner's; programs run as another user and get none
        "security_opt": ["no-new-privileges"],
        "pids_limit": shape.num_processes + _RUNNER_PROCESSES,
        "mem_limit": memory_bytes,
        "memswap_limit": memory_bytes,
        "nano_cpus": int(setup.num_cpus * 1e9),
        "network_mode": setup.network if shape.allow_network else "none",
        "ipc_mode": "private",
        "tmpfs": {
            # One file system cannot be at three places; the two small ones keep the sum near to the limit.
            WORK_FOLDER: tmpfs(1, f"exec,mode=0700,{owned}"),
            "/tmp": tmpfs(16, "noexec,mode=1777"),
            "/dev/shm": tmpfs(16, "noexec,mode=1777"),
        },
        "ulimits": [
            {"Name": "nofile", "Soft": shape.num_open_files, "Hard": shape.num_open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "log_config": {"Type": "none", "Config": {}},
        "runtime": setup.runtime,
        "init": False,
    }


class Container:
    """A container and the connection to its runner."""

    def __init__(self, client: DockerClient, threads: Executor, setup: Setup, shape: Shape) -> None:
        self.name = f"turngym-{os.getpid()}-{os.urandom(4).hex()}-{next(_NUMBERS)}"
        self.shape = shape
        self.channel = Channel()
        self.programs: frozenset[str] = frozenset()
        self.is_unwanted = False
        """Whether we remove it ourselves."""
        self.is_settled = False
        """Whether it has come up, or failed to."""
        self._client = client
        self._threads = threads
        self._setup = setup

    async def start(self, wanted_programs: Sequence[str]) -> None:
        """Create and start it, and send it its runner; whoever calls removes it if that fails.

        Raises:
            SandboxError: The daemon refused, or the runner does not answer.
        """
        sock = await self._in_thread(self._create)
        await asyncio.get_running_loop().create_connection(lambda: self.channel, sock=sock)
        try:
            await self._in_thread(partial(self._client.start, self.name))
            self.channel.write(runner_source())
            head, _ = await self.channel.call(
                "setup",
                deadline_s=_START_TIMEOUT_S,
                uid=self._setup.uid,
                gid=self._setup.uid,
                folder=WORK_FOLDER,
                copy_from=self._setup.copy_from,
                programs=list(wanted_programs),
            )
        except ProgramError as error:
            raise SandboxUnavailableError(f"the image's {self._setup.copy_from} cannot be copied: {error}") from error
        self.programs = frozenset(head["programs"])

    def _create(self) -> Any:  # Any: a socket
        self._client.create(
            self.name,
            self._setup.image,
            host_config(self._setup, self.shape),
            entrypoint=[self._setup.python, "-I", "-c", BOOTSTRAP],
            command=[],
            user="0:0",
            working_dir="/",
            hostname="sandbox",
            labels={LABEL: this_process().text},
        )
        return self._client.attach(self.name)

    async def ping(self) -> bool:
        """Return whether the runner answers."""
        try:
            await self.channel.call("ping", deadline_s=_PING_TIMEOUT_S)
        except SandboxError:
            return False
        return True

    async def why_dead(self) -> Literal["memory", "killed"]:
        """Return what programs did to it, if its runner is gone or mute by their doing.

        Raises:
            SandboxLostError: It was not their doing, or nobody knows.
        """
        if self.is_unwanted:
            raise SandboxLostError("the sandbox was closed while a program ran in it")
        state = await self._in_thread(partial(self._client.state, self.name))
        for _ in range(20):  # the daemon notices an end a little later than the connection
            if state is None or not state["Running"]:
                break
            if self.channel.is_open:
                return "killed"  # it runs, and programs keep the runner from answering
            await asyncio.sleep(0.1)
            state = await self._in_thread(partial(self._client.state, self.name))
        if state is None:
            raise SandboxLostError("the container was removed from outside while a program ran in it")
        if state.get("OOMKilled"):
            return "memory"
        if state["Running"] or state["ExitCode"] in _NOT_BY_PROGRAMS:
            raise SandboxLostError(f"the connection to the container broke, or it was ended from outside: {state}")
        return "killed"

    async def remove(self) -> None:
        """Kill and remove it.

        Raises:
            SandboxError: The daemon did not.
        """
        self.channel.close("the container is removed")
        await self._in_thread(partial(self._client.remove, self.name))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)
