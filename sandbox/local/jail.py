"""A jail's init: pid 1 of its namespaces, trusted, which starts programs and alone says how they ended.

It serves one supervisor over one socket: either one-shot programs, each from a clean start, or one session with an
interpreter, its branches, and programs beside it. When the socket closes it ends, and everything in the jail with it.
"""

import os
import resource
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from . import folder, wire
from .birth import ENDED_EARLY, Born, bounds_of, fork_program
from .branches import Branches
from .ground import Ground, descendants, used_bytes
from .seccomp import Filter
from .worker import run_code, run_command

_MEMORY_LOOK_MS: Final = 50


@dataclass
class _Program:
    """One running program, and what has been seen of it."""

    request: int
    born: Born
    is_session: bool
    cpu_s: float = 0.0
    peak_kib: int = 0
    is_over_memory: bool = False

    def count(self, usage: resource.struct_rusage) -> None:
        """Add what one of its processes has used."""
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.peak_kib = max(self.peak_kib, usage.ru_maxrss)


class Jail:
    """One jail.

    Args:
        control: The supervisor's socket.
        ground: What programs run on.
        plain: The filter of programs.
        forkable: The filter of interpreters.
        memory_is_counted: Whether a control group limits memory; otherwise this process looks at it.
    """

    def __init__(
        self, control: socket.socket, ground: Ground, plain: Filter, forkable: Filter, *, memory_is_counted: bool
    ) -> None:
        self._control, self._ground, self._filter = control, ground, plain
        self._memory_is_counted, self._memory_bytes = memory_is_counted, 0
        self._programs: dict[int, _Program] = {}  # by pid
        self._request = 0
        self._poll = select.poll()
        self._branches = Branches(ground, forkable, self._poll, self._say)
        self._do = {
            "clear": self._clear,
            "run": self._run,
            "kill": self._kill_target,
            "open": self._open,
            "interrupt": self._branches.interrupt,
            "end_branch": self._end_branch,
            "expect_fork": self._branches.expect_fork,
            "furnish": self._branches.furnish,
            "forget_fork": self._branches.forget_fork,
            "files": self._branches.do_files,
        }

    def serve(self) -> NoReturn:
        """Answer until the supervisor is gone."""
        children, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.register(self._control, select.POLLIN)
        self._poll.register(children, select.POLLIN)
        while True:
            wait = None if self._memory_is_counted or not self._programs else _MEMORY_LOOK_MS
            ready = dict(self._poll.poll(wait))
            if not ready:
                self._look_at_memory()
            if children in ready:
                with suppress(BlockingIOError):
                    while os.read(children, 4096):
                        pass
                self._reap()
            self._branches.note_ready(ready)
            if self._branches.listener in ready:
                self._branches.answer_call(ready[self._branches.listener])
            if self._control.fileno() in ready:
                self._answer()

    def _answer(self) -> None:
        try:
            message = wire.receive(self._control)
        except EOFError:
            os._exit(0)
        self._request = message.body.get("request", 0)
        try:
            self._do[message.body["op"]](message)
        except folder.RefusedError as error:
            self._say({"op": "refused", "why": str(error)})
        except Exception as error:
            self._say({"op": "failed", "why": repr(error)})
        finally:
            for fd in message.fds:
                with suppress(OSError):  # a file that took it over has closed it
                    os.close(fd)

    def _say(self, body: dict[str, Any], blobs: list[bytes] | None = None, fds: tuple[int, ...] = ()) -> None:
        """Answer the request that is being served, unless another is named."""
        try:
            wire.send(self._control, {"request": self._request} | body, blobs or [], fds)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def _clear(self, message: wire.Message) -> None:
        """Give the next program a clean start already, so that nothing of the last one uses memory."""
        self._ground.clear(*message.body["disk"])
        self._say({"op": "cleared"})

    def _run(self, message: wire.Message) -> None:
        """Start a program; `ended` is said when it has ended, and, one-shot, when nothing of it is left."""
        body = message.body
        is_session = self._branches.is_open
        if not is_session:
            self._ground.clear(*body["disk"])
        for path, content in zip(body["paths"], message.blobs[2:], strict=True):
            folder.write(self._ground.folder, path, content, 0o755 if path == body["executable"] else 0o644)
        self._memory_bytes = body["memory_bytes"]
        code, stdin = message.blobs[:2]
        argv = body["argv"]
        stdin_fd = wire.memory_file(stdin) if stdin else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        namespace = self._branches.namespace_of(body["branch"])
        try:
            born = fork_program(
                self._ground,
                self._filter,
                [stdin_fd, *message.fds],
                bounds_of(body["bounds"], is_forked_python=argv is None),
                (lambda: run_code(code.decode())) if argv is None else (lambda: run_command(argv)),
                namespace=namespace,
            )
        finally:
            os.close(stdin_fd)
            if namespace is not None:
                os.close(namespace)
        self._programs[born.pid] = _Program(self._request, born, is_session)

    def _kill_target(self, message: wire.Message) -> None:
        """Kill the program of a request; of a session, with what descends from it."""
        for program in self._programs.values():
            if program.request == message.body["target"]:
                self._kill(program)
                return

    def _kill(self, program: _Program) -> None:
        if not program.is_session:
            self._ground.kill_all()
            return
        while True:
            found = [program.born.pid, *descendants(program.born.pid)]
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if len(found) == 1:
                return

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for program in list(self._programs.values()):
                if pid == program.born.pid or not program.is_session:
                    program.count(usage)
                if pid == program.born.pid:
                    self._end(program, status)
            self._branches.note_end(pid, status)

    def _end(self, program: _Program, status: int) -> None:
        if not program.is_session:
            self._ground.kill_all()
            with suppress(ChildProcessError):
                while True:
                    program.count(os.wait4(-1, 0)[2])
        del self._programs[program.born.pid]
        wrong = program.born.told()
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL  # at a limit, if before it ran
        if wrong is not None and not (wrong == ENDED_EARLY and was_killed):
            self._say({"op": "failed", "request": program.request, "why": f"a program could not be confined: {wrong}"})
            return
        self._say(
            {
                "op": "ended",
                "request": program.request,
                "status": status,
                "cpu_s": program.cpu_s,
                "peak_kib": program.peak_kib,
                "is_over_memory": program.is_over_memory,
            }
        )

    def _look_at_memory(self) -> None:
        if self._programs and used_bytes() > self._memory_bytes:
            for program in list(self._programs.values()):
                program.is_over_memory = True
                self._kill(program)

    def _open(self, message: wire.Message) -> None:
        self._memory_bytes = message.body["memory_bytes"]
        self._branches.open(message)

    def _end_branch(self, message: wire.Message) -> None:
        """End one branch; with the last of them everything, so that the jail is ready for a first program again."""
        if self._branches.end(message.body["branch"], self._reap):
            self._ground.kill_all()
            with suppress(ChildProcessError):
                while True:
                    os.wait4(-1, 0)
            for program in self._programs.values():
                os.close(program.born.setup)
            self._programs.clear()
            self._branches.forget()
        self._say({"op": "branch_ended"})
