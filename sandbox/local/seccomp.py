"""Which system calls a jailed program may make: all but those that reach for the machine, as a BPF filter.

Refused calls fail with EPERM, clone3 with ENOSYS (C libraries then take clone, whose flags a filter can see).
"""

import ctypes
import errno
import os
import struct
from typing import Final

from .kernel import CLONE_NEWNS, CLONE_NEWUSER, MACHINE, PR_SET_NO_NEW_PRIVS, check, libc, prctl, syscall

# Numbers of x86-64 and of aarch64 (the generic table); None where a machine has no such call.
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "memfd_secret": (447, 447),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "syslog": (103, 116), "lookup_dcookie": (212, 18), "vhangup": (153, 58), "personality": (135, 92),
    "mbind": (237, 235), "move_pages": (279, 239), "migrate_pages": (256, 238), "set_mempolicy": (238, 237),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None),
    "nfsservctl": (180, 42), "sethostname": (170, 161), "setdomainname": (171, 162),
    # What would outlive a program in a jail that is used again.
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semctl": (66, 191),
    "semop": (65, 193), "msgget": (68, 186), "msgctl": (71, 187), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
}  # fmt: skip
# Calls on another process, by the argument that names it: pid 1 is the jail's own.
_OF_INIT: Final[dict[str, tuple[tuple[int, int], int]]] = {
    "prlimit64": ((302, 261), 0), "sched_setaffinity": ((203, 122), 0), "sched_setparam": ((142, 118), 0),
    "sched_setscheduler": ((144, 119), 0), "sched_setattr": ((314, 274), 0), "ioprio_set": ((251, 30), 1),
    "setpriority": ((141, 140), 1),
}  # fmt: skip
_CLONE, _CLONE3, _SOCKET, _UNSHARE = (56, 220), (435, 435), (41, 198), (272, 97)
_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_NAMESPACES: Final = 0x7E020000 | 0x80  # every CLONE_NEW*, that of time too
_X32: Final = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _MORE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_ALLOW, _KILL, _NOTIFY, _ERROR = 0x7FFF0000, 0x80000000, 0x7FC00000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_INTERNET: Final = (2, 10)  # IPv4, IPv6


_RULES_OF_BLOCK: Final = 9


class _Program:
    """A filter under construction: rules by the number of the call, which the accumulator holds between two of them."""

    def __init__(self) -> None:
        self._rules: dict[int, list[bytes]] = {}
        self._which = list(_ARCHITECTURES).index(MACHINE)

    def number(self, of_machines: tuple[int | None, int | None]) -> int | None:
        return of_machines[self._which]

    def refuse(self, number: int | None, action: int = _ERROR | errno.EPERM) -> None:
        if number is not None:
            self._rule(number, _step(_RETURN, action))

    def refuse_argument(self, number: int | None, argument: int, tests: list[tuple[int, int]], action: int) -> None:
        """Refuse a call whose argument (its lower 32 bits) passes one of the tests."""
        if number is None:
            return
        steps = [_step(_LOAD, _ARGUMENTS_AT + 8 * argument)]
        for test, value in tests:
            steps += [_step(test, value, 0, 1), _step(_RETURN, action)]
        self._rule(number, *steps, _step(_LOAD, _NUMBER_AT))

    def _rule(self, number: int, *steps: bytes) -> None:
        assert number not in self._rules, f"two rules for call {number}"
        self._rules[number] = [_step(_EQUAL, number, 0, len(steps)), *steps]

    def steps(self) -> list[bytes]:
        """Return the rules in blocks that are skipped whole: the kernel goes through them once for every call there is.

        A filter is put in force for every program, and costs what that takes.
        """
        numbers, steps = sorted(self._rules), []
        for start in range(0, len(numbers), _RULES_OF_BLOCK):
            block = numbers[start : start + _RULES_OF_BLOCK]
            code = [step for number in block for step in self._rules[number]]
            steps += [_step(_MORE, block[-1], len(code), 0), *code]
        return steps


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value & 0xFFFFFFFF)


