"""Runs inside a sandbox: loads a program, calls it once per test in a fork of its own, and writes down what came back.

The program may tamper with all of this. It then claims a wrong reply, or none; it cannot know the right one, since that
is not here.
"""

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .code_values import decode, encode

_HEADER_BYTES = 16
_MAX_TEXT = 500


def main() -> None:
    """Read the calls from stdin, and write one (index, kind, payload) per call to stdout."""
    sys.dont_write_bytecode = True
    channel = os.dup(1)
    os.dup2(2, 1)  # what the program prints is kept apart
    request: Any = decode(sys.stdin.buffer.read())
    try:
        function = load(request["entry_point"])
    except BaseException as error:
        _write(channel, encode((-1, "error", describe(error).encode(errors="replace"))))
        return
    for index, (args, kwargs) in enumerate(request["calls"]):
        kind, payload = _in_fork(function, args, kwargs, request["test_s"], request["max_reply_bytes"])
        _write(channel, encode((index, kind, payload)))
        if kind != "value" and request["stops_early"]:
            break
    os._exit(0)  # threads of the program do not keep the sandbox waiting


def load(entry_point: str | None) -> Callable[..., Any]:
    """Run the program's files as a module `solution`, and return the entry point, or what finds functions by name."""
    module = ModuleType("solution")
    sys.modules["solution"] = module
    for name in ("prelude.py", "solution.py"):
        with open(name, "rb") as file:
            exec(compile(file.read(), name, "exec"), module.__dict__)
    return find(module, entry_point) if entry_point is not None else lambda name: find(module, name)


def find(module: ModuleType, name: str) -> Callable[..., Any]:
    """Return the module's function, or the method of an instance of its class `Solution`."""
    if hasattr(module, name):
        return getattr(module, name)  # type: ignore[no-any-return]
    solution = getattr(module, "Solution", None)
    if solution is not None and hasattr(solution, name):
        return getattr(solution(), name)  # type: ignore[no-any-return]
    raise NameError(f"the code defines no {name!r}")


def describe(error: BaseException) -> str:
    """Say what was raised and where in the program, in one line."""
    try:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "solution.py"]
        where = f" (line {frames[-1].lineno})" if frames else ""
        return f"{type(error).__name__}: {error}"[:_MAX_TEXT] + where
    except BaseException:
        return f"{type(error).__name__}, which cannot be shown"


def _in_fork(
    function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], timeout_s: float, max_reply_bytes: int
) -> tuple[str, bytes]:
    deadline = time.monotonic() + timeout_s
    theirs, ours = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(theirs)
            reply = encode(call(function, args, kwargs))
            _write(ours, b"%0*x" % (_HEADER_BYTES, len(reply)) + reply)
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(ours)
    try:
        return _receive(theirs, deadline, max_reply_bytes)
    finally:
        os.close(theirs)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> tuple[str, bytes]:
    """Call it and return what came back: ("value", encoded), or what else and why."""
    try:
        value = function(*args, **kwargs)
    except MemoryError:
        return "memory", b"MemoryError"
    except BaseException as error:
        return "error", describe(error).encode(errors="replace")
    try:
        return "value", encode(value)
    except BaseException as error:
        return "not data", describe(error).encode(errors="replace")


def _receive(pipe: int, deadline: float, max_reply_bytes: int) -> tuple[str, bytes]:
    data = b""
    wanted = _HEADER_BYTES
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(data) < wanted:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return "timeout", b""
        chunk = os.read(pipe, 1 << 16)
        if not chunk:
            return "exited", b""
        data += chunk
        if wanted == _HEADER_BYTES <= len(data):
            wanted += int(data[:_HEADER_BYTES], 16)
        if wanted > max_reply_bytes:
            return "output", b""
    reply: Any = decode(data[_HEADER_BYTES:])
    kind, payload = reply
    return kind, payload


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
