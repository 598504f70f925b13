"""Runs inside a sandbox session that holds a program and no tests: calls its functions, one call per cell."""

import os
import sys
from typing import Any

from .code_calls_driver import describe, load
from .code_values import decode, encode

MARK = b"\n\0turngym\0"  # what stands before a reply among what the cell writes
_find: Any = None  # Any: filled by `start`, with what finds a function of the program by its name


def start() -> None:
    """Load the program, and say how that went."""
    global _find
    sys.dont_write_bytecode = True
    sys.stdout = sys.stderr  # what the program prints is kept apart
    try:
        _find = load(None)
    except BaseException as error:
        return _reply("failed", encode(("error", describe(error))))
    return _reply("value", b"")


def call(request: bytes) -> None:
    """Call a function; write what it returned or raised, and its arguments if they have changed."""
    asked: Any = decode(request)
    name, arguments, kwargs = asked
    before = encode(arguments)
    try:
        value = _find(name)(*arguments, **kwargs)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        return _reply("raised", encode((kinds, _text(error))))
    except BaseException as error:  # SystemExit and its like: no test can mean them, and they would end the tests
        return _reply("failed", encode(("error", describe(error))))
    try:
        after = encode(arguments)
        reply = encode((value, None if after == before else arguments))
    except BaseException as error:
        return _reply("failed", encode(("not data", describe(error))))
    return _reply("value", reply)


def _text(error: Exception) -> str:
    try:
        return str(error)[:10_000]
    except BaseException:
        return ""


def _reply(kind: str, payload: bytes) -> None:
    data = MARK + encode((kind, payload))
    while data:
        data = data[os.write(1, data) :]
