"""Attacks: Python programs that try what must not work, and print "held" if nothing of it did."""

from textwrap import dedent

from ..limits import Limits
from .program import BRIEF, HELD, HostileProgram, Kind, Outcome

# System calls are made by number: libc has no functions for the newest, and Python none for the most harmful.
_TOOLS = '''
import ctypes, errno, os, signal, socket, sys, time

libc = ctypes.CDLL(None, use_errno=True)
loot = []
NUMBERS = {  # on x86-64 and aarch64
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "capget": (125, 90), "chroot": (161, 51),
    "clone": (56, 220), "clone3": (435, 435), "exit": (60, 93), "fanotify_init": (300, 262),
    "finit_module": (313, 273), "fsopen": (430, 430), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, None), "iopl": (172, None),
    "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_load": (246, 104), "keyctl": (250, 219), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "mq_open": (240, 180), "msgget": (68, 186),
    "msgsnd": (69, 189), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434), "pivot_root": (155, 41),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117), "reboot": (169, 142),
    "request_key": (249, 218), "semget": (64, 190), "setns": (308, 268), "shmat": (30, 196), "shmget": (29, 194),
    "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def call(name, *args):
    """Make a system call; raises OSError where the kernel says no."""
    number = NUMBERS[name][os.uname().machine == "aarch64"]
    if number is None:
        raise OSError(errno.ENOSYS, name)
    ctypes.set_errno(0)
    words = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def attempt(what, action, *args, **kwargs):
    """Note an action that succeeds."""
    try:
        result = action(*args, **kwargs)
    except (OSError, ValueError, OverflowError, ImportError):
        return
    loot.append((what, repr(result)[:80]))


def must_refuse(name, *args):
    """Note a system call that is not refused as such: one that only finds its arguments wrong is open."""
    try:
        loot.append((name, call(name, *args)))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            loot.append((name, errno.errorcode[error.errno]))


def read(path, size=100):
    with open(path, "rb") as file:
        content = file.read(size)
    if not content:
        raise OSError("empty")
    return content


def others():
    """Return the processes that can be seen beside this one."""
    try:
        seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        seen = set()
    return sorted((seen | {1, os.getppid()}) - {0, os.getpid()})


'''
_VERDICT = '\nprint(f"loot: {loot}" if loot else "held")\n'


def attack(name: str, kind: Kind, code: str, *others: Outcome, limits: Limits = BRIEF) -> HostileProgram:
    """Return an attack; `others` are outcomes that are right beside "held"."""
    return HostileProgram(name, kind, f"{_TOOLS}{dedent(code).strip()}\n{_VERDICT}", (HELD, *others), limits=limits)
