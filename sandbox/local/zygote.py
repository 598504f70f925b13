"""The fork server: it builds the root, becomes an unprivileged user, imports what programs want, and forks jails.

It is single-threaded, starts from a fresh interpreter, and holds nothing of its supervisor's.
"""

import gc
import importlib
import os
import signal
import site
import socket
import sys
from typing import Any, Final, NoReturn

from . import kernel, root, wire
from .ground import Folder, Ground, Namespaces
from .jail import Jail
from .landlock import version
from .seccomp import Filter

_OF_JAIL: Final = (
    kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWUSER
)


def main(control_fd: int, settings: dict[str, Any]) -> None:
    """Get ready, say so, and fork a jail for each request until the supervisor is gone.

    Args:
        control_fd: The supervisor's socket.
        settings: `root` (the fields of `RootPlan`), `user` (what root becomes), `preload` (modules), `is_weak` (do
            without namespaces), `site` (whether packages lie at `root.SITE`).
    """
    control = socket.socket(fileno=control_fd)
    stage = "namespaces"
    try:
        if settings["is_weak"]:
            _become_user(settings["user"])
        else:
            _enter_root(root.RootPlan(**settings["root"]), settings["user"])
        stage = "imports"
        _import(settings)
    except BaseException as error:
        wire.send(control, {"op": "failed", "stage": stage, "why": f"{type(error).__name__}: {error}"})
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which pid 1 of a jail never gets from inside
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # jails that ended need no wait
    filters = {
        flag: (Filter(allow_network=flag), Filter(allow_network=flag, can_fork_session=not settings["is_weak"]))
        for flag in (False, True)
    }
    for name in [name for name in sys.modules if name.partition(".")[0] == "turngym"]:
        del sys.modules[name]  # programs find an interpreter without our modules
    gc.collect()
    gc.freeze()  # jails share these pages as long as no collection touches them
    wire.send(control, {"op": "ready", "landlock": version(), "executable": sys.executable})
    while True:
        try:
            message = wire.receive(control)
        except EOFError:
            os._exit(0)
        network = message.body["allow_network"]
        _fork_jail(control, message, settings, filters[network])


def _become_user(user: int) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or it could not write its own user map


def _enter_root(plan: root.RootPlan, user: int) -> None:
    """Build the root and give up being root.

    Root builds it before, since it may have to show folders that only root may enter; nothing else has run by then.
    """
    if os.getuid() == 0:
        kernel.unshare(kernel.CLONE_NEWNS)
        root.build(plan)
        _become_user(user)
        outside, group = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        kernel.map_user("self", outside, group)
        kernel.unshare(kernel.CLONE_NEWNS)
    else:
        outside, group = os.getuid(), os.getgid()
        kernel.unshare(kernel.CLONE_NEWUSER)
        kernel.map_user("self", outside, group)
        kernel.unshare(kernel.CLONE_NEWNS)
        root.build(plan)
    kernel.unshare(kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)
    socket.sethostname("sandbox")


def _import(settings: dict[str, Any]) -> None:
    site.setquit()
    site.setcopyright()
    site.sethelper()
    if settings["site"]:
        sys.path.append(settings["site"])
    for name in settings["preload"]:
        importlib.import_module(name)


def _fork_jail(
    control: socket.socket, message: wire.Message, settings: dict[str, Any], filters: tuple[Filter, Filter]
) -> None:
    """Fork one jail, which serves the socket that came; answer with its pid and a descriptor of it."""
    (jail_fd,) = message.fds
    flags = _OF_JAIL if message.body["allow_network"] else _OF_JAIL | kernel.CLONE_NEWNET
    try:
        pid = os.fork() if settings["is_weak"] else kernel.fork_into(flags)
    except OSError as error:
        wire.send(control, {"op": "not_forked", "request": message.body["request"], "why": str(error)})
        os.close(jail_fd)
        return
    if pid == 0:
        control.close()
        _be_jail(jail_fd, message.body, settings, filters)
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        wire.send(control, {"op": "not_forked", "request": message.body["request"], "why": "the jail ended at once"})
        os.close(jail_fd)
        return
    wire.send(control, {"op": "forked", "request": message.body["request"], "pid": pid}, fds=(fd,))
    os.close(fd)
    os.close(jail_fd)


def _be_jail(fd: int, body: dict[str, Any], settings: dict[str, Any], filters: tuple[Filter, Filter]) -> NoReturn:
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        jail_control = socket.socket(fileno=fd)
        ground: Ground
        if settings["is_weak"]:
            readable = [source for source, _ in settings["root"]["binds"]]
            ground = Folder(body["folder"], readable, allow_network=body["allow_network"])
        else:
            kernel.map_user("self")
            ground = Namespaces(allow_network=body["allow_network"])
        jail = Jail(jail_control, ground, *filters, memory_is_counted=body["memory_is_counted"])
        wire.send(jail_control, {"op": "up", "has_proc": ground.has_proc})
        jail.serve()
    except BaseException as error:
        wire.send(socket.socket(fileno=os.dup(fd)), {"op": "failed", "why": repr(error)})
    finally:
        os._exit(1)
