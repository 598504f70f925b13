"""Runs inside a sandbox session that holds tests and no program: the program is called through what carries the cells.

Tests run in a thread. Each cell lets it go on to its next call of the program, which is written down, or to its end.
What the program returned comes back as plain data or, once the tests have named a class of the program, as a `Handle`
where it is an object. So no test ever meets an object of the program's making.
"""

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .code_unit_objects import Handle, Named, is_class_name, is_exception_name, reference_of
from .code_unit_replies import rebuild_own, write_back
from .code_unit_solution import MARK
from .code_values import decode, encode

_MAX_TEXT = 500


class ProgramFailedError(BaseException):
    """The program gave nothing that a test could look at; whatever the test does about it, it has failed."""


class Relay:
    """Where the thread of the tests and the cells meet."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self.failure: tuple[str, str] | None = None  # of the program, in the running test
        self.num_calls = 0
        self.results: list[tuple[str, str, str]] = []  # name, outcome and text of each test that has ended
        self._may_refer = False  # to objects: from when the tests have named a class on
        self._handles: dict[str, Handle] = {}
        self._exceptions: dict[str, type[Exception]] = {}
        self._lock = threading.RLock()  # an object that is a key is asked for its hash while a reply is being read

    def named(self, name: str) -> Any:
        """Return what stands for a function or class of the program."""
        if is_exception_name(name):  # `except` and assertRaises want a real one
            return self._exceptions.setdefault(name, type(name, (Exception,), {}))
        self._may_refer = self._may_refer or is_class_name(name)
        return Named(name, self.ask)

    def ask(self, operation: str, target: Handle, /, *args: Any, **kwargs: Any) -> Any:
        """Have the program do something; see `code_unit_solution`."""
        try:
            request = encode((operation, [target, *args], kwargs, self._may_refer), reference_of)
        except TypeError as error:
            if self.num_calls:  # what the program returned before may have made it so, as the root of -1 is complex
                self.failure = ("not data", f"the tests would pass {error}")
                raise ProgramFailedError(*self.failure) from None
            self.fault(f"the tests pass {error} to {reference_of(target)}, and only plain data can be passed")
            raise ProgramFailedError from None
        except ValueError as error:  # what the program returned before may have made it so deep
            self.failure = ("not data", f"the tests would pass {error}")
            raise ProgramFailedError(*self.failure) from None
        with self._lock:
            if self.failure is None:
                self.num_calls += 1
                self.events.put(("call", request))
                kind, payload = self.replies.get()
                return self._result(operation, kind, payload, [*args])
        raise ProgramFailedError(*self.failure)

    def _result(self, operation: str, kind: str, payload: bytes, args: list[Any]) -> Any:
        reply: Any = ("forged", "a reply that cannot be read")
        try:
            reply = decode(payload, resolve=self._handle if self._may_refer else None)
            if kind == "value":
                value, changed = reply
                if changed is not None:
                    write_back(args, changed)
                return value
            if kind == "raised":
                own, names, text = reply
                error = rebuild_own([self._exceptions[n] for n in own if n in self._exceptions], names, text)
        except (TypeError, ValueError):
            kind, reply = "failed", ("forged", "a reply that cannot be read")
        if kind == "raised":
            if isinstance(error, StopIteration) and operation != "next":
                error = RuntimeError("the program raised StopIteration")  # it would end the tests' loops, as all(map())
            raise error
        self.failure = (str(reply[0]), str(reply[1]))
        raise ProgramFailedError(*self.failure)

    def _handle(self, reference: str) -> Handle:
        if not reference.startswith("#"):
            raise ValueError(f"{reference!r} stands for no object")
        return self._handles.setdefault(reference, Handle(reference, self.ask))  # one object, one handle

    def fault(self, text: str) -> None:
        """Say that the tests cannot be run, whatever the program."""
        self.events.put(("fault", text.encode(errors="replace")))

    def finished(self, name: str, outcome: str, text: str) -> None:
        """Note how a test ended; the program's failure comes first."""
        if self.failure is not None:
            outcome, text = self.failure if self.failure[0] != "passed" else ("forged", "a failure that is none")
        self.results.append((name, outcome, text[-_MAX_TEXT:]))
        self.failure = None


