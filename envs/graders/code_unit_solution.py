"""Runs inside a sandbox session that holds a program and no tests: does one thing with it per cell, as a test asks.

Objects of the program stay here; tests hold references to them, texts such as `#1.7 Stack`.
"""

import builtins
import operator
import os
import sys
from collections.abc import Callable
from typing import Any  # of the program's objects

from .code_calls_driver import describe, load
from .code_unit_replies import rebuild
from .code_values import decode, encode

MARK = b"\n\0turngym\0"  # what stands before a reply among what the cell writes
_DATA = (int, float, str, bytes, list, tuple, set, frozenset, dict)


class Objects:
    """The objects that tests refer to; none is forgotten, so that one keeps its reference."""

    def __init__(self, find: Callable[[str], Any], num_starts: int) -> None:
        self._find = find
        self._num_starts = num_starts  # of the program: references from before it died are none of these
        self._by_reference: dict[str, Any] = {}
        self._references: dict[int, str] = {}

    def keep(self, value: Any) -> str:
        """Return the reference to an object."""
        reference = self._references.get(id(value))
        if reference is None:
            reference = f"#{self._num_starts}.{len(self._references)} {type(value).__qualname__}"
            self._references[id(value)] = reference
            self._by_reference[reference] = value
        return reference

    def refer(self, value: Any) -> str | None:
        """Return the reference to an object, or None for what is as good as plain data and not referred to already."""
        if id(value) not in self._references and (issubclass(type(value), _DATA) or type(value).__module__ == "numpy"):
            return None
        return self.keep(value)

    def resolve(self, reference: str) -> Any:
        """Return the object that a test refers to, or the function or class that it names."""
        if not reference.startswith("#"):
            return self._find(reference)
        if reference not in self._by_reference:
            raise NameError(f"the program that held {reference!r} has ended")
        return self._by_reference[reference]


_objects: Any = None  # Any: filled by `start`


def start(num_starts: int) -> None:
    """Load the program, and say how that went."""
    global _objects
    sys.dont_write_bytecode = True
    sys.stdout = sys.stderr  # what the program prints is kept apart
    try:
        _objects = Objects(load(None), num_starts)
    except BaseException as error:
        return _reply("failed", encode(("error", describe(error))))
    return _reply("value", b"")


def perform(request: bytes) -> None:
    """Do what a test asks; write what came of it, and the arguments if they have changed."""
    try:
        asked: Any = decode(request, resolve=_objects.resolve)
        operation, arguments, kwargs, may_refer = asked
        before = encode(arguments[1:], _objects.refer)
        value = _operation(operation)(*arguments, **kwargs)
    except Exception as error:
        own = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ != "builtins"]
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
        return _reply("raised", encode((own, kinds, _text(error))))
    except BaseException as error:  # SystemExit and its like: no test can mean them, and they would end the tests
        return _reply("failed", encode(("error", describe(error))))
    try:
        if may_refer and operation == "call" and isinstance(arguments[0], type):
            _objects.keep(value)  # an instance, also of a class that extends list
        after = encode(arguments[1:], _objects.refer)
        reply = encode((value, None if after == before else arguments[1:]), _objects.refer if may_refer else None)
    except BaseException as error:
        return _reply("failed", encode(("not data", describe(error))))
    return _reply("value", reply)


def _operation(name: str) -> Callable[..., Any]:
    if name in _OWN:
        return _OWN[name]
    return getattr(builtins, name, None) or getattr(operator, name)  # type: ignore[no-any-return]


def _exit(context: Any, kinds: list[str]) -> None:
    """Leave a `with` block that ended without an exception, or with one of the first of these built-in types."""
    error = rebuild(kinds, "") if kinds else None
    type(context).__exit__(context, type(error) if error else None, error, None)


_OWN: dict[str, Callable[..., Any]] = {
    "call": lambda function, /, *args, **kwargs: function(*args, **kwargs),
    "enter": lambda context: type(context).__enter__(context),
    "exit": _exit,
    "slice": lambda sequence, *bounds: sequence[slice(*bounds)],
    "equal": lambda left, right: bool(left == right),
}


def _text(error: Exception) -> str:
    try:
        return str(error)[:10_000]
    except BaseException:
        return ""


def _reply(kind: str, payload: bytes) -> None:
    data = MARK + encode((kind, payload))
    while data:
        data = data[os.write(1, data) :]
