"""Start a program as the unprivileged user, with its limits, and see how it ended."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_NICENESS = 5  # the runner must get its turn beside a program that takes all it can
_OOM_SCORE = 500  # and it must not be the one that goes when memory does
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_IO_URING = (425, 427)  # io_uring_setup to io_uring_register, on every architecture
_FIRST_FREE = 200  # above all descriptors that a program is given


class Rules(NamedTuple):
    """Who a program runs as, and what each of its processes may use."""

    uid: int
    gid: int
    num_open_files: int
    cpu_s: int | None = None
    address_space: int | None = None
    file_bytes: int | None = None


class Outcome(NamedTuple):
    """How a program ended, as far as its wait status tells."""

    exit_code: int | None
    signal: int | None
    cpu_s: float
    max_rss_bytes: int


def spawn(
    argv: Sequence[str], descriptors: Mapping[int, int], environment: Mapping[str, str], folder: str, rules: Rules
) -> int:
    """Start a program in a session of its own and return its pid.

    Args:
        argv: Its first word is looked up in the environment's PATH.
        descriptors: All that it gets: ours by the number that it has there.
        environment: All of its environment.
        folder: Where it starts.
        rules: Who it runs as, and its limits.

    Raises:
        OSError: It cannot be started.
    """
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(error_read)
            _confine(rules)
            _place(descriptors, rules.num_open_files)
            os.chdir(folder)
            os.execvpe(argv[0], list(argv), dict(environment))
        except BaseException as error:
            number = error.errno if isinstance(error, OSError) else None
            os.write(error_write, str(number or errno.EIO).encode())
        finally:
            os._exit(127)
    os.close(error_write)
    with open(error_read, "rb") as pipe:
        said = pipe.read()
    if said:
        os.waitpid(pid, 0)
        raise OSError(int(said), os.strerror(int(said)), argv[0])
    return pid


def _confine(rules: Rules) -> None:
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(_OOM_SCORE))
    os.nice(_NICENESS)
    os.umask(0o022)
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 64 << 10),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CPU, rules.cpu_s),
        (resource.RLIMIT_AS, rules.address_space),
        (resource.RLIMIT_FSIZE, rules.file_bytes),
    ):
        if limit is not None:
            resource.setrlimit(kind, (limit, limit))  # no SIGXCPU, which can be ignored, before SIGKILL
    os.setgroups([])
    os.setresgid(rules.gid, rules.gid, rules.gid)
    os.setresuid(rules.uid, rules.uid, rules.uid)
    _refuse_io_uring()


def _refuse_io_uring() -> None:
    """Refuse what Docker's own filter of system calls lets through before version 25."""
    code = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the call,
            (0x54, 0, 0, 0xBFFFFFFF),  # as x86-64 has it for both sizes of pointers
            (0x35, 0, 2, _IO_URING[0]),
            (0x25, 1, 0, _IO_URING[1]),
            (0x06, 0, 0, 0x00050000 | errno.EPERM),
            (0x06, 0, 0, 0x7FFF0000),
        )
    )
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(program), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _place(descriptors: Mapping[int, int], num_open_files: int) -> None:
    high = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for target, fd in descriptors.items()}
    for target, fd in high.items():
        os.dup2(fd, target)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open_files, num_open_files))


def outcome_of(status: int, usage: resource.struct_rusage) -> Outcome:
    """Read what wait4 returned."""
    is_signal = os.WIFSIGNALED(status)
    return Outcome(
        None if is_signal else os.WEXITSTATUS(status),
        os.WTERMSIG(status) if is_signal else None,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
    )


def descendants(pid: int) -> set[int]:
    """Return the living processes that a program started, itself among them, but for those that left its session."""
    parents, found = {}, set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if fields[0] != b"Z":
                parents[int(name)] = int(fields[1])
                if int(fields[3]) == pid:
                    found.add(int(name))
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more
