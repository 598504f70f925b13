"""The system calls that a jail is made of, by ctypes: namespaces, mounts, capabilities, and a few files' own.

x86-64 and aarch64. On aarch64 none of this has been run yet.
"""

import ctypes
import errno
import os
import platform
import signal
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MNT_DETACH: Final = 2

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38

RESOLVE_SAFELY: Final = 0x01 | 0x02 | 0x04 | 0x08  # NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH

_NUMBERS: Final = {
    "x86_64": {"clone": 56, "pivot_root": 155, "seccomp": 317},
    "aarch64": {"clone": 220, "pivot_root": 41, "seccomp": 277},
}
MACHINE: Final = platform.machine()
_LANDLOCK: Final = {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}
_GENERIC: Final = {"openat2": 437, "close_range": 436, **_LANDLOCK}

libc: Final = ctypes.CDLL(None, use_errno=True)
_libc_with_gil: Final = ctypes.PyDLL(None, use_errno=True)  # a child of clone must find the interpreter's lock held
_LAST_CAPABILITY: Final = 63


def syscall_number(name: str) -> int:
    """Return the number of a system call on this machine.

    Raises:
        OSError: The machine is neither x86-64 nor aarch64.
    """
    if MACHINE not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"the local sandbox knows x86_64 and aarch64, and this machine is {MACHINE}")
    return _GENERIC[name] if name in _GENERIC else _NUMBERS[MACHINE][name]


def check(result: int, what: str) -> int:
    """Return a call's result.

    Raises:
        OSError: It is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(name: str, *arguments: object) -> int:
    """Make a system call; whole numbers go as 64 bits."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return check(libc.syscall(ctypes.c_long(syscall_number(name)), *wide), name)


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names for new ones."""
    check(libc.unshare(flags), f"unshare({flags:#x})")


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    """Mount something."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    options = None if data is None else data.encode()
    check(libc.mount(*words, ctypes.c_ulong(flags), options), f"mounting {target!r}")


def unmount(target: str) -> None:
    """Take a mount away; what is still open in it stays until it is closed."""
    check(libc.umount2(os.fsencode(target), MNT_DETACH), f"unmounting {target!r}")


def set_namespace(fd: int, kind: int) -> None:
    """Enter another namespace."""
    check(libc.setns(fd, kind), "setns")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the old one appears at `old`, a folder in it."""
    syscall("pivot_root", os.fsencode(new), os.fsencode(old))


def prctl(option: int, value: int = 0) -> None:
    """Set a property of this process."""
    zero = ctypes.c_ulong(0)
    check(libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option})")


def fork_into(flags: int) -> int:
    """Fork a child in new namespaces; return its pid, or 0 in the child. Python's own fork hooks run."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(
        _libc_with_gil.syscall(
            ctypes.c_long(syscall_number("clone")), ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, None
        )
    )
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid, "clone")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


_CAPABILITIES_V3: Final = 0x20080522


def forbid_regaining_capabilities() -> None:
    """Empty the bounding set, so that no program that is executed later gains any."""
    for capability in range(_LAST_CAPABILITY + 1):
        if libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) < 0:
            return  # the kernel knows no more of them


def drop_capabilities() -> None:
    """Give up all capabilities of this process."""
    header = _CapabilityHeader(_CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    check(libc.capset(ctypes.byref(header), nothing), "capset")


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_beneath(folder_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path below a folder; no link on the way is followed, and nothing outside is reached."""
    how = _OpenHow(flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, RESOLVE_SAFELY)
    return syscall("openat2", folder_fd, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))


def close_from(first: int, keep: int = -1) -> None:
    """Close all descriptors from `first` on but one."""
    last = 0xFFFFFFFF
    if keep > first:
        syscall("close_range", first, keep - 1, 0)
    syscall("close_range", keep + 1 if keep >= first else first, last, 0)


def write_text(path: str, text: str) -> None:
    """Write to a file that takes its content in one call, as those in /proc do."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


USER: Final = 1000
"""The only user and group that a jail knows."""


def map_user(pid: int | str, outside: int = USER, outside_group: int = USER) -> None:
    """Let a process's new user namespace know one user and one group."""
    write_text(f"/proc/{pid}/setgroups", "deny")
    write_text(f"/proc/{pid}/uid_map", f"{USER} {outside} 1")
    write_text(f"/proc/{pid}/gid_map", f"{USER} {outside_group} 1")