_relay = Relay()


def start(entry_point: str | None) -> None:
    """Begin the tests and run them to their first call of the program."""
    sys.dont_write_bytecode = True
    sys.stdout = sys.stderr
    threading.Thread(target=_run, args=(entry_point,), daemon=True).start()
    go_on()


def answer(kind: str, payload: bytes) -> None:
    """Hand over what the program replied, and run the tests to their next call of it."""
    _relay.replies.put((kind, payload))
    go_on()


def go_on() -> None:
    """Write down the next event, with the results so far."""
    kind, payload = _relay.events.get()
    data = MARK + encode((kind, payload, list(_relay.results)))
    while data:
        data = data[os.write(1, data) :]


def _run(entry_point: str | None) -> None:
    try:
        module = _load(entry_point)
        if module is not None:
            for test in _collect(module, entry_point):
                test()
        if not _relay.results and _relay.num_calls:
            _relay.finished("the tests", "error", "all were skipped after a call of the program")
        if not _relay.results:
            return _relay.fault("they hold no test: no TestCase, no function test_..., no check, no assertion")
    except BaseException as error:
        return _relay.fault("".join(traceback.format_exception_only(error)).strip())
    return _relay.events.put(("done", b""))


def _load(entry_point: str | None) -> ModuleType | None:
    """Run the test file; None if it failed by the program's doing, which is a result."""
    stand_in = ModuleType("solution")
    stand_in.__getattr__ = _attribute  # type: ignore[method-assign]
    sys.modules["solution"] = stand_in
    module = ModuleType("tests")
    sys.modules["tests"] = module
    _execute("prelude.py", module)
    if entry_point is not None:
        vars(module).update({entry_point: _relay.named(entry_point), "candidate": _relay.named(entry_point)})
    try:
        _execute("tests.py", module)
    except BaseException as error:
        if not _relay.num_calls:
            raise
        _relay.finished("the file", "wrong" if isinstance(error, AssertionError) else "error", _last_line(error))
        return None
    return module


def _attribute(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _relay.named(name)


def _execute(name: str, module: ModuleType) -> None:
    with open(name, "rb") as file:
        exec(compile(file.read(), name, "exec"), module.__dict__)


def _collect(module: ModuleType, entry_point: str | None) -> list[Callable[[], object]]:
    found: list[Callable[[], object]] = []
    for name, value in list(vars(module).items()):
        if "unittest" in sys.modules and (run := _of_class(value)) is not None:
            found.append(run)
        elif name.startswith("test_") and callable(value):
            found.append(lambda name=name, value=value: _function(name, value))  # type: ignore[misc]
        elif name == "check" and callable(value) and entry_point is not None:
            found.append(lambda value=value: _function("check", lambda: value(_relay.named(entry_point))))  # type: ignore[misc]
    if not found and _relay.num_calls:
        _relay.finished("the file", "passed", "")  # its assertions stand at its top level
    return found


def _of_class(thing: object) -> Callable[[], object] | None:
    from .code_unit_cases import run_of_class  # it imports unittest, which takes longer than most tests

    return run_of_class(thing, _relay.finished)


def _function(name: str, test: Callable[[], object]) -> None:
    try:
        test()
    except BaseException as error:
        _relay.finished(name, "wrong" if isinstance(error, AssertionError) else "error", _last_line(error))
    else:
        _relay.finished(name, "passed", "")


def _last_line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == "tests.py"]
    with open("tests.py") as file:
        lines = file.read().split("\n")
    where = lines[(frames[-1].lineno or 1) - 1].strip() if frames else ""
    return f"{where}: {''.join(traceback.format_exception_only(error)).strip()}"
