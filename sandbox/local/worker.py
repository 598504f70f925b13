"""The untrusted process: how it is confined, and how it then runs Python code or a command."""

import _signal  # type: ignore[import-not-found]
import atexit
import builtins
import linecache
import os
import resource
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from .kernel import close_from, drop_capabilities
from .landlock import Ruleset
from .seccomp import Filter

FILE_NAME: Final = "main.py"
_ABOVE: Final = 910
"""Where a program's own descriptors are for a moment, above all that a jail has."""
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


@dataclass(frozen=True)
class Bounds:
    """Limits that the kernel keeps for each process."""

    cpu_s: int | None
    address_bytes: int | None
    num_processes: int
    file_bytes: int
    num_open_files: int

    def apply(self) -> None:
        """Put them in force."""
        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 64 << 10),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_AS, self.address_bytes),
            (resource.RLIMIT_NPROC, self.num_processes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.num_open_files),
        ):
            if value is not None:
                hard = resource.getrlimit(kind)[1]
                value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                resource.setrlimit(kind, (value, value))
        if self.cpu_s is not None:  # SIGXCPU at the soft limit, SIGKILL at the hard one
            resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_s, self.cpu_s + 1))


@dataclass(frozen=True)
class Confinement:
    """What stands between a program and the machine, in the order in which it is put in force."""

    rules: Ruleset | None
    filter: Filter
    folder: str

    def enter(
        self, fds: Sequence[int], bounds: Bounds, hand_over: Callable[[int], None] | None = None, *, keep: int
    ) -> None:
        """Confine this process for good.

        Args:
            fds: What becomes stdin, stdout, stderr, and further ones; all others are closed.
            bounds: Its limits.
            hand_over: Takes the filter's listener to the jail's init, if the filter has one.
            keep: A descriptor that stays open.
        """
        os.setsid()
        os.chdir(self.folder)
        if self.rules is not None:
            self.rules.restrict()
        high = [os.dup2(fd, _ABOVE + place, inheritable=False) for place, fd in enumerate(fds)]
        for place, fd in enumerate(high):  # from here on the jail's own descriptors may be others
            os.dup2(fd, place, inheritable=place < 3)
        os.umask(0o022)
        for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_IGN)
        listener = self.filter.install()
        if hand_over is not None and self.filter.has_listener:
            hand_over(listener)
        close_from(len(fds), keep)
        drop_capabilities()  # until here they keep programs of the same user from the descriptors of the jail
        bounds.apply()


def run_command(argv: Sequence[str]) -> NoReturn:
    """Become a command; ends as a shell would where there is none."""
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    status = _NOT_EXECUTABLE
    try:
        os.execvpe(argv[0], list(argv), dict(os.environ))
    except FileNotFoundError:
        message, status = f"{argv[0]}: command not found\n", _NOT_FOUND
    except (OSError, ValueError) as error:
        message = f"{argv[0]}: {error}\n"
    os.write(2, message.encode(errors="replace"))
    os._exit(status)


def run_code(code: str) -> NoReturn:
    """Run Python source as `__main__`, and end as the interpreter would."""
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "__file__": FILE_NAME}
    sys.modules["__main__"].__dict__.clear()
    sys.modules["__main__"].__dict__.update(space)
    linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(True), FILE_NAME)
    status = _ending(code, sys.modules["__main__"].__dict__)
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as at the end of any program
        atexit._run_exitfuncs()
    except BaseException:
        status = status or 1
    os._exit(_flush() or status & 0xFF)


def _ending(code: str, space: dict[str, Any]) -> int:
    try:
        exec(compile(code, FILE_NAME, "exec"), space)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return int(stop.code or 0)
        _say(str(stop.code) + "\n")
        return 1
    except BaseException as error:
        trace = error.__traceback__
        _say("".join(traceback.format_exception(type(error), error, trace.tb_next if trace else None)))
        return 1
    return 0


def _say(text: str) -> None:
    try:
        sys.stderr.write(text)
    except BaseException:  # a program may have put anything there
        os.write(2, text.encode(errors="replace"))


def _flush() -> int:
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            status = 1
    return status
