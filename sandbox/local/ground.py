"""What a jail stands on: namespaces with private folders, or, in the weak tier, one folder on the machine's disk."""

import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from . import root
from .kernel import PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, forbid_regaining_capabilities, prctl
from .landlock import Ruleset, version


class Ground(Protocol):
    """What programs of a jail run on; `clear` gives a new program a clean start."""

    folder: str
    has_proc: bool
    rules: Ruleset | None
    """Landlock's, for programs; they hold for the folders that the last `clear` made."""
    branching_rules: Ruleset | None
    """Those for interpreters, which must hold for the folders of their forks too."""

    def clear(self, disk_bytes: int, num_inodes: int) -> None:
        """Empty the private folders, and give them these limits."""

    def kill_all(self) -> None:
        """Send SIGKILL to every process of the jail but its init."""

    def mount_namespace(self, pid: int) -> str:
        """Return a name for the mount namespace that a process sees files through."""


class Namespaces:
    """Process, mount and other namespaces of its own; this process is pid 1 in them."""

    folder = root.WORK

    def __init__(self, *, allow_network: bool) -> None:
        self.has_proc = root.mount_proc()
        self._allow_network = allow_network
        self.rules: Ruleset | None = None
        # A fork's folders are mounted over these, where no rule but one on their parent holds; what is mounted there
        # besides them is read-only.
        self.branching_rules = Ruleset(("/",), ("/",), allow_network=allow_network) if version() else None
        self._made: tuple[int, int] | None = None
        self._times: list[int] = []
        prctl(PR_SET_DUMPABLE, 0)  # programs have the same uid, and cannot look into this process or trace it
        forbid_regaining_capabilities()

    def clear(self, disk_bytes: int, num_inodes: int) -> None:
        """Mount new private folders, unless the old ones are as new."""
        if self._made == (disk_bytes, num_inodes) and root.is_untouched(self._times):
            root.set_back()
            self._times = root.change_times()
            return
        if self._made is not None:
            root.remove_private()
        root.make_private(disk_bytes, num_inodes)
        root.show_private()
        if self.rules is not None:
            self.rules.close()
        if version():
            self.rules = Ruleset(("/",), (*root.PRIVATE.values(), "/dev"), allow_network=self._allow_network)
        self._made, self._times = (disk_bytes, num_inodes), root.change_times()

    def kill_all(self) -> None:
        """Kill all that this process may signal, which in its namespace is all but itself."""
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def mount_namespace(self, pid: int) -> str:
        """Return the namespace's name, "" for a process that is gone."""
        with suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/mnt")
        return ""


class Folder:
    """One folder on the machine's disk, neither size nor processes kept apart: the weak tier."""

    has_proc = True

    def __init__(self, folder: str, readable: Sequence[str], *, allow_network: bool) -> None:
        self.folder = folder
        self.rules = self.branching_rules = (
            Ruleset((*readable, "/dev"), (folder, "/dev/null"), allow_network=allow_network) if version() else None
        )
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_DUMPABLE, 0)

    def clear(self, disk_bytes: int, num_inodes: int) -> None:
        """Remove what lies in the folder; its size is limited by the size of each file only."""
        for entry in os.scandir(self.folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)

    def kill_all(self) -> None:
        """Kill children and their descendants, as often as there are new ones."""
        while children := descendants(os.getpid()):
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def mount_namespace(self, pid: int) -> str:
        """Return one name for all: they see the same files."""
        return self.folder


def parents() -> dict[int, int]:
    """Return each visible process's parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    return found


def descendants(ancestor: int) -> list[int]:
    """Return children and their children, as far as they still descend from a process."""
    of = parents()
    found: list[int] = []
    seen = {ancestor}
    while new := [pid for pid, parent in of.items() if parent in seen and pid not in seen]:
        seen.update(new)
        found += new
    return found


def used_bytes() -> int:
    """Return the memory that all visible processes but this one hold for themselves."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/statm", "rb") as file:
                numbers = file.read().split()
                pages += int(numbers[1]) - int(numbers[2])
    return pages * os.sysconf("SC_PAGE_SIZE")
