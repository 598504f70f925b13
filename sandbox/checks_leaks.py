"""What a sandbox may not pile up on its host: processes, descriptors, mounts, folders, cgroups."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from .base import Sandbox
from .limits import Limits

_SETTLE_S = 3.0
_SLACK = 2  # a worker may be just about to be replaced

_PROGRAMS = (
    ("print('x')", 10.0),
    ("raise ValueError", 10.0),
    ("import os; os.kill(os.getpid(), 9)", 10.0),
    ("open('f', 'w').write('x' * 100000); open('/tmp/turngym-left', 'w').write('x')", 10.0),
    ("import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(100)", 10.0),
    ("while True: pass", 0.05),
    ("print('x' * 10**6)", 10.0),
    ("import os, tempfile\ntempfile.mkdtemp(); os.mkfifo('p'); os.pipe()", 10.0),
)


@dataclass(frozen=True)
class Footprint:
    """How much of a host this process and its descendants hold."""

    processes: int
    descriptors: int
    mounts: int
    """In every mount namespace that they live in."""
    files: int
    """Named after TurnGym in temporary folders."""
    cgroups: int
    """Named after TurnGym."""

    @classmethod
    def take(cls) -> "Footprint":
        """Count."""
        pids = descendants(os.getpid())
        mounts = {}
        for pid in pids:
            try:
                namespace = os.readlink(f"/proc/{pid}/ns/mnt")
                mounts[namespace] = len(Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines())
            except OSError:
                continue  # it has ended
        places = {Path(place) for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", "/run")}
        names = [path.name for place in places if place.is_dir() for path in place.glob("*turngym*")]
        groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if "turngym" in folder]
        return cls(
            processes=len(pids),
            descriptors=sum(map(_num_descriptors, pids)),
            mounts=sum(mounts.values()),
            files=sum(_is_ours(name, pids) for name in names),
            cgroups=sum(_is_ours(name, pids) for name in groups),
        )

    def grown(self, now: "Footprint") -> Iterator[str]:
        """Yield the names of what has grown since."""
        for name in (field.name for field in fields(self)):
            if getattr(now, name) > getattr(self, name) + _SLACK:
                yield name


def descendants(root: int) -> set[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(folder.name))
    found, left = set(), [root]
    while left:
        pid = left.pop()
        found.add(pid)
        left += children.get(pid, [])
    return found


def _num_descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0  # it has ended, or is another user's


def _is_ours(name: str, pids: set[int]) -> bool:
    """Return whether a name is not that of another process which still runs."""
    numbers = set(map(int, re.findall(r"\d+", name)))
    return not any(os.path.exists(f"/proc/{number}") for number in numbers - pids if number > 1)


async def leaks(sandbox: Sandbox, num_runs: int, *, num_parallel: int = 8) -> list[str]:
    """Run programs of all kinds, some of them cancelled, and sessions; return what grows on and on.

    What grows in one half of the runs only, as a pool of connections that fills up, is no leak.

    Args:
        sandbox: Started.
        num_runs: How many; a twentieth of them go before, so that whatever is started once is there.
        num_parallel: At once.
    """
    await _many(sandbox, max(num_runs // 20, 2 * num_parallel), num_parallel)
    prints = [await _settled(None)]
    for _ in range(2):
        await _many(sandbox, num_runs // 2, num_parallel)
        prints.append(await _settled(prints[-1]))
    before, between, after = prints
    grown = set(before.grown(between)) & set(between.grown(after))
    return [
        f"{name} grew from {getattr(before, name)} to {getattr(between, name)} and {getattr(after, name)}"
        for name in sorted(grown)
    ]


async def _many(sandbox: Sandbox, num_runs: int, num_parallel: int) -> None:
    places = asyncio.Semaphore(num_parallel)

    async def one(index: int) -> None:
        async with places:
            if index % 25 == 24:
                await _session(sandbox)
                return
            code, wall_s = _PROGRAMS[index % len(_PROGRAMS)]
            run = asyncio.ensure_future(sandbox.run(code, limits=Limits(wall_s=wall_s)))
            if index % 20 == 19:
                await asyncio.sleep(0.01)
                run.cancel()
            await asyncio.wait([run])
            if not run.cancelled():
                run.result()

    await asyncio.gather(*map(one, range(num_runs)))


async def _session(sandbox: Sandbox) -> None:
    async with await sandbox.open_session(files={"a": b"x"}) as session:
        await session.run_cell("import subprocess; subprocess.Popen(['sleep', '100']); open('b', 'w').write('x')")
        if session.can_fork:
            async with await session.fork() as other:
                await other.run_cell("1 + 1")


async def _settled(before: Footprint | None) -> Footprint:
    """Return the footprint once it no longer shows growth, or after a while."""
    for _ in range(10):
        await asyncio.sleep(_SETTLE_S / 10)
        now = Footprint.take()
        if before is not None and not list(before.grown(now)):
            break
    return now


async def check_leaks(sandbox: Sandbox) -> AsyncIterator[str]:
    """Two hundred runs leave no processes, descriptors, mounts, files or cgroups behind."""
    for message in await leaks(sandbox, 200):
        yield f"after 200 runs, {message}"