class Filter:
    """A filter made once; `install` puts it in force for the process that calls it, and for its children.

    Args:
        allow_network: Whether sockets of the internet's families may be opened; without, none can, and only socketpair
            works.
        can_fork_session: Whether a request for a user and a mount namespace is put before the jail's init.
    """

    def __init__(self, *, allow_network: bool = False, can_fork_session: bool = False) -> None:
        program = _Program()
        for numbers in _REFUSED.values():
            program.refuse(program.number(numbers))
        program.refuse(program.number(_CLONE3), _ERROR | errno.ENOSYS)
        program.refuse(program.number(_UNSHARE), _NOTIFY if can_fork_session else _ERROR | errno.EPERM)
        program.refuse_argument(program.number(_CLONE), 0, [(_ANY_BIT, _NEW_NAMESPACES)], _ERROR | errno.EPERM)
        for numbers, argument in _OF_INIT.values():
            program.refuse_argument(program.number(numbers), argument, [(_EQUAL, 1)], _ERROR | errno.EPERM)
        # With network, its own families only: not those of the machine, of packets, of the kernel.
        families = [(_EQUAL, family) for family in range(64) if family not in _INTERNET]
        tests = [*families, (_AT_LEAST, 64)] if allow_network else [(_AT_LEAST, 0)]
        program.refuse_argument(program.number(_SOCKET), 0, tests, _ERROR | errno.EACCES)
        steps = [
            _step(_LOAD, _ARCHITECTURE_AT),
            _step(_EQUAL, _ARCHITECTURES[MACHINE], 1, 0),
            _step(_RETURN, _KILL),
            _step(_LOAD, _NUMBER_AT),
        ]
        if MACHINE == "x86_64":
            steps += [_step(_AT_LEAST, _X32, 0, 1), _step(_RETURN, _ERROR | errno.ENOSYS)]
        code = b"".join([*steps, *program.steps(), _step(_RETURN, _ALLOW)])
        self._code = ctypes.create_string_buffer(code, len(code))
        header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, 16)
        self.has_listener = can_fork_session

    def install(self) -> int:
        """Put the filter in force; return the listener's descriptor if it has one, else 0."""
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        return syscall("seccomp", _SET_MODE_FILTER, _NEW_LISTENER if self.has_listener else 0, self._header)


_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, then the call: number, architecture, address, arguments
_RESPONSE = struct.Struct("=QqiI")
_CONTINUE = 1
_RECEIVE = 0xC0000000 | _NOTIFICATION.size << 16 | ord("!") << 8 | 0
_SEND = 0xC0000000 | _RESPONSE.size << 16 | ord("!") << 8 | 1
FORK_NAMESPACES: Final = CLONE_NEWUSER | CLONE_NEWNS


def answer(listener: int, *, is_fork_expected: bool) -> int | None:
    """Answer one refused-or-not call; return the pid that may go on into namespaces of its own, if one may."""
    buffer = ctypes.create_string_buffer(_NOTIFICATION.size)
    try:
        check(libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), buffer), "seccomp notification")
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):  # the caller died meanwhile
            return None
        raise
    number, pid, _, _, _, _, flags, *_ = _NOTIFICATION.unpack(buffer.raw)
    is_allowed = is_fork_expected and flags == FORK_NAMESPACES
    response = _RESPONSE.pack(number, 0, 0 if is_allowed else -errno.EPERM, _CONTINUE if is_allowed else 0)
    try:
        check(libc.ioctl(listener, ctypes.c_ulong(_SEND), ctypes.create_string_buffer(response)), "seccomp answer")
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise
    return pid if is_allowed else None


def close_listener(listener: int) -> None:
    """Forget a listener; calls that would have come to it fail."""
    os.close(listener)
