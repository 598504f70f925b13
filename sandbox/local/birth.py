"""How a program comes to be: forked from a jail's init, and confined before anything of it runs."""

import _signal  # type: ignore[import-not-found]
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from .ground import Ground
from .kernel import CLONE_NEWNS, PR_SET_DUMPABLE, prctl, set_namespace, write_text
from .seccomp import Filter
from .worker import Bounds, Confinement

CONFINED: Final = b"confined"
ENDED_EARLY: Final = "it ended before it was confined"
_SAYS_AT, _HANDS_AT = 900, 901  # above the places of a program's own descriptors


@dataclass(frozen=True)
class Born:
    """A program that has been forked.

    Attributes:
        pid: Its process.
        setup: The reading end of a pipe on which it says that it is confined.
        listener: Where its filter asks about calls, if it does.
    """

    pid: int
    setup: int
    listener: int | None

    def told(self) -> str | None:
        """Wait until it has said how its confinement went; None if well, else what was wrong."""
        told = os.read(self.setup, 1000)
        os.close(self.setup)
        return None if told == CONFINED else told.decode(errors="replace") or ENDED_EARLY


def fork_program(
    ground: Ground,
    filter_: Filter,
    fds: Sequence[int],
    bounds: Bounds,
    start: Callable[[], None],
    *,
    namespace: int | None = None,
    is_interpreter: bool = False,
) -> Born:
    """Fork a program.

    Args:
        ground: What it runs on.
        filter_: Which calls it may make.
        fds: What becomes its stdin, stdout, stderr, and further ones.
        bounds: Its limits.
        start: What it does once it is confined; does not return.
        namespace: A mount namespace to enter first.
        is_interpreter: Whether its filter asks about calls, and its rules hold for its forks.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    ours, theirs = socket.socketpair() if is_interpreter else (None, None)
    pid = os.fork()
    if pid == 0:
        try:
            _become(ground, filter_, fds, bounds, start, namespace, writing, theirs)
        finally:
            os._exit(1)
    os.close(writing)
    listener = None
    if ours is not None and theirs is not None:
        theirs.close()
        with ours:
            _, handed, _, _ = socket.recv_fds(ours, 1, 1)
        listener = handed[0] if handed else None
    return Born(pid, reading, listener)


def _become(
    ground: Ground,
    filter_: Filter,
    fds: Sequence[int],
    bounds: Bounds,
    start: Callable[[], None],
    namespace: int | None,
    says: int,
    listener_to: socket.socket | None,
) -> None:
    try:
        _signal.set_wakeup_fd(-1)  # the module `signal` would touch, and so copy, many more pages
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        prctl(PR_SET_DUMPABLE, 1)  # or its own /proc would not be its own
        if ground.has_proc:
            write_text("/proc/self/oom_score_adj", "500")  # rather a program than the init
        if namespace is not None:
            set_namespace(namespace, CLONE_NEWNS)
        says = os.dup2(says, _SAYS_AT, inheritable=False)
        give = None
        if listener_to is not None:
            give = partial(_hand_over, os.dup2(listener_to.fileno(), _HANDS_AT, inheritable=False))
        rules = ground.rules if listener_to is None else ground.branching_rules
        Confinement(rules, filter_, ground.folder).enter(fds, bounds, give, keep=says)
    except BaseException as error:
        os.write(says, repr(error).encode(errors="replace")[:1000])
        return
    os.write(says, CONFINED)
    os.close(says)
    _draw_own_randomness()
    start()


def bounds_of(body: dict[str, Any], *, is_forked_python: bool) -> Bounds:
    """Return a program's bounds; what is mapped in this process already does not count against it."""
    bounds = Bounds(**body)
    if not is_forked_python or bounds.address_bytes is None:
        return bounds
    return replace(bounds, address_bytes=bounds.address_bytes + _mapped_bytes())


def _mapped_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no /proc here
        return _MAPPED_AT_MOST


_MAPPED_AT_MOST: Final = 512 << 20


def _hand_over(to: int, fd: int) -> None:
    with socket.socket(fileno=to) as sock:
        socket.send_fds(sock, [b"l"], [fd])


def _draw_own_randomness() -> None:
    """Let a program's random numbers be its own; Python's module `random` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
