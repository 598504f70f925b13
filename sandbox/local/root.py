"""The files that a jail sees: a read-only root of chosen folders, and private folders in memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .kernel import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
    pivot_root,
    unmount,
)

WORK: Final = "/box"
PRIVATE: Final = {"box": WORK, "tmp": "/tmp", "shm": "/dev/shm"}
"""Folders of one private file system, and where they are seen."""
SPARE: Final = "/.private"
"""Where a private file system is mounted while it is furnished."""
SITE: Final = "/site"
"""Where packages lie that programs may import."""

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_LINKS: Final = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
}
_USER: Final = "sandbox:x:1000:1000::/box:/bin/sh\n"
_GROUP: Final = "sandbox:x:1000:\n"
_KEPT_FLAGS: Final = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 10 | 1 << 11 | 1 << 12  # nosuid, nodev, noexec, no(dir)(rel)atime


@dataclass(frozen=True)
class RootPlan:
    """What the root is made of."""

    folder: str
    """An empty folder outside, over which it is mounted."""
    binds: Sequence[tuple[str, str]]
    """Files and folders outside, and where they are seen; a link is made again as a link."""
    hidden: Sequence[str]
    """Folders of these that are seen empty."""


def build(plan: RootPlan) -> None:
    """Make the root and move into it; this process needs a mount namespace of its own."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    new = plan.folder
    mount("tmpfs", new, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755,nr_inodes=4096")
    for folder in ("proc", "dev", "dev/shm", "tmp", "box", "etc", "old", SITE[1:], SPARE[1:]):
        os.makedirs(f"{new}/{folder}", exist_ok=True)
    for source, target in plan.binds:
        _show(source, new + target)
    for folder in plan.hidden:
        if os.path.isdir(new + folder):
            mount("tmpfs", new + folder, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4k,nr_inodes=2,mode=755")
    for name in _DEVICES:
        _touch(f"{new}/dev/{name}")
        mount(f"/dev/{name}", f"{new}/dev/{name}", None, MS_BIND)
    for link, target in _LINKS.items():
        os.symlink(target, f"{new}/{link}")
    for name, text in (("passwd", _USER), ("group", _GROUP), ("hostname", "sandbox\n")):
        with open(f"{new}/etc/{name}", "w") as file:
            file.write(text)
    # A /proc that is fully visible must stay mounted: only then may a child with a pid namespace mount its own.
    mount("/proc", f"{new}/proc", None, MS_BIND | MS_REC)
    os.chdir(new)
    pivot_root(".", "old")
    os.chdir("/")
    unmount("/old")
    os.rmdir("/old")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _show(source: str, target: str) -> None:
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        _touch(target)
    mount(source, target, None, MS_BIND | MS_REC)
    kept = os.statvfs(source).f_flag & _KEPT_FLAGS
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def _touch(path: str) -> None:
    with open(path, "x"):
        pass


def mount_proc() -> bool:
    """Mount this pid namespace's /proc; where the kernel refuses, an empty folder, and return False."""
    try:
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:
        mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "size=4k,nr_inodes=2")
        return False
    return True


def make_private(disk_bytes: int, num_inodes: int) -> None:
    """Mount a new file system in memory for the private folders, at `SPARE`."""
    options = f"size={max(disk_bytes, 4096)},nr_inodes={num_inodes + len(PRIVATE) + 1},mode=755"
    mount("tmpfs", SPARE, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name in PRIVATE:
        os.mkdir(f"{SPARE}/{name}")
        os.chmod(f"{SPARE}/{name}", 0o700 if name == "box" else 0o1777)


def show_private() -> None:
    """Let what is mounted at `SPARE` be seen at its places."""
    for name, place in PRIVATE.items():
        mount(f"{SPARE}/{name}", place, None, MS_BIND)
    unmount(SPARE)


def remove_private() -> None:
    """Take the private folders away, with all that is in them."""
    for place in PRIVATE.values():
        unmount(place)


def change_times() -> list[int]:
    """Return when each private folder was last changed, be it only its mode, times or flags; nobody can choose that."""
    return [os.stat(place).st_ctime_ns for place in PRIVATE.values()]


def is_untouched(times: list[int]) -> bool:
    """Whether the private folders are empty and have not changed since `change_times` said so."""
    usage = os.statvfs(WORK)
    if usage.f_files - usage.f_ffree != len(PRIVATE) + 1 or usage.f_blocks != usage.f_bfree:
        return False
    return change_times() == times


def set_back() -> None:
    """Set back modes and times: where clocks are coarse, a change at once after the last one does not show."""
    for name, place in PRIVATE.items():
        os.chmod(place, 0o700 if name == "box" else 0o1777)
        os.utime(place)
