"""The sandbox `docker`: each program and each session in a hardened container of its own."""

import asyncio
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

from ...errors import ConfigError, ProgramError, SandboxError, SandboxUnavailableError
from ..base import Sandbox
from ..job import Job, check_files
from ..languages import LANGUAGES
from ..limits import Limits
from ..results import ExecResult
from ..tar_check import check_tar
from .client import DockerClient
from .container import Container, Setup, Shape
from .images import DEFAULT_IMAGE, resolve_image
from .orders import result_of_death, run_job
from .pool import ContainerPool
from .reaper import leftovers
from .session import DockerSession
from .stream import ChannelError

_NUM_THREADS = 8  # requests to the daemon at once; it works on few of them at a time itself


class DockerSandbox(Sandbox):
    """Containers of one image.

    Args:
        image: Its name; it must be there already, or `pull` be set. It needs Python 3.8 or later.
        dockerfile: Instead of `image`: a folder with a Dockerfile, which is built at start.
        pull: Fetch a missing image from its registry.
        runtime: A container runtime that the daemon knows, such as "runsc" (gVisor); by default the daemon's own.
        python: The image's Python, a name in its PATH or a path.
        workdir_from_image: A folder of the image whose content every program finds in its work folder.
        network: The Docker network of programs whose limits allow a network.
        num_workers: Most programs at once; by default 2 for each core, and 4 at least.
        num_warm: Containers that wait, ready, for each set of limits in use.
        num_cpus: Processors that a container may use.
        uid: The user that programs run as in the container.
        docker_host: The daemon's address; by default DOCKER_HOST, else the usual socket.

    Raises:
        ConfigError: An argument cannot be used.
    """

    name = "docker"
    tiers = {
        "docker": "a container of its own; the host's kernel is behind Docker's filter of system calls",
        "docker+runsc": "a container of its own with gVisor's kernel between it and the host's",
        "docker, no seccomp": "as docker, but the daemon has no filter of system calls",
        "docker, no memory limit": "as docker, but the daemon cannot limit memory, so that a program may take all",
        "docker, no process limit": "as docker, but the daemon cannot limit processes, so that a program may fork on",
    }

    def __init__(
        self,
        image: str | None = None,
        *,
        dockerfile: str | None = None,
        pull: bool = False,
        runtime: str | None = None,
        python: str = "python3",
        workdir_from_image: str | None = None,
        network: str = "bridge",
        num_workers: int | None = None,
        num_warm: int = 2,
        num_cpus: float = 1.0,
        uid: int = 10_000,
        docker_host: str | None = None,
    ) -> None:
        if image is not None and dockerfile is not None:
            raise ConfigError(f"wanted an image or a dockerfile, got both: {image!r} and {dockerfile!r}")
        if uid <= 0:
            raise ConfigError(f"programs need an unprivileged uid, got {uid}")
        if num_cpus <= 0 or num_warm < 0 or (num_workers is not None and num_workers < 1):
            raise ConfigError(
                f"wanted num_cpus > 0, num_warm >= 0 and num_workers >= 1, got {num_cpus}, {num_warm}, {num_workers}"
            )
        self._image, self._dockerfile, self._pulls = image, dockerfile, pull
        self._runtime, self._python, self._network = runtime, python, network
        self._copy_from, self._num_cpus, self._uid = workdir_from_image, num_cpus, uid
        self._num_warm, self._docker_host = num_warm, docker_host
        self._slots = asyncio.Semaphore(num_workers or max(4, 2 * (os.cpu_count() or 1)))
        self._starting = asyncio.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._client: DockerClient | None = None
        self._pool: ContainerPool | None = None
        self._languages: frozenset[str] = frozenset()
        self._missing: list[str] = []
        self._sessions: dict[str, DockerSession] = {}
        self._is_closed = False

    @property
    def tier(self) -> str:
        """See `Sandbox`: "docker", or "docker+runsc", and what the daemon was found to lack at the start."""
        return ", ".join([f"docker+{self._runtime}" if self._runtime else "docker", *self._missing])

    @property
    def languages(self) -> frozenset[str]:
        """See `Sandbox`."""
        return self._languages

    @property
    def num_sessions(self) -> int:
        """How many sessions have a container; one whose container could not be removed yet counts."""
        living = self._pool.living if self._pool else {}
        self._sessions = {name: session for name, session in self._sessions.items() if name in living}
        return len(self._sessions)

    @property
    def num_containers(self) -> int:
        """How many containers there are, those that wait for use and those that could not be removed included."""
        return len(self._pool.living) if self._pool else 0

    @property
    def unremoved(self) -> dict[str, str]:
        """The containers that the daemon failed to remove, with its last reason; they are tried again and again."""
        return dict(self._pool.unremoved) if self._pool else {}

    @property
    def num_failed_removals(self) -> int:
        """How often a removal failed so far."""
        return self._pool.num_failed_removals if self._pool else 0

    async def start(self) -> None:
        """See `Sandbox`."""
        if self._languages and not self._is_closed:
            return
        async with self._starting:
            if self._is_closed:
                raise SandboxError("the sandbox is closed; make another")
            if not self._languages:
                await self._start()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._threads = self._threads or ThreadPoolExecutor(_NUM_THREADS, "docker")
        client = self._client
        if client is None:
            make_client = partial(DockerClient, self._docker_host, _NUM_THREADS)
            client = await loop.run_in_executor(self._threads, make_client)
            self._client = client
        setup = await loop.run_in_executor(self._threads, partial(self._prepare, client))
        pool = ContainerPool(partial(Container, client, self._threads, setup), self._num_warm, _all_programs())
        self._pool = pool
        try:
            found = (await pool.warm_up(Shape.of(Limits()))).programs
        except BaseException as error:
            await asyncio.shield(pool.close())
            if not isinstance(error, SandboxError):
                raise
            name = self._dockerfile or self._image or DEFAULT_IMAGE
            raise SandboxUnavailableError(f"no container of the image {name!r} comes up: {error}") from error
        self._languages = frozenset(name for name in LANGUAGES if set(LANGUAGES[name].needs) <= found)

    def _prepare(self, client: DockerClient) -> Setup:
        abilities = client.abilities()
        self._missing, runtimes = abilities.missing, abilities.runtimes
        if self._runtime and self._runtime not in runtimes:
            raise SandboxUnavailableError(
                f"the Docker daemon at {client.host} knows no runtime {self._runtime!r}, only {', '.join(runtimes)}; "
                "install it and name it in /etc/docker/daemon.json"
            )
        for name in leftovers(client):
            client.remove(name)
        image = resolve_image(client, self._image, self._dockerfile, pulls=self._pulls)
        return Setup(image, self._python, self._runtime, self._network, self._num_cpus, self._uid, self._copy_from)

    async def close(self) -> None:
        """See `Sandbox`.

        Raises:
            SandboxError: Containers are left that the daemon failed to remove.
        """
        async with self._starting:
            if self._is_closed:
                return
            self._is_closed = True
            for session in self._sessions.values():
                session.note_close("the sandbox was closed")
            try:
                if self._pool:
                    await self._pool.close()
            finally:
                if self._client:
                    self._client.close()
                if self._threads:
                    self._threads.shutdown(wait=False)

    def _open_pool(self) -> ContainerPool:
        if self._pool is None or self._is_closed:
            raise SandboxError("the sandbox is closed; make another")
        return self._pool

    async def _run(self, job: Job) -> ExecResult:
        pool = self._open_pool()
        await self._slots.acquire()
        try:
            container = await pool.take(Shape.of(job.limits))
        except BaseException:
            self._slots.release()
            raise
        begin = time.monotonic()
        try:
            try:
                return await run_job(
                    container,
                    job,
                    python=self._python,
                    wall_s=job.limits.wall_s,
                    is_alone=True,
                    tag="run",
                    tier=self.tier,
                )
            except ChannelError as error:
                return result_of_death(await container.why_dead(), error, begin, self.tier)
        except asyncio.CancelledError:
            await asyncio.shield(pool.remove_later(container))
            raise
        finally:
            pool.remove_later(container).add_done_callback(lambda _: self._slots.release())

    async def open_session(
        self,
        language: Literal["python", "bash"] = "python",
        *,
        files: Mapping[str, bytes] | None = None,
        snapshot: bytes | None = None,
        limits: Limits | None = None,
    ) -> DockerSession:
        """See `Sandbox`."""
        limits = limits or Limits()
        placed = check_files(files)
        members = []
        if snapshot is not None:
            members = check_tar(snapshot, max_bytes=limits.disk_bytes, max_members=limits.num_inodes)
        await self.start()
        if language not in ("python", "bash") or language not in self.languages:
            raise ProgramError(f"wanted a session in python or bash, which the image must have, got {language!r}")
        pool = self._open_pool()
        container = await pool.take(Shape.of(limits))
        session = DockerSession(container, pool, language, limits, self._python, self.tier)
        try:
            await session.open(placed, members)
        except BaseException:
            await session.close()
            raise
        self._sessions[container.name] = session
        return session


def _all_programs() -> list[str]:
    return sorted({program for name in LANGUAGES for program in LANGUAGES[name].needs})
