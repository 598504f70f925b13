"""The child's side of a worker pool: a fork server that imports one function, and the workers it forks.

The fork server is single-threaded and starts from a fresh interpreter, so forking it is safe whatever
threads, GPUs or event loops its parent holds. It owns its workers: it alone kills and reaps them, it
ends when its parent does, and they end when it does.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADER = struct.Struct("!Q")  # bytes in the pickle that follows
_PR_SET_PDEATHSIG = 1
_ORPHAN_CHECK_S = 1.0


def pack(message: object) -> bytes:
    """Return the message as a length-prefixed pickle."""
    data = pickle.dumps(message)
    return HEADER.pack(len(data)) + data


def send(sock: socket.socket, message: object) -> None:
    """Write one length-prefixed pickle."""
    sock.sendall(pack(message))


def receive(sock: socket.socket, deadline: float | None = None) -> Any:  # Any: the peers agree on it by protocol
    """Read one length-prefixed pickle.

    Args:
        sock: Where from; its own timeout holds for each read.
        deadline: On the monotonic clock, for the whole message.

    Raises:
        EOFError: The peer is gone.
        TimeoutError: The deadline passed.
    """
    (size,) = HEADER.unpack(_read(sock, HEADER.size, deadline))
    return pickle.loads(_read(sock, size, deadline))


def _read(sock: socket.socket, size: int, deadline: float | None = None) -> bytes:
    data = bytearray()
    while len(data) < size:
        if deadline is not None:
            sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        chunk = sock.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the other end closed the connection")
        data += chunk
    return bytes(data)


def main(control_fd: int, parent_pid: int, function_path: str, memory_bytes: int) -> None:
    """Import the function, say how that went, then fork and reap workers until the parent is gone."""
    control = socket.socket(fileno=control_fd)
    try:
        module, _, attribute = function_path.partition(":")
        function = getattr(importlib.import_module(module), attribute)
    except BaseException:
        send(control, ("failed", traceback.format_exc()))
        return
    gc.collect()
    gc.freeze()  # workers share these pages as long as no collection touches them
    workers: set[int] = set()
    try:
        send(control, ("ready", None))
        while _wait_for_request(control, parent_pid):
            _answer(control, function, memory_bytes, workers)
    except (EOFError, ConnectionError):
        pass  # the parent is gone; what remains is to leave nothing behind
    finally:
        for pid in list(workers):
            _reap(pid)


def _wait_for_request(control: socket.socket, parent_pid: int) -> bool:
    # End of file alone is not enough: a process that the parent forked may hold the other end open.
    while os.getppid() == parent_pid:
        if select.select([control], [], [], _ORPHAN_CHECK_S)[0]:
            return True
    return False


def _answer(control: socket.socket, function: Callable[..., object], memory_bytes: int, workers: set[int]) -> None:
    request, fds = _receive_with_fds(control)
    kind, pid = request
    if kind == "fork":
        (fd,) = fds
        with socket.socket(fileno=fd) as sock:
            send(control, _fork(control, sock, function, memory_bytes, workers))
    else:
        workers.discard(pid)
        send(control, _reap(pid))


def _receive_with_fds(control: socket.socket) -> tuple[Any, list[int]]:
    # A descriptor travels with the first byte of its request, so it is picked up with the header.
    header, ancillary, _, _ = control.recvmsg(HEADER.size, socket.CMSG_SPACE(array.array("i", [0]).itemsize))
    if not header:
        raise EOFError("the parent closed the connection")
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    header += _read(control, HEADER.size - len(header))
    return pickle.loads(_read(control, HEADER.unpack(header)[0])), list(fds)


def _fork(
    control: socket.socket,
    sock: socket.socket,
    function: Callable[..., object],
    memory_bytes: int,
    workers: set[int],
) -> int | str:
    server_pid = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return str(error)
    if pid == 0:
        status = 1
        try:
            control.close()
            _confine(server_pid, memory_bytes)
            _serve(sock, function)
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
        except (EOFError, ConnectionError):
            status = 0  # the parent is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    workers.add(pid)
    return pid


def _confine(server_pid: int, memory_bytes: int) -> None:
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server_pid:  # it died before the line above
        os._exit(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(sock: socket.socket, function: Callable[..., object]) -> None:
    send(sock, "ready")
    while True:
        args = receive(sock)
        try:
            reply = pack(("returned", function(*args)))
        except MemoryError:
            send(sock, ("out of memory", None))
            raise SystemExit(1) from None  # the heap may be in pieces: a fresh worker takes over
        except Exception as error:
            reply = _pickled_error(error)
        sock.sendall(reply)


def _pickled_error(error: Exception) -> bytes:
    text = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))  # some exceptions can be written but not read
    except Exception:
        return pack(("raised", (None, text)))
    return pack(("raised", (error, text)))


def _reap(pid: int) -> int:
    """Kill a worker with its process group and return its wait status; one already dead keeps its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not have made its own group yet
    return os.waitpid(pid, 0)[1]
