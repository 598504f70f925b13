"""Landlock: what files a jailed program may touch, beneath what its mounts already say."""

import ctypes
import os
import struct
from collections.abc import Iterable

from .kernel import PR_SET_NO_NEW_PRIVS, check, libc, prctl, syscall, syscall_number

_CREATE_VERSION = 1
_PATH_BENEATH = 1
_READ = 1 | 4 | 8  # execute, read a file, read a folder
_OF_FILES = 1 | 2 | 4 | 1 << 14 | 1 << 15  # what can be said of a file that is no folder
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP = 3  # bind, connect
_SCOPES = 3  # abstract unix sockets, signals: none out of the domain


def version() -> int:
    """Return the version of Landlock that the kernel has; 0 without."""
    found = libc.syscall(
        ctypes.c_long(syscall_number("landlock_create_ruleset")),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint(_CREATE_VERSION),
    )
    return max(0, int(found))


class Ruleset:
    """Rules made once, in force for each process that calls `restrict`, and for its children.

    A rule holds for a folder and all below it, also for what is mounted below it later; not for what is mounted over
    the folder itself.
    """

    def __init__(self, readable: Iterable[str], writable: Iterable[str], *, allow_network: bool) -> None:
        """Make the rules; paths that do not exist are left out."""
        found = version()
        check(found - 1, "landlock")
        self._all = _ALL_BY_VERSION[min(found, max(_ALL_BY_VERSION))]
        network = _TCP if found >= 4 and not allow_network else 0
        attributes = struct.pack("=QQQ", self._all, network, _SCOPES if found >= 6 else 0)
        size = 8 if found < 4 else 16 if found < 6 else 24
        self.fd = syscall("landlock_create_ruleset", ctypes.create_string_buffer(attributes[:size], size), size, 0)
        for path in readable:
            self._allow(path, _READ)
        for path in writable:
            self._allow(path, self._all)

    def _allow(self, path: str, access: int) -> None:
        if not os.path.exists(path):
            return
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = access & self._all & (-1 if os.path.isdir(path) else _OF_FILES)
            rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, fd), 12)
            syscall("landlock_add_rule", self.fd, _PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)

    def restrict(self) -> None:
        """Put the rules in force for this process."""
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        syscall("landlock_restrict_self", self.fd, 0)

    def close(self) -> None:
        """Forget the rules; they stay in force where they are."""
        os.close(self.fd)
