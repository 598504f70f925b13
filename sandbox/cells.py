"""What runs the cells of a session inside the sandbox: its source text is sent there, so it imports nothing of ours.

Standard library only, Python 3.8 and later. Whoever uses it must hold its answers for hostile: cells run in the same
interpreter.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import linecache
import os
import signal
import struct
import sys
import traceback
import types

MAX_CHARACTERS = 20_000  # of a value or a traceback
MAX_REPLY_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")

SHELL_LOOP = r"""
while IFS= read -r -d '' -u {requests} turngym_cell; do
    trap 'return 130' INT
    . /dev/fd/{scratch} {scratch}<<<"$turngym_cell" {requests}<&- {replies}>&- </dev/null
    printf '%d\0' "$?" >&{replies}
done
"""
"""Bash's counterpart of `serve`: cells that end with a NUL come in at one descriptor, exit codes that end with a NUL go
out at another; `scratch` is a third, not in use. A cell is sourced, so that an interrupt can return from it; the trap
is set anew each time, since bash does not run it again after it has returned from a command that an interrupt ended."""


def shorten(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the text with its middle left out if it is too long."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out ...\n{text[-half:]}"


def explain(error: BaseException) -> str:
    """Return the traceback without our own frames; an error that cannot be printed says so."""
    try:
        if isinstance(error, SystemExit):
            return f"SystemExit: {error.code}"
        told = traceback.TracebackException(type(error), error, error.__traceback__)
        own = explain.__code__.co_filename
        told.stack[:] = [frame for frame in told.stack if frame.filename != own]
        if not told.stack:
            return shorten("".join(told.format_exception_only()))
        return shorten("".join(told.format()))
    except BaseException:
        return f"an error of type {type(error).__name__} that cannot be printed"


def run_code(code: str, name: str, namespace: dict[str, object]) -> object:
    """Execute the code and return the value of its last expression; None if it does not end with one."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), namespace)


class Cells:
    """Runs cells in the namespace of a fresh module `__main__`; only for the main thread.

    SIGINT interrupts a running cell and nothing else.
    """

    def __init__(self) -> None:
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.num_cells = 0
        self._is_running = False
        signal.signal(signal.SIGINT, self.on_interrupt)

    def run(self, code: str) -> dict[str, str | None]:
        """Run one cell and return {ended, value, error}: ended is "ok", "error" or "interrupted", the others text."""
        self.num_cells += 1
        signal.signal(signal.SIGINT, self.on_interrupt)  # the cell before may have taken it
        try:
            outcome = self._run(code, f"<cell {self.num_cells}>")
        except KeyboardInterrupt:  # it came after the cell's last line
            outcome = {"ended": "interrupted", "value": None, "error": "KeyboardInterrupt"}
        self._stop()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):  # the cell may have closed or replaced it
                stream.flush()
        return outcome

    def _run(self, code: str, name: str) -> dict[str, str | None]:
        outcome: dict[str, str | None] = {"ended": "ok", "value": None, "error": None}
        self._is_running = True
        try:
            value = run_code(code, name, self.namespace)
            if value is not None:
                self.namespace["_"] = value
                outcome["value"] = shorten(repr(value))
        except KeyboardInterrupt as error:
            outcome.update(ended="interrupted", error=explain(error))
        except BaseException as error:
            outcome.update(ended="error", error=explain(error))
        return outcome

    def _stop(self) -> None:
        while self._is_running:
            try:
                self._is_running = False
            except KeyboardInterrupt:
                self._is_running = False

    def on_interrupt(self, number: int, frame: types.FrameType | None) -> None:
        """Handle SIGINT."""
        if self._is_running:
            raise KeyboardInterrupt


def serve(requests: int, replies: int) -> None:
    """Run cells until the requests end.

    A request is a length (4 bytes, big-endian) and code, a reply a length and what `Cells.run` returns, as JSON.
    """
    for fd in (requests, replies):
        os.set_inheritable(fd, False)
    cells = Cells()
    while True:
        header = read_exactly(requests, _LENGTH.size)
        code = read_exactly(requests, _LENGTH.unpack(header)[0]).decode()
        reply = json.dumps(cells.run(code)).encode()
        write_all(replies, _LENGTH.pack(len(reply)) + reply)


def read_exactly(fd: int, num_bytes: int) -> bytes:
    """Read so many bytes; end the process if there is an end before."""
    data = bytearray()
    while len(data) < num_bytes:
        chunk = os.read(fd, num_bytes - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    """Write everything."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
