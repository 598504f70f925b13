"""The parent's side of the fork server: start it, fork a worker, send it a call, kill it, say how it died."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from ..errors import DeadlineError, WorkerError
from . import worker_main

_START_TIMEOUT_S = 120.0  # a cold import of the function's module on a busy machine
_ANSWER_TIMEOUT_S = 20.0  # one fork, or one kill and reap

_PROGRAM = """
import sys
sys.path[:] = {path!r}
from {module} import main
main({fd}, {pid}, {function!r}, {memory})
"""


class ForkServer:
    """One fresh interpreter that has imported "module:function" and forks workers that run it; thread-safe."""

    def __init__(self, function: str, memory_bytes: int) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        program = _PROGRAM.format(
            path=sys.path,
            module=worker_main.__name__,
            fd=theirs.fileno(),
            pid=os.getpid(),
            function=function,
            memory=memory_bytes,
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes the pool
            )
        try:
            self._control.settimeout(_START_TIMEOUT_S)
            outcome, detail = worker_main.receive(self._control)
        except (OSError, EOFError) as error:
            self.close()
            raise WorkerError(f"the fork server for {function!r} did not start: {error or 'it died'}") from error
        if outcome == "failed":
            self.close()
            raise WorkerError(f"worker processes cannot import {function!r}:\n{detail}")
        self._control.settimeout(_ANSWER_TIMEOUT_S)

    def fork(self) -> "Worker":
        """Return a new worker, ready for calls.

        Raises:
            WorkerError: The server is gone or cannot fork.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                data = worker_main.pack(("fork", None))
                sent = socket.send_fds(self._control, [data], [theirs.fileno()])
                self._control.sendall(data[sent:])
                pid = worker_main.receive(self._control)
            if isinstance(pid, str):
                raise WorkerError(f"cannot fork a worker for {self._function!r}: {pid}")
            ours.settimeout(_ANSWER_TIMEOUT_S)
            worker_main.receive(ours)
        except (OSError, EOFError) as error:
            ours.close()
            raise WorkerError(f"the fork server for {self._function!r} is gone: {error}") from error
        except WorkerError:
            ours.close()
            raise
        return Worker(self, pid, ours)

    def reap(self, pid: int) -> int | None:
        """Kill a worker and return its wait status; None when the server, and so the worker, is gone."""
        try:
            with self._lock:
                worker_main.send(self._control, ("reap", pid))
                status: int = worker_main.receive(self._control)
        except (OSError, EOFError):
            return None
        return status

    def close(self) -> None:
        """End the server; it takes its workers with it."""
        self._control.close()
        try:
            self._process.wait(_ANSWER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Forker:
    """Forks workers from a fork server that starts when first needed, and once more when it died; thread-safe."""

    def __init__(self, function: str, memory_bytes: int) -> None:
        self._function = function
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()  # held while a server starts or forks
        self._server: ForkServer | None = None

    def fork(self) -> "Worker":
        """Return a new worker, ready for calls.

        Raises:
            WorkerError: The server does not start, or cannot fork.
        """
        with self._lock:
            if self._server:
                try:
                    return self._server.fork()
                except WorkerError:
                    self._server.close()  # it died, perhaps for want of memory: one fresh start
            self._server = None
            self._server = ForkServer(self._function, self._memory_bytes)
            return self._server.fork()

    def close(self) -> None:
        """End the server, if there is one, and with it all workers."""
        with self._lock:
            if self._server:
                self._server.close()
            self._server = None


class Worker:
    """One forked process; only `kill` may be called from another thread than the one that uses it."""

    def __init__(self, server: ForkServer, pid: int, sock: socket.socket) -> None:
        self._server = server
        self._pid = pid
        self._sock = sock
        self._lock = threading.Lock()
        self._is_reaped = False
        self.num_calls = 0

    def call(self, request: bytes, timeout_s: float) -> tuple[str, Any]:
        """Send packed arguments, return the kind of reply and its content.

        Raises:
            DeadlineError: No reply within `timeout_s`.
            EOFError, ConnectionError: The worker died.
        """
        self.num_calls += 1
        deadline = time.monotonic() + timeout_s
        try:
            self._sock.settimeout(max(timeout_s, 1e-3))
            self._sock.sendall(request)
            kind, content = worker_main.receive(self._sock, deadline)
        except TimeoutError:
            raise DeadlineError(f"no answer within {timeout_s:g} s") from None
        return kind, content

    def kill(self) -> None:
        """Kill the process group at once, without waiting; whoever uses the worker finds it dead."""
        with self._lock:
            if not self._is_reaped:  # afterwards its number may belong to another process
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)

    def end(self) -> str:
        """Kill and reap it, and say in words how it ended."""
        with self._lock:
            self._is_reaped = True
            status = self._server.reap(self._pid)
        self._sock.close()
        if status is None:
            return "was lost with its fork server"
        if os.WIFSIGNALED(status):
            return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"exited with status {os.WEXITSTATUS(status)}"
