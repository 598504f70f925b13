"""A session's interpreter, in the jail: it runs cells as they come, and forks when it is told to.

Everything that it says is hostile to the supervisor: cells run in this very process.
"""

import json
import os
import signal
import socket
from typing import Final, NoReturn

from ..cells import SHELL_LOOP, Cells
from .kernel import PR_SET_DUMPABLE, drop_capabilities, map_user, prctl, unshare
from .seccomp import FORK_NAMESPACES
from .wire import receive
from .worker import run_command

CONTROL: Final = 3
REPLIES: Final = 4
"""Bash's descriptor for exit codes; it reads cells from `CONTROL`."""


def interpret() -> None:
    """Run cells and forks until the supervisor is gone."""
    control = socket.socket(fileno=CONTROL)
    cells = Cells()
    signal.signal(signal.SIGINT, cells.on_interrupt)
    forks: list[int] = []
    while True:
        try:
            message = receive(control)
        except EOFError:
            os._exit(0)
        if message.body["op"] == "cell":
            outcome = cells.run(message.blobs[0].decode())
            _say(control, {"op": "done", **outcome})
        else:
            forks = [pid for pid in forks if not _has_ended(pid)]
            pid = _fork(control, message.fds)
            forks = [*forks, *([pid] if pid > 0 else [])] if pid else []


def _has_ended(pid: int) -> bool:
    """Whether a fork has ended; it is then reaped, unless a cell has done so."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _fork(control: socket.socket, fds: list[int]) -> int:
    """Fork; the child goes on with its own control, stdout and stderr, in namespaces of its own.

    Returns:
        The child's pid, 0 in the child, or -1 if there is none.
    """
    here = os.getcwd()
    try:
        pid = os.fork()
    except OSError:  # no more processes: the supervisor sees the fork's control close, and this session goes on
        pid = -1
    if pid:
        for fd in fds:
            os.close(fd)
        return pid
    try:
        for fd, place in zip(fds, (CONTROL, 1, 2), strict=True):
            os.dup2(fd, place, inheritable=place != CONTROL)
            os.close(fd)
        unshare(FORK_NAMESPACES)  # the jail's init is asked whether this may be
        prctl(PR_SET_DUMPABLE, 1)
        map_user("self")
        _say(control, {"op": "left"})
        if receive(control).body["op"] != "go":
            os._exit(1)
        os.chdir(here)
        drop_capabilities()
        _say(control, {"op": "forked"})
        return 0
    except BaseException as error:
        _say(control, {"op": "not_forked", "why": repr(error)})
        os._exit(1)


def _say(control: socket.socket, body: dict[str, str | None]) -> None:
    while True:
        try:
            control.send(json.dumps(body, ensure_ascii=False).encode(errors="backslashreplace"))
            return
        except KeyboardInterrupt:  # an interrupt that came too late for its cell
            continue


def run_shell() -> NoReturn:
    """Become bash, which sources cells that end with a NUL and answers each with its exit code."""
    for fd in (CONTROL, REPLIES):
        os.set_inheritable(fd, True)
    loop = SHELL_LOOP.format(requests=CONTROL, replies=REPLIES, scratch=REPLIES + 1)
    run_command(["bash", "--norc", "--noprofile", "-c", loop])
